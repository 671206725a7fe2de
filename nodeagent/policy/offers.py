# SPDX-License-Identifier: Apache-2.0
"""From Host × Desired × Allocations to Resources: which devices are offered, with what health. Pure.

The unit of decision is the IOMMU group (a function without a group is a unit of its own): only what is in
one group can change the verdict on its functions. So a turn decides anew the units that changed and keeps
the offers of all others; the result equals a decision from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.model.allocation import Holder
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName, pci_address, pci_order
from nodeagent.model.resource import Device, Isolation, Reason, ReasonCode
from nodeagent.policy import claims, health
from nodeagent.policy.claims import Claim, PciNames

Unit = GroupNumber | PciAddress
"""What is decided at once: a group, or a function that has none."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A Device of a resource, and the functions that it stands for (several with ``isolation: bundle``)."""

    claim: Claim
    device: Device
    functions: tuple[PciAddress, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """What offers depend on."""

    host: Host
    desired: Desired
    names: PciNames = field(default_factory=dict)
    holders: Mapping[str, Holder] = field(default_factory=dict)
    holders_known: bool = False
    settling: frozenset[str] = frozenset()
    claimed: Mapping[PciAddress, Claim] = field(default_factory=dict)  # of the turn before


def unit_of(function: PciFunction) -> Unit:
    """The unit in which a function is decided."""
    return function.address if function.group is None else function.group


def units(host: Host) -> dict[Unit, None]:
    """All units of a host that hold PCI functions, in address order of their first function."""
    return {unit_of(function): None for function in host.functions.values()}


def decide(unit: Unit, facts: Facts) -> tuple[Offer, ...]:
    """The offers of one unit, in address order."""
    situation = _situation(unit, facts)
    taken = [
        (function, found)
        for function in situation.members
        if (found := _claim(function, situation, facts)) is not None
    ]
    bundles: dict[ResourceName, list[PciFunction]] = {}
    offers: list[Offer] = []
    for function, found in taken:
        if found.rule.isolation is Isolation.BUNDLE:
            bundles.setdefault(found.resource, []).append(function)
        else:
            offers.append(_offer(found, (function,), situation, facts))
    for name, functions in bundles.items():
        first = next(found for _, found in taken if found.resource == name)
        offers.append(_offer(first, tuple(functions), situation, facts))
    return tuple(offers)


def _claim(function: PciFunction, situation: health.Situation, facts: Facts) -> Claim | None:
    """The claim of now; else the one of before: what was offered stays listed while it exists."""
    return claims.claim(function, situation.group, facts.desired, facts.names) or facts.claimed.get(
        function.address
    )


def _situation(unit: Unit, facts: Facts) -> health.Situation:
    host = facts.host
    if isinstance(unit, str):
        function = host.functions.get(unit)
        members: tuple[PciFunction, ...] = ()
        if function is not None and function.group is None:  # else a group has taken it in
            members = (function,)
        group = None
    else:
        group = host.groups.get(unit)
        members = host.members(unit) if group is not None else _members_of_unread(unit, host)
    ids: list[str] = [member.address for member in members]
    if group is not None:
        ids = [*group.members, str(group.number)]
    return health.Situation(
        group=group,
        members=members,
        holders={found: facts.holders[found] for found in ids if found in facts.holders},
        holders_known=facts.holders_known,
        settling=facts.settling.intersection(ids) if facts.settling else frozenset(),
        nodes=host.nodes,
        iommu=host.iommu,
    )


def _members_of_unread(number: GroupNumber, host: Host) -> tuple[PciFunction, ...]:
    """The functions that name a group which itself could not be read: they are not forgotten for that."""
    return tuple(function for function in host.functions.values() if function.group == number)


def _offer(
    found: Claim, functions: tuple[PciFunction, ...], situation: health.Situation, facts: Facts
) -> Offer:
    addresses = tuple(function.address for function in functions)
    terms = health.Terms(found.rule.isolation, found.rule.iommufd, found.resource, addresses)
    reasons = (health.reason(function, situation, terms) for function in functions)
    first = functions[0]
    device = Device(
        id=DeviceId(first.address),
        reason=next((reason for reason in reasons if reason is not None), None),
        numa=announced_numa(first.numa_node, facts.host.numa_nodes),
    )
    return Offer(found, device, addresses)


def announced_numa(node: int | None, present: frozenset[int]) -> int | None:
    """The NUMA node to announce: one that the host has, else none (a wrong one makes pods unschedulable)."""
    return node if node is not None and node in present else None


def held_elsewhere(device_id: str, holder: Holder, facts: Facts) -> Device:
    """A device that a pod holds under a resource that would not list it any more: gone, or no longer fitting.

    Dropping such an id can crash the kubelet (seen on 1.36.2), so it stays listed until it is released.
    """
    function = facts.host.functions.get(PciAddress(device_id))
    if function is None:
        left = _gone(holder) if pci_address(device_id) is not None else _excluded(holder)
        return Device(DeviceId(device_id), left, holder.numa)
    reason = health.reason(function, _situation(unit_of(function), facts), health.Terms())
    numa = announced_numa(function.numa_node, facts.host.numa_nodes)
    return Device(DeviceId(device_id), reason or _excluded(holder), numa)


def _gone(holder: Holder) -> Reason:
    return Reason(
        ReasonCode.GONE,
        f"it is no longer on this machine, and {holder} still has it",
        f"stop {holder}; re-plug the card or look at the kernel log if it should be there",
    )


def _excluded(holder: Holder) -> Reason:
    return Reason(
        ReasonCode.EXCLUDED,
        f"no rule offers it under this name any more, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )


def in_order(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The stable order of a list: by address, each id once."""
    unique = {device.id: device for device in devices}
    return tuple(sorted(unique.values(), key=lambda device: pci_order(device.id)))
