# SPDX-License-Identifier: Apache-2.0
"""One turn: what changed between two sets of Facts, and the Resources that follow. Pure.

Only units (IOMMU groups) that changed are decided anew; the result equals a decision from scratch, but for
two things that are remembered on purpose: what was offered stays listed while it exists, and a resource
that was served stays, if need be with an empty list. What changed in a Host is found by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from nodeagent.model.desired import NodeRule, PciRule
from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Kind, Resource
from nodeagent.policy import nodes, offers
from nodeagent.policy.claims import Claim
from nodeagent.policy.offers import Facts, Offer, Unit

Parts = Mapping[Unit, tuple[Offer, ...]]
Extras = Mapping[ResourceName, tuple[Device, ...]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a turn, and what the next one builds on."""

    facts: Facts
    offers: Parts = field(default_factory=dict)
    by_resource: Mapping[ResourceName, Parts] = field(default_factory=dict)
    claimed: Mapping[PciAddress, Claim] = field(default_factory=dict)
    extras: Extras = field(default_factory=dict)  # held under a resource that would not list them
    resources: Mapping[ResourceName, Resource] = field(default_factory=dict)

    def offer_of(self, device_id: str) -> Offer | None:
        """The offer whose Device has this id, or None."""
        function = self.facts.host.functions.get(PciAddress(device_id))
        if function is None:
            return None
        found = self.offers.get(offers.unit_of(function), ())
        return next((offer for offer in found if offer.device.id == device_id), None)


def first(facts: Facts) -> Outcome:
    """The outcome of facts with nothing before them."""
    return following(Outcome(Facts(Host(), facts.desired, facts.names)), facts)


def following(before: Outcome, facts: Facts) -> Outcome:
    """The outcome of ``facts`` after ``before``."""
    if (before.facts.desired, before.facts.names) != (facts.desired, facts.names):
        held = {holder.resource for holder in facts.holders.values()}
        kept = {name: found for name, found in before.resources.items() if name in held}
        before = Outcome(Facts(Host(), facts.desired, facts.names), resources=kept)
    facts = replace(facts, claimed=before.claimed)
    decided, claimed = dict(before.offers), dict(before.claimed)
    by_resource = dict(before.by_resource)
    touched: set[ResourceName] = set()
    for unit in changed_units(before.facts, facts):
        old, new = decided.pop(unit, ()), offers.decide(unit, facts)
        if new:
            decided[unit] = new
        if new != old:
            touched |= _replace_part(by_resource, unit, old, new)
            _replace_claims(claimed, old, new)
    extras = _extras(by_resource.keys() | before.resources.keys(), claimed, facts)
    touched |= _differing(before.extras, extras)
    outcome = Outcome(facts, decided, by_resource, claimed, extras)
    return replace(outcome, resources=_resources(before, outcome, touched))


def changed_units(before: Facts, now: Facts) -> Iterable[Unit]:
    """The units on which something differs between two Facts of the same Desired."""
    if (
        before.host.nodes != now.host.nodes
        or before.host.iommu != now.host.iommu
        or before.host.numa_nodes != now.host.numa_nodes
        or before.holders_known != now.holders_known
    ):
        return offers.units(now.host) | offers.units(before.host)
    changed = _changed_in_host(before.host, now.host) if before.host is not now.host else set()
    ids = set(before.settling ^ now.settling)
    if before.holders is not now.holders:
        ids |= {key for key, _ in before.holders.items() ^ now.holders.items()}
    return changed | _units_of_ids(ids, now.host)


def _changed_in_host(before: Host, now: Host) -> set[Unit]:
    changed: set[Unit] = set()
    old_functions, old_groups = before.functions, before.groups
    for address, function in now.functions.items():
        old = old_functions.get(address)
        if old is not function:
            changed.add(offers.unit_of(function))
            if old is not None:
                changed.add(offers.unit_of(old))
    for address in old_functions.keys() - now.functions.keys():
        changed.add(offers.unit_of(old_functions[address]))
    changed.update(n for n, group in now.groups.items() if old_groups.get(n) is not group)
    changed.update(old_groups.keys() - now.groups.keys())
    return changed


