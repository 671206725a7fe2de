# SPDX-License-Identifier: Apache-2.0
"""At which writes something goes wrong: a daemon that is killed, or a write that fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tests.sim.drivers import FAULTS, Wrote

FORTH, BACK = ("override", "unbind", "probe"), ("clear", "release", "reprobe")
Groups = Sequence[Sequence[str]]


class Point(NamedTuple):
    """A moment in which a daemon is killed: at that write, before it has its effect or right after."""

    wrote: Wrote
    done: bool

    def __str__(self) -> str:
        return f"{'after' if self.done else 'before'} {self.wrote.kind} of {self.wrote.address}"

    @property
    def forth(self) -> bool:
        """True if it is on the way to VFIO."""
        return self.wrote.kind in FORTH


def every(groups: Groups) -> list[Point]:
    """All of them: each write of each function, twice."""
    places = itertools.product((*FORTH, *BACK), itertools.chain(*groups), (False, True))
    return [Point(Wrote(kind, address), done) for kind, address, done in places]


def spread(groups: Groups) -> list[Point]:
    """Each kind of write of each function of a group, each in another group."""
    places = itertools.product(range(len(groups[0])), (*FORTH, *BACK))
    numbers = itertools.cycle(range(len(groups)))
    return [
        Point(Wrote(kind, groups[next(numbers)][part]), (part + at) % 2 == 1)
        for at, (part, kind) in enumerate(places)
    ]


def shuffled(points: Iterable[Point], rng: random.Random) -> Iterator[tuple[Point, bool]]:
    """All of them, and whether what was wanted is still wanted after it; one begins where another ended."""
    left: dict[bool, list[Point]] = {True: [], False: []}
    for point in points:
        left[point.forth].append(point)
    for each in left.values():
        rng.shuffle(each)
    forth = True
    while left[True] or left[False]:
        point = (left[forth] or left[not forth]).pop()
        kept = rng.random() < 0.5
        yield point, kept
        forth = point.forth != kept


class Failing(NamedTuple):
    """One write of each group but four, and what happens to it."""

    fault: str
    places: Mapping[int, Wrote]  # by the number of the group

    def refused(self, number: int) -> bool:
        """True if the group stays as it was, and the daemon says so.

        On the way back somebody who takes the driver away does what is wanted, but at the last write.
        """
        kind = self.places[number].kind if number in self.places else None
        return kind in FORTH or kind == "reprobe" or (kind is not None and self.fault == "lost")


def failings(groups: Groups, kinds: Sequence[str]) -> Iterator[Failing]:
    """Each write of each function once for each fault.

    What is undone behind the very last write of all is no failure of ours.
    """
    parts = [(kind, part) for part in range(len(groups[0])) for kind in kinds]
    for fault, shift in itertools.product(FAULTS, range(len(groups))):
        places = {}
        for number, group in enumerate(groups):
            at = (number + shift) % len(groups)
            if at < len(parts) and (fault, parts[at][0]) != ("undone", "reprobe"):
                kind, part = parts[at]
                places[number] = Wrote(kind, group[part])
        yield Failing(fault, places)
