# SPDX-License-Identifier: Apache-2.0
"""The changes that the kernel has refused, and when each is tried again: a back-off for each attempt.

A first "no room" or "exists already" only means that the picture was old: another scan is the answer. The
same once more, with no success between, is a failure like any other. An attempt that takes a working driver
away is repeated once an hour at last, not every five minutes: a driver that refuses a device once mostly
refuses it for good (its denylist, a class that it does not support), and only the kernel log has the cause.

The one writer of the Snapshot's ``failures``: the attempts among them must not be made yet.
"""

from __future__ import annotations

import errno
from collections.abc import Collection
from dataclasses import dataclass, replace

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.change import Step
from nodeagent.model.status import ResultsStatus

_SCAN_AGAIN = (errno.ENOSPC, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Failure:
    """The last refusal of a step, how often in a row, and when the next try is (seconds, monotonic)."""

    step: Step
    error: KernelRefused
    count: int
    due: float


class Retries:
    """The failures by attempt, see ``model.change``."""

    name = "retries"

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.failures: dict[str, Failure] = {}
        self.results: dict[str, ResultsStatus] = {}  # by kind of Action, since the start
        self._snapshots = snapshots
        self._timeouts = timeouts
        self._scan_again: dict[str, Step] = {}  # of which another scan was the answer
        self._changed: Latest[None] = Latest(None)

    def refused(self, step: Step, error: KernelRefused, now: float) -> bool:
        """Note a refusal; True if it is a failure, False if another scan is enough."""
        self._count(step, refused=1)
        attempt = step.action.attempt
        if error.errno in _SCAN_AGAIN and attempt not in self._scan_again:
            self._scan_again[attempt] = step
            return False
        backoff = self._timeouts.interrupting_retry if error.interrupting else self._timeouts.write_retry
        count = self.failures[attempt].count + 1 if attempt in self.failures else 1
        self.failures[attempt] = Failure(step, error, count, now + backoff.delay(count - 1))
        self._failures_changed(now)
        return True

    def succeeded(self, step: Step, now: float) -> None:
        """Forget the refusals before."""
        self._count(step, made=1)
        self.failures.pop(step.action.attempt, None)
        self._scan_again.pop(step.action.attempt, None)
        self._failures_changed(now)

    def forget_unplanned(
        self, planned: Collection[str], assigned: Collection[tuple[str, str | None]], now: float
    ) -> None:
        """Forget the attempts that are not ``planned`` any more: when they are planned again, they are due.

        Not so for a card that is worked on (``assigned``: with its type): an instance that dies as soon as it
        is created is removed in between, and must not be created ever faster.
        """

        def is_planned(step: Step) -> bool:
            return step.action.attempt in planned or step.place in assigned

        before = len(self.failures)
        self.failures = {attempt: each for attempt, each in self.failures.items() if is_planned(each.step)}
        self._scan_again = {attempt: step for attempt, step in self._scan_again.items() if is_planned(step)}
        if len(self.failures) != before:
            self._failures_changed(now)

    def next_due(self, now: float) -> float | None:
        """Seconds until the next try of anything; None if nothing waits."""
        return min((each.due - now for each in self.failures.values() if each.due > now), default=None)

    def publish(self, now: float) -> None:
        """Put the attempts that must not be tried yet into the Snapshot, with the error of each."""
        waiting = {attempt: each.error.what for attempt, each in self.failures.items() if each.due > now}
        self._snapshots.publish(replace(self._snapshots.now, failures=waiting))

    async def run(self) -> None:
        """Take the attempts out of the Snapshot when they may be tried again, for ever."""
        while True:
            seen, now = self._changed.version, anyio.current_time()
            self.publish(now)
            with anyio.move_on_after(self.next_due(now)):
                await self._changed.newer(seen)

    def _count(self, step: Step, made: int = 0, refused: int = 0) -> None:
        kind = step.action.kind
        before = self.results.get(kind) or ResultsStatus(kind)
        self.results[kind] = ResultsStatus(kind, before.made + made, before.refused + refused)

    def _failures_changed(self, now: float) -> None:
        self.publish(now)
        self._changed.touch()
