# SPDX-License-Identifier: Apache-2.0
"""From Host × Desired × Allocations to Resources: which devices are offered, with what health. Pure.

The unit of decision is the IOMMU group (what has no group is a unit of its own): only what is in one group
can change the verdict on its functions and mdevs. So a turn decides anew the units that changed and keeps
the offers of all others; the result equals a decision from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, Host, HostDevice, Mdev, PciFunction
from nodeagent.model.ids import DeviceId, GroupNumber, ResourceName, mdev_uuid, pci_address, pci_order
from nodeagent.model.resource import Device, Isolation, Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups, selectors
from nodeagent.policy.offer import health, matches
from nodeagent.policy.offer.matches import Match

Unit = GroupNumber | str
"""What is decided at once: a group, or the id of a part that has none."""

Taken = tuple[HostDevice, Match]
NOTHING: Mapping[str, Match] = {}


@dataclass(frozen=True, slots=True)
class Offer:
    """A Device of a resource, and the parts that it stands for (several with ``isolation: bundle``)."""

    match: Match
    device: Device
    host_devices: tuple[str, ...]


def unit_of(host_device: HostDevice) -> Unit:
    """The unit in which a part is decided."""
    return host_device.id if host_device.group is None else host_device.group


def units(host: Host) -> dict[Unit, None]:
    """All units of a host, those with PCI functions first and in address order."""
    found: dict[Unit, None] = {unit_of(function): None for function in host.functions.values()}
    found.update((unit_of(mdev), None) for mdev in host.mdevs.values())
    return found | dict.fromkeys(host.groups)


def decide(unit: Unit, snapshot: Snapshot, matched: Mapping[str, Match] = NOTHING) -> tuple[Offer, ...]:
    """The offers of one unit, in address order; ``matched`` is what was offered before."""
    state = _state(unit, snapshot)
    host_devices: tuple[HostDevice, ...] = state.members
    if state.mdevs:
        host_devices = (*host_devices, *state.mdevs)
    offers: list[Offer] = []
    bundles: dict[ResourceName, list[Taken]] = {}
    for host_device in host_devices:
        found = _match(host_device, state, snapshot) or matched.get(host_device.id)
        if found is None:
            continue
        if found.rule.isolation is Isolation.BUNDLE:
            bundles.setdefault(found.resource, []).append((host_device, found))
        else:
            offers.append(_offer([(host_device, found)], state, snapshot))
    return (*offers, *(_offer(bundle, state, snapshot) for bundle in bundles.values()))


def _match(host_device: HostDevice, state: health.UnitState, snapshot: Snapshot) -> Match | None:
    return matches.match_of(host_device, state.group, snapshot.desired, snapshot.names)


def _state(unit: Unit, snapshot: Snapshot) -> health.UnitState:
    group = None if isinstance(unit, str) else snapshot.host.groups.get(unit)
    functions, mdevs = _members(unit, group, snapshot.host)
    ids: list[str] = [*(function.address for function in functions), *(mdev.uuid for mdev in mdevs)]
    if group is not None:
        ids = [*group.members, groups.whole(group.number)]
    return health.UnitState(
        group=group,
        members=functions,
        mdevs=mdevs,
        holders={
            found: snapshot.allocations.holders[found]
            for found in ids
            if found in snapshot.allocations.holders
        },
        holders_known=snapshot.allocations.complete,
        settling=snapshot.reservations.settling.intersection(ids)
        if snapshot.reservations.settling
        else frozenset(),
        nodes=snapshot.host.nodes,
        iommu=snapshot.host.iommu,
    )


def _members(unit: Unit, group: Group | None, host: Host) -> tuple[tuple[PciFunction, ...], tuple[Mdev, ...]]:
    """The functions and the mdevs of a unit. A group that cannot be read has those that name it."""
    if group is not None:
        functions = host.members(group.number)
        if len(functions) == len(group.members):
            return functions, ()
        return functions, tuple(
            host_device for host_device in host.devices_in(group.number) if isinstance(host_device, Mdev)
        )
    if not isinstance(unit, str):
        return (
            tuple(function for function in host.functions.values() if function.group == unit),
            tuple(mdev for mdev in host.mdevs.values() if mdev.group == unit),
        )
    host_device = host.device(unit)
    if host_device is None or host_device.group is not None:  # a group has taken it in
        return (), ()
    return ((), (host_device,)) if isinstance(host_device, Mdev) else ((host_device,), ())


def _offer(taken: Sequence[Taken], state: health.UnitState, snapshot: Snapshot) -> Offer:
    ids = tuple(host_device.id for host_device, _ in taken)
    first, found = taken[0]
    reasons = (health.reason(host_device, state, _handout(match, ids)) for host_device, match in taken)
    device = Device(
        id=DeviceId(first.id),
        reason=next((reason for reason in reasons if reason is not None), None),
        numa=_numa(first, snapshot),
    )
    return Offer(found, device, ids)


def _handout(found: Match, ids: tuple[str, ...]) -> health.Handout:
    return health.Handout(found.rule.isolation, found.rule.iommufd, found.resource, ids, found.type_id)


def _numa(host_device: HostDevice, snapshot: Snapshot) -> int | None:
    """The NUMA node to announce; of an mdev on its way out it is what the kubelet was told before."""
    if isinstance(host_device, Mdev) and host_device.leaving:
        holder = snapshot.allocations.holders.get(host_device.uuid)
        return holder.numa if holder is not None else None
    return announced_numa(host_device.numa_node, snapshot.host.numa_nodes)


def announced_numa(node: int | None, present: frozenset[int]) -> int | None:
    """The NUMA node to announce: one that the host has, else none (a wrong one makes pods unschedulable)."""
    return node if node is not None and node in present else None


def held_elsewhere(device_id: str, holder: Holder, snapshot: Snapshot) -> Device:
    """A device that a pod holds under a resource that would not list it any more: gone, or no longer fitting.

    Dropping such an id can crash the kubelet (seen on 1.36.2), so it stays listed until it is released.
    """
    host_device = snapshot.host.device(device_id)
    if host_device is None:
        ours = pci_address(device_id) is not None or mdev_uuid(device_id) is not None
        return Device(DeviceId(device_id), _gone(holder) if ours else _excluded(holder), holder.numa)
    reason = health.reason(host_device, _state(unit_of(host_device), snapshot), health.Handout())
    left = _other_type(host_device, holder, snapshot) or _excluded(holder)
    return Device(DeviceId(device_id), reason or left, _numa(host_device, snapshot))


def _other_type(host_device: HostDevice, holder: Holder, snapshot: Snapshot) -> Reason | None:
    """Why a rule by type does not offer the part any more, if it is for its type."""
    kind = matches.type_of(host_device)
    rules = [rule for rule in snapshot.desired.rules if rule.name == holder.resource]
    if kind is None or not rules or any(selectors.picks(rule, host_device, snapshot.names) for rule in rules):
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type is {kind} now, which {holder.resource} does not offer, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )


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
