# SPDX-License-Identifier: Apache-2.0
"""Which devices to prefer when the kubelet may choose: a group first, then NUMA node, then PCIe root. Pure.

Devices are picked one after the other. The next one comes from a group of which the same pod has a part;
else from one that is begun already; else from one whose devices of other resources are in order, too, for
the pod may ask for one of them next; else from a group that is just what is still wanted, or fits wholly
into it; else from where the fewest devices are left over, so that large sets stay together for those who
need them. What a pod had a moment ago may be open, and the kubelet may have its siblings as Unhealthy yet:
it comes after all that is free and whole; where that is too little, no group is torn for it, and what is
seen to be closed comes first. A group that another pod has, or is being given, comes last. Ties go by
address: the kubelet's list has a random order.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, HostDevice, PciFunction
from nodeagent.model.ids import ResourceName, pci_order
from nodeagent.model.resource import Resource, Resources
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import kinds, units


class Whose(IntEnum):
    """Who has something of a device's group, the best first."""

    ASKER = 0  # the pod that asks, of another resource
    NOBODY = 1
    LEFT = 2  # as the next, but all of the group is seen to be closed; what is alone in its group is nobody's
    LEAVING = 3  # a pod that was forgotten a moment ago
    ANOTHER = 4


class Topology(NamedTuple):
    """Where a device sits, and among whose."""

    group: int | str | None = None
    numa: int | None = None
    root: str = ""
    whose: Whose = Whose.NOBODY
    whole: bool = True  # nothing of its group that another resource has is out of order


NO_TOPOLOGY = Topology()
Partial = frozenset[int | str]
"""Groups of which another resource has something that is Unhealthy."""


def topology(
    device_id: str,
    resource: Resource,
    snapshot: Snapshot,
    lately: frozenset[str] = frozenset(),
    partial: Partial = frozenset(),
    *,
    same: bool,
) -> Topology:
    """Where a device of this host sits; nowhere, if the host has none of that id.

    ``lately`` are ids that pods had which the kubelet has forgotten a moment ago. ``partial`` are groups that
    lack something of another resource. ``same``: the pod that is being admitted asks again. A device that
    turned Unhealthy a moment ago comes last: the kubelet does not know it yet.
    """
    host_device = snapshot.host.device(device_id)
    if host_device is None:
        return NO_TOPOLOGY
    function = kinds.of(host_device).function(host_device, snapshot.host)
    root = "" if function is None else function.pcie_root
    mine = snapshot.reservations.settling if same else frozenset()
    holders = _holders(host_device, snapshot)
    device = resource.device(device_id)
    usable = device is not None and device.healthy
    whose = _whose(holders, resource.name, mine) if usable else Whose.ANOTHER
    if whose is Whose.NOBODY and lately:
        whose = _since_lately(host_device, snapshot, lately)
    return Topology(host_device.group, host_device.numa_node, root, whose, host_device.group not in partial)


def partial(resource: ResourceName, resources: Resources, host: Host) -> Partial:
    """The groups of which another resource has something that is Unhealthy."""
    others = (each.devices for name, each in resources.items() if name != resource)
    unhealthy = (host.device(device.id) for devices in others for device in devices if not device.healthy)
    return frozenset(each.group for each in unhealthy if each is not None and each.group is not None)


def _holders(host_device: HostDevice, snapshot: Snapshot) -> Mapping[str, Holder]:
    """Who has something of its group; what has no group shares none, though all USB devices are one unit."""
    holders = units.holders_in(units.unit_of(host_device), snapshot)
    if host_device.group is not None:
        return holders
    return {each: holder for each, holder in holders.items() if each == host_device.id}


def _whose(holders: Mapping[str, Holder], resource: ResourceName, mine: frozenset[str]) -> Whose:
    """Of the same resource the asker takes nothing twice of one group."""
    if not holders:
        return Whose.NOBODY
    others = (holder.got(each) not in mine or holder.resource == resource for each, holder in holders.items())
    return Whose.ANOTHER if any(others) else Whose.ASKER


def _since_lately(host_device: HostDevice, snapshot: Snapshot, lately: frozenset[str]) -> Whose:
    """Whose it is that nobody has: something of the group may have been a pod's a moment ago.

    It may be open yet. And the others of its group were Unhealthy: the kubelet may have them so yet.
    """
    members = snapshot.host.devices_in(host_device.group) or (host_device,)
    if all(lately.isdisjoint((each.id, str(each.group))) for each in members):
        return Whose.NOBODY
    if not all(isinstance(each, PciFunction) and not groups.uncertain(each) for each in members):
        return Whose.LEAVING
    return Whose.LEFT if len(members) > 1 else Whose.NOBODY


