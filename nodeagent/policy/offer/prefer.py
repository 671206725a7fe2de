# SPDX-License-Identifier: Apache-2.0
"""Which devices to prefer when the kubelet may choose: a group first, then NUMA node, then PCIe root. Pure.

Devices are picked one after the other. The next one comes from a group of which the same pod has a part;
else from one that is begun already; else from one that lacks nothing of other resources, for the pod may ask
for one of them next; else from a group that is just what is still wanted, or is so together with other whole
ones, the largest first; else from one that has more, the smallest first, so that large sets stay together for
those who need them, and only then from one that has less. For who wants several, a group that has as many
counts as whole, whatever it lacks, if all whole ones together have fewer: parts of several would be torn.

What a pod had a moment ago may be open, and the kubelet may have its siblings as Unhealthy yet: it comes
after all that is free and whole. Where that is too little, no group is torn for it, and what is seen to be
closed comes first; if that is just what is wanted, also before several others. A group that another pod has,
or is being given, comes last. Ties go by address: the kubelet's list has a random order.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import IntEnum
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


class _Fit(IntEnum):
    """How what a group has fits what is still wanted, the best first."""

    JUST = 0
    WITH_OTHERS = 1  # it and other whole ones have just what is wanted
    MORE = 2
    LESS = 3  # whatever comes with it is torn


class _Choice(NamedTuple):
    """What there is to choose from, for as many as are wanted."""

    limit: Whose  # up to here all are as good as nobody's
    short: bool  # all whole groups together have fewer
    free: bool  # one whole group of nobody's has just as many

    @classmethod
    def of(cls, spots: Sequence[Topology], wanted: int) -> _Choice:
        """Of these spots."""
        closed = [spot for spot in spots if spot.whose <= Whose.LEFT]
        whole = [spot for spot in closed if _whole(spot)]
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
    is skipped. What has no group is alone in one.
    """

    def __init__(self, spots: Sequence[Topology], wanted: int) -> None:
        self._spots = spots
        self._choice = _Choice.of(spots, wanted)
        self._in_numa = Counter(spot.numa for spot in spots)
        self._in_root = Counter(spot.root for spot in spots)
        self._groups: set[int | str] = set()  # begun, as are the next two
        self._numas: set[int] = set()
        self._roots: set[str] = set()
        self._members: dict[int | str, list[int]] = {}
        for position, spot in enumerate(spots):
            if spot.group is not None:
                self._members.setdefault(spot.group, []).append(position)
        firsts = (spots[positions[0]] for positions in self._members.values())
        alone = (spot for spot in spots if spot.group is None)
        self._sizes = Counter(self._size(spot) for spot in (*firsts, *alone) if _whole(spot))  # not begun
        self._rows: dict[tuple[object, ...], list[int]] = {}
        for position, spot in enumerate(spots):
            self._line_up(position, self._size(spot))

    def _size(self, spot: Topology) -> int:
        """How many its group has that is not begun."""
        return 1 if spot.group is None else len(self._members.get(spot.group, ()))

    def _line_up(self, position: int, *alike: object) -> None:
        spot = self._spots[position]
        heapq.heappush(
            self._rows.setdefault((*alike, spot.whose, spot.lacks, spot.numa, spot.root), []), position
        )

    def begin(self, spot: Topology, taken: int | None = None) -> None:
        """A device at this spot is chosen, the one ``taken`` from here: what is near to it comes next."""
        if spot.numa is not None:
            self._numas.add(spot.numa)
        if spot.root:
            self._roots.add(spot.root)
        if spot.group in self._groups:
            return
        if _whole(spot) and (size := self._size(spot)):
            self._sizes[size] -= 1
        if spot.group is not None:
            self._groups.add(spot.group)
            for position in self._members.get(spot.group, ()):
                if position != taken:
                    self._line_up(position, "begun")

    def pick(self, wanted: int) -> int:
        """Take the best position while ``wanted`` devices are still to be chosen."""
        rows = [row for alike, row in self._rows.items() if self._trimmed(row, begun=alike[0] == "begun")]
        row = min(rows, key=lambda row: self._rank(row[0], wanted))
        position = heapq.heappop(row)
        spot = self._spots[position]
        self._in_numa[spot.numa] -= 1
        self._in_root[spot.root] -= 1
        self.begin(spot, position)
        return position

    def _trimmed(self, row: list[int], *, begun: bool) -> bool:
        """Drop what has moved to another row; False if nothing is left in this one."""
        while row and not begun and self._spots[row[0]].group in self._groups:
            heapq.heappop(row)
        return bool(row)

    def _rank(self, position: int, wanted: int) -> tuple[object, ...]:
        spot, choice = self._spots[position], self._choice
        fresh, size = spot.group not in self._groups, self._size(spot)
        fits = self._fits(spot, wanted) if fresh else _Fit.JUST
        lacks, several = spot.lacks if fresh else 0, fresh and wanted > 1
        as_whole = several and choice.short and size >= wanted
        taken = not fresh or (several and fits is _Fit.JUST and not lacks and not choice.free)
        return (
            _place(self._whose(spot, taken=taken), 0 if as_whole else lacks),
            fresh,
            fits,
            lacks,
            fresh and (size if fits is _Fit.MORE else -size),
            bool(self._numas) and spot.numa not in self._numas,
            _fit(self._in_numa[spot.numa], wanted),
            bool(self._roots) and spot.root not in self._roots,
            _fit(self._in_root[spot.root], wanted),
            spot.whose,
            position,
        )

    def _fits(self, spot: Topology, wanted: int) -> _Fit:
        size = self._size(spot)
        if size >= wanted:
            return _Fit.JUST if size == wanted else _Fit.MORE
        return _Fit.WITH_OTHERS if _whole(spot) and self._filled(wanted - size, size) else _Fit.LESS

    def _filled(self, wanted: int, beside: int) -> bool:
        """True if some whole groups, beside one of that size, have just so many together."""
        sums = 1  # bit n: some have n
        for size, count in self._sizes.items():
            for _ in range(min(count - (size == beside), wanted // size)):
                sums |= sums << size
        return bool(sums >> wanted & 1)

    def _whose(self, spot: Topology, *, taken: bool) -> Whose:
        """By whose it ranks: what was left is as good as nobody's if it is needed or ``taken`` together."""
        left = spot.whose is Whose.LEFT and taken
        needed = Whose.NOBODY < spot.whose <= self._choice.limit
        return Whose.NOBODY if left or needed else spot.whose


def _whole(spot: Topology) -> bool:
    """True if its group lacks nothing, and is nobody's or seen to be closed."""
    return not spot.lacks and spot.whose <= Whose.LEFT


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
