# SPDX-License-Identifier: Apache-2.0
"""Which devices to prefer when the kubelet may choose: a group first, then NUMA node, then PCIe root. Pure.

Devices are picked one after the other. The next one comes from a group of which the same pod has a part;
else from one that is begun already; else from one that lacks nothing of other resources, for the pod may ask
for one of them next; else from a group that is just what is still wanted, or from the largest that fits
wholly into it; else from where the fewest devices are left over, so that large sets stay together for those
who need them. For who wants several, a group that has as many counts as whole, whatever it lacks, if all
whole ones together have fewer: parts of several would be torn.

What a pod had a moment ago may be open, and the kubelet may have its siblings as Unhealthy yet: it comes
after all that is free and whole. Where that is too little, no group is torn for it, and what is seen to be
closed comes first; if that is just what is wanted, also before several others. A group that another pod has,
or is being given, comes last. Ties go by address: the kubelet's list has a random order.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nodeagent.base.errors import Refused
from nodeagent.model.ids import pci_order
from nodeagent.policy.offer.topology import NOWHERE, Topology, Whose


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
    pool = _Pool([topologies.get(device_id, NOWHERE) for device_id in left], wanted)
    for device_id in must:
        pool.begin(topologies.get(device_id, NOWHERE))
    picks = range(min(wanted, len(left)))
    return (*must, *(left[pool.pick(wanted - picked)] for picked in picks))


class _Choice(NamedTuple):
    """What there is to choose from, for as many as are wanted."""

    limit: Whose  # up to here all are as good as nobody's
    short: bool  # all whole groups together have fewer
    free: bool  # one whole group of nobody's has just as many

    @classmethod
    def of(cls, spots: Sequence[Topology], wanted: int) -> _Choice:
        """Of these spots."""
        closed = [spot for spot in spots if spot.whose <= Whose.LEFT]
        whole = [spot for spot in closed if not spot.lacks]
        free = [spot for spot in whole if spot.whose <= Whose.NOBODY]
        limit = Whose.LEFT if len(closed) >= wanted else Whose.LEAVING
        return cls(
            limit=Whose.NOBODY if len(free) >= wanted else limit,
            short=len(whole) < wanted,
            free=wanted in Counter(spot.group for spot in free if spot.group is not None).values(),
        )


class _Pool:
    """What is left to pick from, by position.

    Devices that rank alike stand in one row, a heap of their positions; so a pick compares the first ones
    of the rows, not all devices. The rest of a group that is begun moves to other rows; what it leaves behind
    is skipped.
    """

    def __init__(self, spots: Sequence[Topology], wanted: int) -> None:
        self._spots = spots
        self._choice = _Choice.of(spots, wanted)
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
            self._rows.setdefault((*alike, spot.whose, spot.lacks, spot.numa, spot.root), []), position
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
        spot, choice = self._spots[position], self._choice
        fresh, present = spot.group not in self._groups, self._in_group[spot.group]
        lacks, several = spot.lacks if fresh else 0, fresh and wanted > 1
        just = several and present == wanted
        as_whole = several and present >= wanted and choice.short
        whose = self._whose(spot, taken=not fresh or (just and not lacks and not choice.free))
        return (
            _place(whose, 0 if as_whole else lacks),
            fresh,
            several and present < wanted and choice.short,
            fresh and present > wanted,
            several and not just,
            lacks,
            -present if several and present < wanted else 0,
            bool(self._numas) and spot.numa not in self._numas,
            _fit(self._in_numa[spot.numa], wanted),
            bool(self._roots) and spot.root not in self._roots,
            _fit(self._in_root[spot.root], wanted),
            spot.whose,
            position,
        )

    def _whose(self, spot: Topology, *, taken: bool) -> Whose:
        """By whose it ranks: what was left is as good as nobody's if it is needed or ``taken`` together."""
        left = spot.whose is Whose.LEFT and taken
        needed = Whose.NOBODY < spot.whose <= self._choice.limit
        return Whose.NOBODY if left or needed else spot.whose


def _place(whose: Whose, lacks: int) -> tuple[Whose, int, Whose]:
    """By whose it is; nobody's group that lacks something comes after a whole one that was left.

    Who wants more of such a group than it has gets a part of another one, too.
    """
    later = lacks > 0 and whose is Whose.NOBODY
    return (Whose.LEFT if later else whose, lacks, whose)


def _fit(present: int, wanted: int) -> tuple[bool, int]:
    """Best fit: first what is large enough, the smallest of it; else the largest."""
    enough = present >= wanted
    return (not enough, present if enough else -present)
