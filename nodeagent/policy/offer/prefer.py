# SPDX-License-Identifier: Apache-2.0
"""Which devices to prefer when the kubelet may choose: a group first, then NUMA node, then PCIe root. Pure.

Devices are picked one after the other. The next one comes from a group of which the same pod has a part;
else from one that is begun already; else from one that lacks nothing of other resources, for the pod may ask
for one of them next; else from a group that is just what is still wanted, or fits wholly into it; else from
where the fewest devices are left over, so that large sets stay together for those who need them. What a pod
had a moment ago may be open, and the kubelet may have its siblings as Unhealthy yet: it comes after all that
is free and whole; where that is too little, no group is torn for it, and what is seen to be closed comes
first. A group that another pod has, or is being given, comes last. Ties go by address: the kubelet's list has
a random order.
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
    """How much there is to choose from."""

    limit: Whose  # up to here all are as good as nobody's
    roomy: bool  # a whole group has all that is wanted


class _Pool:
    """What is left to pick from, by position.

    Devices that rank alike stand in one row, a heap of their positions; so a pick compares the first ones
    of the rows, not all devices. The rest of a group that is begun moves to other rows; what it leaves behind
    is skipped.
    """

    def __init__(self, spots: Sequence[Topology], wanted: int) -> None:
        self._spots = spots
        self._choice = _Choice(_limit(spots, wanted), _roomy(spots, wanted))
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
        spot = self._spots[position]
        fresh, present = spot.group not in self._groups, self._in_group[spot.group]
        lacks = spot.lacks if fresh else 0
        just = not self._choice.roomy and 1 < wanted == present
        late = spot.whose in (Whose.LEFT, Whose.LEAVING)
        whose = Whose.NOBODY if late and spot.whose <= self._choice.limit else spot.whose
        return (
            _place(whose, 0 if just else lacks),
            fresh,
            fresh and present > wanted,
            fresh and 1 < wanted != present,
            lacks,
            bool(self._numas) and spot.numa not in self._numas,
            _fit(self._in_numa[spot.numa], wanted),
            bool(self._roots) and spot.root not in self._roots,
            _fit(self._in_root[spot.root], wanted),
            late and spot.whose,
            position,
        )


def _limit(spots: Sequence[Topology], wanted: int) -> Whose:
    """Whose devices are as good as nobody's, for without them there are too few."""
    enough = (w for w in (Whose.NOBODY, Whose.LEFT) if sum(spot.whose <= w for spot in spots) >= wanted)
    return next(enough, Whose.LEAVING)


def _roomy(spots: Sequence[Topology], wanted: int) -> bool:
    """True if a group that lacks nothing has all that is wanted, and is nobody's or seen to be closed."""
    whole = Counter(spot.group for spot in spots if not spot.lacks and spot.whose <= Whose.LEFT)
    return any(present >= wanted for group, present in whole.items() if group is not None)


def _place(whose: Whose, lacks: int) -> tuple[Whose, int, Whose]:
    """By whose it is; nobody's group that lacks something comes after a whole one that was left.

    Who wants more of such a group than it has gets a part of another one, too. It counts as whole if it is
    just what is wanted, and no whole one has as much.
    """
    later = lacks > 0 and whose is Whose.NOBODY
    return (Whose.LEFT if later else whose, lacks, whose)


def _fit(present: int, wanted: int) -> tuple[bool, int]:
    """Best fit: first what is large enough, the smallest of it; else the largest."""
    enough = present >= wanted
    return (not enough, present if enough else -present)
