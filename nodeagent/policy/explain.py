# SPDX-License-Identifier: Apache-2.0
"""Why is this device offered as it is, or not at all: the story of one device, for people and programs. Pure.

Built from the same decisions that the daemon takes (claims, health, allocate), never from a second opinion.
"""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.desired import PciRule
from nodeagent.model.host import PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Reason, Resource
from nodeagent.policy import allocate, claims, groups, match, naming, offers
from nodeagent.policy.turn import Outcome


@dataclass(frozen=True, slots=True)
class Member:
    """One function of the device's group, as far as it matters to the group."""

    address: str
    driver: str | None
    role: str  # "vfio", "bridge", "unbound", "friendly", "blocks"


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that decides about one device."""

    function: PciFunction
    vendor_name: str | None
    device_name: str | None
    members: tuple[Member, ...]
    viable: bool
    rules: tuple[tuple[str, str], ...]  # rule → what it says of the device, in the order of asking
    resource: str | None = None
    reason: Reason | None = None
    env: str | None = None
    nodes: tuple[str, ...] = ()
    holder: str | None = None

    @property
    def verdict(self) -> str:
        """One sentence: offered and Healthy, offered and Unhealthy, or not offered."""
        if self.resource is None:
            return "not offered"
        if self.reason is None:
            return f"offered as {self.resource}, Healthy"
        return f"offered as {self.resource}, Unhealthy: {self.reason.what}"


def explain(address: PciAddress, outcome: Outcome) -> Explanation | None:
    """The explanation for a PCI function of the outcome's host; None if there is no such function."""
    facts = outcome.facts
    function = facts.host.functions.get(address)
    if function is None:
        return None
    members = facts.host.members(function.group) or (function,)
    offer = _offer_with(address, outcome)
    resource = outcome.resources.get(offer.claim.resource) if offer else None
    holder = facts.holders.get(address)
    return Explanation(
        function=function,
        vendor_name=facts.names.get(function.vendor or ""),
        device_name=facts.names.get(f"{function.vendor}:{function.device}"),
        members=tuple(Member(member.address, member.driver, role(member)) for member in members),
        viable=not groups.blockers(members),
        rules=tuple(_rules(function, outcome)),
        resource=resource.name if resource else None,
        reason=offer.device.reason if offer else None,
        env=_env(resource, offer) if resource and offer else None,
        nodes=allocate.vfio_nodes(function, resource.iommufd, facts.host) if resource else (),
        holder=str(holder) if holder else None,
    )


def role(member: PciFunction) -> str:
    """What a function means for the viability of its group."""
    if member in groups.blockers((member,)):
        return "blocks"
    if member.driver is None:
        return "unbound"
    if groups.vfio_bound(member):
        return "vfio"
    return "bridge" if member.bridge else "friendly"


def _offer_with(address: PciAddress, outcome: Outcome) -> offers.Offer | None:
    function = outcome.facts.host.functions[address]
    found = outcome.offers.get(offers.unit_of(function), ())
    return next((offer for offer in found if address in offer.functions), None)


def _env(resource: Resource, offer: offers.Offer) -> str:
    return f"{naming.env_key(resource.kind, resource.name)}={','.join(offer.functions)}"


def _rules(function: PciFunction, outcome: Outcome) -> list[tuple[str, str]]:
    if function.bridge:
        return [("all rules", "it is a PCI bridge; bridges are never given away")]
    told: list[tuple[str, str]] = []
    for rule in outcome.facts.desired.rules:
        if not isinstance(rule, PciRule):
            continue
        label = f"rule {rule.name}" + (f" ({rule.place})" if rule.place else "")
        if match.picks(rule, function):
            told.append((label, "takes it"))
            return told
        told.append((label, _refusal(rule, function)))
    host = outcome.facts.host
    group = host.groups.get(function.group) if function.group is not None else None
    refusal = claims.discoverable(function, group, outcome.facts.desired)
    told.append(("discovery", refusal or "takes it"))
    return told


def _refusal(rule: PciRule, function: PciFunction) -> str:
    if not rule.selectors:
        return "has no selectors, so it takes nothing"
    return "; or ".join(match.mismatch(selector, function) or "" for selector in rule.selectors)