def _units_of_ids(ids: Iterable[str], host: Host) -> set[Unit]:
    found: set[Unit] = set()
    for device_id in ids:
        function = host.functions.get(PciAddress(device_id))
        if function is not None:
            found.add(offers.unit_of(function))
        elif device_id.isdecimal():
            found.add(GroupNumber(int(device_id)))
    return found


def _replace_part(
    by_resource: dict[ResourceName, Parts],
    unit: Unit,
    old: tuple[Offer, ...],
    new: tuple[Offer, ...],
) -> set[ResourceName]:
    """Put the new offers of a unit in the place of the old; return the resources that this touches."""
    names = {offer.claim.resource for offer in (*old, *new)}
    for name in names:
        parts = dict(by_resource.get(name, {}))
        parts.pop(unit, None)
        mine = tuple(offer for offer in new if offer.claim.resource == name)
        if mine:
            parts[unit] = mine
        by_resource[name] = parts
    return names


def _replace_claims(claimed: dict[PciAddress, Claim], old: tuple[Offer, ...], new: tuple[Offer, ...]) -> None:
    for offer in old:
        for address in offer.functions:
            claimed.pop(address, None)
    for offer in new:
        claimed.update(dict.fromkeys(offer.functions, offer.claim))


def _extras(
    served: Iterable[ResourceName], claimed: Mapping[PciAddress, Claim], facts: Facts
) -> dict[ResourceName, tuple[Device, ...]]:
    """Held devices that their resource would not list any more, by resource."""
    names = {*served, *(ResourceName(rule.name) for rule in facts.desired.rules)}
    shares = {rule.name: rule for rule in facts.desired.rules if isinstance(rule, NodeRule)}
    found: dict[ResourceName, tuple[Device, ...]] = {}
    for device_id, holder in facts.holders.items():
        name = holder.resource
        claim = claimed.get(PciAddress(device_id))
        listed = claim is not None and claim.resource == name
        rule = shares.get(name)
        if name not in names or listed or (rule is not None and nodes.is_share(rule, device_id)):
            continue
        found[name] = (*found.get(name, ()), offers.held_elsewhere(device_id, holder, facts))
    return found


def _differing(before: Extras, now: Extras) -> set[ResourceName]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _resources(before: Outcome, now: Outcome, touched: set[ResourceName]) -> dict[ResourceName, Resource]:
    """All resources: those that are not touched are the same objects as before."""
    result = dict(before.resources)
    desired = now.facts.desired
    for rule in desired.rules:
        name = ResourceName(rule.name)
        if isinstance(rule, NodeRule):
            result[name] = _node_resource(rule, before, now)
        elif name not in result:
            touched.add(name)
    rules = {rule.name: rule for rule in desired.rules if isinstance(rule, PciRule)}
    for name in touched:
        if name in result and result[name].kind is Kind.NODE:
            continue
        result[name] = _pci_resource(name, rules.get(name), now)
    configured = {rule.name for rule in desired.rules}
    # What was kept only because a pod held it goes when the pod has let go.
    for name in touched - now.by_resource.keys() - configured:
        if name not in now.extras:
            del result[name]
    return result


def _node_resource(rule: NodeRule, before: Outcome, now: Outcome) -> Resource:
    name = ResourceName(rule.name)
    old = before.resources.get(name)
    same = (rule.path in before.facts.host.nodes) == (rule.path in now.facts.host.nodes)
    if old is not None and same and before.extras.get(name) == now.extras.get(name):
        return old
    fresh = nodes.resource(rule, now.facts.host.nodes)
    return replace(fresh, devices=(*fresh.devices, *now.extras.get(name, ())))


def _pci_resource(name: ResourceName, rule: PciRule | None, now: Outcome) -> Resource:
    found = [offer for part in now.by_resource.get(name, {}).values() for offer in part]
    if found:
        rule = found[0].claim.rule
    devices = offers.in_order([*now.extras.get(name, ()), *(offer.device for offer in found)])
    if rule is None:
        return Resource(name, Kind.PCI, devices)
    return Resource(name, Kind.PCI, devices, rule.isolation, rule.iommufd, rule.cdi)
