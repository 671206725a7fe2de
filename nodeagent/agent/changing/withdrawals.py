# SPDX-License-Identifier: Apache-2.0
"""Ids that are withdrawn from what may be given, from right before a write until the Host shows its effect.

A write that is late keeps its ids withdrawn, and its device busy, until it has ended and the host was scanned
since. So does a write of a batch that a failure has cut short.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nodeagent.agent.changing.executor import Executor
from nodeagent.agent.observe import Observer
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.model.action import Step, moved, occupied


class Withdrawals:
    """The steps that were not followed by a scan yet, and what each has withdrawn."""

    name = "withdrawals"

    def __init__(
        self, snapshots: Snapshots, reservations: ReservationBook, observer: Observer, executor: Executor
    ) -> None:
        self._snapshots = snapshots
        self._reservations = reservations
        self._observer = observer
        self._executor = executor
        self._taken: dict[Step, frozenset[str]] = {}
        self._late: set[Step] = set()  # what ``run`` gives back

    @property
    def devices(self) -> frozenset[str]:
        """What these steps are made on."""
        return frozenset[str]().union(*(occupied(step.action) for step in self._taken))

    def withdraw(self, step: Step) -> bool:
        """Withdraw what the step takes away; False if anybody was given one of the ids a moment ago."""
        moving = moved(step.action)
        ids = step.action.takes | moving
        if not self._reservations.withdraw(ids, moving):
            return False
        self._taken[step] = ids
        return True

    async def give_back(self, steps: Collection[Step], keys: frozenset[str]) -> None:
        """Scan what the keys name; what was removed is known to be gone then, the rest may be given again.

        What has ended during the scan may have come too late for it, so that is scanned once more.
        """
        while True:
            late = self._under_way(steps)
            await self._observer.rescan(keys)
            if late == self._under_way(steps):
                break
        self._late |= self._taken.keys() & late
        for step in steps:
            if step not in late and (ids := self._taken.pop(step, None)) is not None:
                self._reservations.restore(ids, moved(step.action))

    async def settle(self) -> None:
        """After a failure: give back what the work that it has ended had taken."""
        if left := tuple(self._taken):
            await self.give_back(left, _targets(left))

    def _under_way(self, steps: Collection[Step]) -> frozenset[Step]:
        return frozenset(self._executor.under_way).intersection(steps)

    async def run(self) -> None:
        """Give back what late writes have taken when they have ended, for ever."""
        while True:
            seen = self._executor.ended.version
            ended = self._late.difference(self._executor.under_way)
            if ended:
                await self.give_back(ended, _targets(ended))
                self._late -= ended
                self._snapshots.ring()
            else:
                await self._executor.ended.newer(seen)


def _targets(steps: Iterable[Step]) -> frozenset[str]:
    return frozenset(key for step in steps for key in step.action.targets)
