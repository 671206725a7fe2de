# SPDX-License-Identifier: Apache-2.0
"""One life of a daemon after the other on one node, and what goes wrong in them.

Afterwards every group is wholly as wished or wholly as before, and the status of the daemon says the same of
each of its functions.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from tests.blackbox.harness import PATIENCE, Node
from tests.blackbox.test_bindings_faults import RESOURCE, RULE, add_groups, everything, states
from tests.chaos.crashes import daemons
from tests.chaos.crashes.daemons import Daemon
from tests.chaos.crashes.points import Failing, Point
from tests.sim.drivers import SimulatedDrivers, simulated

WISHED, BEFORE = "wished", "before"
_SETTINGS = {WISHED: RESOURCE + RULE, BEFORE: RESOURCE}
_DRIVERS = {WISHED: "vfio-pci", BEFORE: "e1000e"}
_LOOK = 0.05  # seconds between two looks


class Story:
    """The node, its groups, and how all of them stand."""

    def __init__(self, node: Node, groups: Sequence[list[str]], drivers: SimulatedDrivers) -> None:
        self.groups = list(groups)
        self.lives = 0
        self._node = node
        self._drivers = drivers
        self._stands = BEFORE
        self._cleared = False  # overrides may be, of what is bound

    async def killed_at(self, point: Point, *, kept: bool) -> None:
        """A daemon is killed at that point, and another brings to its end what is wanted then.

        ``kept``: the rules stay; otherwise they are changed back before the other daemon starts. Then a
        function that was on its way back may stay bound without override, which no scan reads (it can hang).

        :raises AssertionError: if a group, or what is told of it, is anything else.
        """
        goal, other = (WISHED, BEFORE) if point.forth else (BEFORE, WISHED)
        await self._become(other)
        async with self._life(goal) as daemon:
            self._kill_at(point, daemon)
            await daemon.killed()
        self._stands = ""
        self._cleared |= not point.forth and not kept
        await self._become(goal if kept else other)

    async def failed_at(self, failing: Failing, goal: str) -> None:
        """These writes fail on the way there; then they do not any more.

        :raises AssertionError: if a group, or what is told of it, is anything else.
        """
        other = BEFORE if goal == WISHED else WISHED
        await self._become(other)
        for kind, address in failing.places.values():
            self._drivers.faults.set(f"{kind}:{address}", failing.fault)
        wanted = [other if failing.refused(number) else goal for number in range(len(self.groups))]
        async with self._life(goal) as daemon:
            await self._until(wanted, daemon, goal)
            for kind, address in failing.places.values():
                self._drivers.faults.clear(f"{kind}:{address}")
            await self._until([goal] * len(self.groups), daemon, goal)
        self._stands = goal

    async def _become(self, wanted: str) -> None:
        """Run a daemon without faults until the groups are in this state."""
        if self._stands != wanted:
            async with self._life(wanted) as daemon:
                await self._until([wanted] * len(self.groups), daemon, wanted)
            self._stands = wanted
            self._cleared &= wanted == WISHED

    @asynccontextmanager
    async def _life(self, goal: str) -> AsyncIterator[Daemon]:
        self._node.configure(_SETTINGS[goal])
        self.lives += 1
        async with daemons.running(self._node.root) as daemon:
            yield daemon

    def _kill_at(self, point: Point, daemon: Daemon) -> None:
        def around(number: int, done: bool) -> None:
            if (self._drivers.writes[number - 1], done) == point:
                self._drivers.around = lambda number, done: None
                daemon.kill()

        self._drivers.around = around

    async def _until(self, wanted: Sequence[str], daemon: Daemon, goal: str) -> None:
        """Wait until all groups are so, and the daemon says so. What was refused may be tried just now."""
        end = time.monotonic() + PATIENCE
        while not await self._told(wanted, goal):
            found = self._states()
            assert time.monotonic() < end, f"{found} instead of {wanted}\n{daemon.tail()}"
            await anyio.sleep(_LOOK)

    def _states(self) -> list[str]:
        found = states(self._drivers, self.groups)
        return [
            WISHED if self._cleared and self._bound(group) else state
            for group, state in zip(self.groups, found, strict=True)
        ]

    def _bound(self, group: Sequence[str]) -> bool:
        return {self._drivers.driver(address) for address in group} == {_DRIVERS[WISHED]}

    async def _told(self, wanted: Sequence[str], goal: str) -> bool:
        """True if all groups are so, and the status says it: which are refused, who has which driver."""
        if self._states() != wanted or self._node.has_former_drivers() != (WISHED in wanted):
            return False
        try:
            told = await self._node.status()
        except OSError:  # it is starting
            return False
        by_group = list(zip(self.groups, wanted, strict=True))
        refused = {group[0] for group, state in by_group if state != goal}
        drivers = {address: _DRIVERS[state] for group, state in by_group for address in group}
        return _refused(told["changes"]) == refused and _on(told) == drivers


def _refused(changes: dict[str, Any]) -> set[str] | None:
    """The groups that are told to be refused, by their first function; None while anything is on its way."""
    refused, waiting = ({each["card"] for each in changes[what]} for what in ("failing", "waiting"))
    return None if changes["inProgress"] or changes["problems"] or waiting - refused else refused


def _on(told: dict[str, Any]) -> dict[str, str]:
    """Function → the driver on which it is told to be."""
    return {each["id"]: each["driver"] for group in told["groups"] for each in group["members"]}


@asynccontextmanager
async def told(node: Node) -> AsyncIterator[Story]:
    """Sixty-four functions in sixteen groups, on their own drivers."""
    groups = add_groups(node)
    async with simulated(node.host, *everything(groups)) as drivers, node.kubelet():
        yield Story(node, groups, drivers)