def choose(
    available: Sequence[str], must: Sequence[str], size: int, topologies: Mapping[str, Topology]
) -> tuple[str, ...]:
    """Exactly ``size`` ids out of ``available``, all of ``must`` first.

    Fewer come back only if ``available`` holds fewer.

    :raises Refused: if ``must`` is larger than ``size``.
    """
    if len(must) > size:
        raise Refused(f"number of MustIncludeDeviceIDs ({len(must)}) exceeds allocation size ({size})")
    included = frozenset(must)
    left = sorted({*available} - included, key=pci_order)
    wanted = size - len(must)
    pool = _Pool([topologies.get(device_id, NO_TOPOLOGY) for device_id in left], wanted)
    for device_id in must:
        pool.begin(topologies.get(device_id, NO_TOPOLOGY))
    picks = range(min(wanted, len(left)))
    return (*must, *(left[pool.pick(wanted - picked)] for picked in picks))


class _Pool:
    """What is left to pick from, by position.

    Devices that rank alike stand in one row, a heap of their positions; so a pick compares the first ones
    of the rows, not all devices. The rest of a group that is begun moves to other rows; what it leaves behind
    is skipped.
    """

    def __init__(self, spots: Sequence[Topology], wanted: int) -> None:
        self._spots = spots
        self._limit = _limit(spots, wanted)
        self._in_group = Counter(spot.group for spot in spots)
        self._in_numa = Counter(spot.numa for spot in spots)
        self._in_root = Counter(spot.root for spot in spots)
        self._groups: set[int | str] = set()  # begun, as are the next two
        self._numas: set[int] = set()
        self._roots: set[str] = set()
        self._members: dict[int | str, list[int]] = {}
        self._rows: dict[tuple[object, ...], list[int]] = {}
        for position, spot in enumerate(spots):
            self._line_up(position, spot.group is None, self._in_group[spot.group])
            if spot.group is not None:
                self._members.setdefault(spot.group, []).append(position)

    def _line_up(self, position: int, *alike: object) -> None:
        spot = self._spots[position]
        heapq.heappush(
            self._rows.setdefault((*alike, spot.whose, spot.whole, spot.numa, spot.root), []), position
        )

    def begin(self, spot: Topology) -> None:
        """A device at this spot is chosen: what is near to it comes next."""
        if spot.numa is not None:
            self._numas.add(spot.numa)
        if spot.root:
            self._roots.add(spot.root)
        if spot.group is not None and spot.group not in self._groups:
            self._groups.add(spot.group)
            for position in self._members.get(spot.group, ()):
                self._line_up(position, "begun")

    def pick(self, wanted: int) -> int:
        """Take the best position while ``wanted`` devices are still to be chosen."""
        rows = [row for alike, row in self._rows.items() if self._trimmed(row, begun=alike[0] == "begun")]
        row = min(rows, key=lambda row: self._rank(row[0], wanted))
        position = heapq.heappop(row)
        spot = self._spots[position]
        self._in_group[spot.group] -= 1
        self._in_numa[spot.numa] -= 1
        self._in_root[spot.root] -= 1
        if spot.group is not None and spot.group not in self._groups:
            self._members[spot.group].remove(position)
        self.begin(spot)
        return position

    def _trimmed(self, row: list[int], *, begun: bool) -> bool:
        """Drop what has moved to another row; False if nothing is left in this one."""
        while row and not begun and self._spots[row[0]].group in self._groups:
            heapq.heappop(row)
        return bool(row)

    def _rank(self, position: int, wanted: int) -> tuple[object, ...]:
        spot = self._spots[position]
        fresh, present = spot.group not in self._groups, self._in_group[spot.group]
        partial = fresh and not spot.whole
        late = spot.whose in (Whose.LEFT, Whose.LEAVING)
        whose = Whose.NOBODY if late and spot.whose <= self._limit else spot.whose
        return (
            _place(whose, partial=partial and not 1 < wanted == present),
            fresh,
            fresh and present > wanted,
            fresh and 1 < wanted != present,
            bool(self._numas) and spot.numa not in self._numas,
            _fit(self._in_numa[spot.numa], wanted),
            bool(self._roots) and spot.root not in self._roots,
            _fit(self._in_root[spot.root], wanted),
            partial,
            late and spot.whose,
            position,
        )


def _limit(spots: Sequence[Topology], wanted: int) -> Whose:
    """Whose devices are as good as nobody's, for without them there are too few."""
    enough = (w for w in (Whose.NOBODY, Whose.LEFT) if sum(spot.whose <= w for spot in spots) >= wanted)
    return next(enough, Whose.LEAVING)


def _place(whose: Whose, *, partial: bool) -> tuple[Whose, bool, Whose]:
    """By whose it is; of nobody's devices, those of a partial group come after a whole one that was left.

    Who wants more of a partial group than it has gets a part of another one, too.
    """
    later = partial and whose is Whose.NOBODY
    return (Whose.LEFT if later else whose, partial, whose)


def _fit(present: int, wanted: int) -> tuple[bool, int]:
    """Best fit: first what is large enough, the smallest of it; else the largest."""
    enough = present >= wanted
    return (not enough, present if enough else -present)
