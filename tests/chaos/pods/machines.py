# SPDX-License-Identifier: Apache-2.0
"""The virtual machines of a run: what each has, and whether it is over; and the one promise about them.

No unit, which is an IOMMU group or a USB device, has two machines that are not over. One is over when it has
ended, and before that if it is told to end and has nothing open any more. Decides on what it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.plugs import ONE, SET
from tests.chaos.pods.board import Board
from tests.chaos.pods.script import Broken


@dataclass(frozen=True)
class Given:
    """What a pod was given."""

    units: frozenset[str]
    addresses: frozenset[str]


@dataclass(eq=False)
class Machine:
    """A pod that was admitted, and its container, which opens what it got a while later."""

    pod: Pod
    pid: int
    given: Given
    open: set[str] = field(default_factory=set, init=False)
    started: bool = field(default=False, init=False)  # it has opened something, in this life of the node
    ending: bool = field(default=False, init=False)
    ended: bool = field(default=False, init=False)

    @property
    def over(self) -> bool:
        """True if another may have what it had."""
        return self.ended or (self.ending and not self.open)

    @property
    def steady(self) -> bool:
        """True if it runs and nobody ends it."""
        return self.started and not self.ending and not self.ended

    @property
    def wants(self) -> dict[str, int]:
        """What its app containers ask for together."""
        asked = Counter[str]()
        for container in self.pod.containers:
            asked.update(container)
        return dict(asked)

    def __str__(self) -> str:
        return f"{self.pod.key} with {sorted(self.given.units)}, open: {sorted(self.open)}"


def owned(machines: Iterable[Machine]) -> set[str]:
    """The units of all that have not ended."""
    return {unit for machine in machines if not machine.ended for unit in machine.given.units}


def shared(machines: Iterable[Machine]) -> list[str]:
    """Each unit that two machines have which are not over, with both."""
    owners: dict[str, list[Machine]] = {}
    for machine in machines:
        if not machine.over:
            for unit in machine.given.units:
                owners.setdefault(unit, []).append(machine)
    return [
        f"{unit} has {len(several)} owners: {'; '.join(map(str, several))}"
        for unit, several in sorted(owners.items())
        if len(several) > 1
    ]


def given(pod: Pod, board: Board) -> Given:
    """What the results of a pod say. :raises Broken: if it was sent to a USB device that is not there."""
    results = pod.results.values()
    ids = {
        each
        for result in results
        for name, ids in result.ids.items()
        if name not in (ONE, SET)
        for each in ids
    }
    units = {board.functions[each].unit for each in ids}
    for result in results:
        units.update(_plugged(pod, board, result.envs))
    addresses = {address for each in ids for address in board.with_it(each)}
    return Given(frozenset(units), frozenset(addresses))


def _plugged(pod: Pod, board: Board, environment: dict[str, str]) -> Iterator[str]:
    """The USB devices that are named by bus and number."""
    places = [
        text for name, text in environment.items() if "USB" in name.upper() and "PCI" not in name.upper()
    ]
    for place in ",".join(places).split(",") if places else ():
        unit = board.sticks.at(int(place.partition(":")[2]))
        if unit is None:
            raise Broken(f"{pod.key} was given {place}, where nothing is plugged in")
        yield unit
