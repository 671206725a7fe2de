# SPDX-License-Identifier: Apache-2.0
"""Chooses devices for GetPreferredAllocation among the devices that the kubelet may allocate. Pure.

Devices are chosen by IOMMU group, because no other pod can use the rest of a group. A group in which the pod
under admission has a device comes first, then a group of which a device is chosen already. The other groups
are ranked in this order:

1. No other pod uses a device of the group.
2. The group has exactly as many devices as are still missing.
3. The group has more Healthy devices of other resources: the pod may request one of those next, and the
   kubelet requests one resource after the other. Of each other resource, at most as many devices count as are
   still missing.
4. The group is the smallest one with enough devices, or else the largest one.
5. No pod released the group a moment ago: the kubelet may still list its other devices as Unhealthy, and a
   container of the former pod may have it open.
6. The group is on the NUMA node, and then on the PCIe root port, of the devices chosen so far, or on one with
   enough devices.
7. The group has the lowest address, because the kubelet's list has a random order.

``agent.allocate`` calls this module for the kubelet, ``explain.machines`` to show the devices that a VM would
get.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.ids import GroupNumber, ResourceName, pci_order
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import units
from nodeagent.policy.offer.turn import Decision


class GroupUse(Enum):
    """The use of a device's group."""

    SAME_POD = auto()  # by the pod under admission, with another resource
    FREE = auto()
    RELEASED = auto()  # free since a moment ago
    OTHER_POD = auto()


class Place(NamedTuple):
    """The place of a device; ``siblings``: the numbers of Healthy devices of other resources in its group."""

    group: GroupNumber | None = None
    numa: int | None = None
    root: str = ""
    use: GroupUse = GroupUse.FREE
    siblings: tuple[int, ...] = ()


NOWHERE = Place()


def find_places(
    ids: Iterable[str],
    resource: Resource,
    decision: Decision,
    released: frozenset[str] = frozenset(),
    *,
    same_pod: bool,
) -> dict[str, Place]:
    """The place of each of these devices; ``NOWHERE`` for a device that the host does not have.

    ``released`` are ids released a moment ago. ``same_pod``: the pod under admission has requested devices
    before.
    """
    snapshot, places = decision.snapshot, dict[str, Place]()
    for device_id in ids:
        host_device, device = snapshot.host.device(device_id), resource.device(device_id)
        if host_device is None:
            places[device_id] = NOWHERE
            continue
        root = host_device.pcie_root if isinstance(host_device, PciFunction) else ""
        place = Place(numa=host_device.numa_node, root=root)
        if device is None or not device.healthy:  # since a moment ago: the kubelet does not know it yet
            places[device_id] = place._replace(use=GroupUse.OTHER_POD)
            continue
        places[device_id] = place._replace(
            group=host_device.group,
            use=_group_use(host_device, resource.name, snapshot, released, same_pod=same_pod),
            siblings=_siblings(host_device, resource.name, decision),
        )
    return places


def _group_use(
    host_device: HostDevice,
    resource: ResourceName,
    snapshot: Snapshot,
    released: frozenset[str],
    *,
    same_pod: bool,
) -> GroupUse:
    """The use of the device's group. A pod cannot get two devices of one resource from the same group."""
    unit = units.find_unit_id(host_device)
    if host_device.group is None:  # a USB device is isolated by itself, although all of them are one unit
        ids: tuple[str, ...] = (host_device.id,)
        holder = snapshot.holder(host_device.id)
        holders = {} if holder is None else {host_device.id: holder}
    else:
        ids = units.find_ids(unit, snapshot.host)
        holders = units.find_holders(unit, snapshot)
    if not holders:
        return GroupUse.FREE if released.isdisjoint(ids) else GroupUse.RELEASED
    own = snapshot.reservations.admitting if same_pod else frozenset()
    if all(each.allocated_id(id_) in own and each.resource != resource for id_, each in holders.items()):
        return GroupUse.SAME_POD
    return GroupUse.OTHER_POD


def _siblings(host_device: HostDevice, resource: ResourceName, decision: Decision) -> tuple[int, ...]:
    """The number of Healthy devices of each other resource in its group."""
    if host_device.group is None:
        return ()
    offers = (each for each in decision.offers.get(host_device.group, ()) if each.device.healthy)
    names = (each.match.resource for each in offers)
    return tuple(Counter(name for name in names if name != resource).values())


def choose(
    available: Sequence[str], must: Sequence[str], size: int, places: Mapping[str, Place]
) -> tuple[str, ...]:
    """Exactly ``size`` ids out of ``available``, which begin with all ids of ``must``.

    Fewer are returned only if ``available`` has fewer.

    :raises AllocationRefused: if ``must`` is larger than ``size``.
    """
    if len(must) > size:
        raise AllocationRefused(
            f"number of MustIncludeDeviceIDs ({len(must)}) exceeds allocation size ({size})"
        )
    chosen = list(must)
    groups: dict[GroupNumber | str, list[str]] = {}
    for device_id in sorted({*available}.difference(must), key=pci_order):
        group = places.get(device_id, NOWHERE).group
        groups.setdefault(device_id if group is None else group, []).append(device_id)
    while groups and len(chosen) < size:
        left = [[places.get(each, NOWHERE) for each in ids] for ids in groups.values()]
        near = [places.get(each, NOWHERE) for each in chosen]
        ranks = _ranks(left, near, size - len(chosen))
        _, best = min(zip(ranks, groups, strict=True), key=lambda each: each[0])
        chosen += groups.pop(best)[: size - len(chosen)]
    return tuple(chosen)


def _ranks(
    groups: Sequence[Sequence[Place]], chosen: Sequence[Place], wanted: int
) -> Iterable[tuple[object, ...]]:
    """The rank of each IOMMU group, from the places of its devices; the lowest rank is the best."""
    begun = {place.group for place in chosen} - {None}
    numas = {place.numa for place in chosen} - {None}
    roots = {place.root for place in chosen} - {""}
    in_numa = Counter(place.numa for group in groups for place in group)
    in_root = Counter(place.root for group in groups for place in group)
    for group in groups:
        place, count = group[0], len(group)
        yield (
            place.use is not GroupUse.SAME_POD,
            place.group not in begun,
            place.use is GroupUse.OTHER_POD,
            count < wanted,
            -sum(min(each, wanted) for each in place.siblings),
            _fit(count, wanted),
            place.use is GroupUse.RELEASED,
            bool(numas) and place.numa not in numas,
            _fit(in_numa[place.numa], wanted),
            bool(roots) and place.root not in roots,
            _fit(in_root[place.root], wanted),
        )


def _fit(count: int, wanted: int) -> tuple[bool, int]:
    """A sort key for the best fit: the smallest count that is large enough, or else the largest count."""
    return (count < wanted, count if count >= wanted else -count)
