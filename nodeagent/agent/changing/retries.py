# SPDX-License-Identifier: Apache-2.0
"""Keeps the changes that the kernel has refused, with the time of each next attempt (a back-off).

After a first ENOSPC or EEXIST the host is only scanned again, because the last scan may have been old. If the
kernel refuses the change once more without a success in between, the change counts as failed. The back-off
grows to five minutes, or to one hour for a change that unbinds a working driver: a VFIO driver that refuses a
device usually always refuses it (its denylist, an unsupported class), and only the kernel log has the cause.

No other component writes ``failures`` of the Snapshot: the attempts that must not be made yet.
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
    """The last refusal of a step, the number of refusals in a row, and when the next attempt is due."""

    step: Step
    error: KernelRefused
    count: int
    due: float


class Retries:
    """Holds the failed changes by attempt (see ``model.change``)."""

    name = "retries"

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.failures: dict[str, Failure] = {}
        self.results: dict[str, ResultsStatus] = {}  # kind of Action → its numbers since the start
        self._snapshots = snapshots
        self._timeouts = timeouts
        self._scan_again: dict[str, Step] = {}  # attempts after which the host was only scanned again
        self._changed: Latest[None] = Latest(None)

    def refused(self, step: Step, error: KernelRefused, now: float) -> bool:
        """Record a refusal by the kernel; True if it counts as a failure, False if a new scan is enough."""
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
        """Forget the earlier refusals of this step."""
        self._count(step, made=1)
        self.failures.pop(step.action.attempt, None)
        self._scan_again.pop(step.action.attempt, None)
        self._failures_changed(now)

    def forget_unplanned(
        self, planned: Collection[str], assigned: Collection[tuple[str, str | None]], now: float
    ) -> None:
        """Forget attempts that are not ``planned`` any more; when they are planned again, they are due at
        once.

        Attempts on cards with work in progress (``assigned``: card and vGPU type) are kept: otherwise an mdev
        that disappears as soon as it is created would be created without any back-off.
        """

        def is_planned(step: Step) -> bool:
            return step.action.attempt in planned or step.place in assigned

        before = len(self.failures)
        self.failures = {attempt: each for attempt, each in self.failures.items() if is_planned(each.step)}
        self._scan_again = {attempt: step for attempt, step in self._scan_again.items() if is_planned(step)}
        if len(self.failures) != before:
            self._failures_changed(now)

    def next_due(self, now: float) -> float | None:
        """Seconds until the next attempt is due; None if none waits."""
        return min((each.due - now for each in self.failures.values() if each.due > now), default=None)

    def publish(self, now: float) -> None:
        """Publish the attempts that must not be made yet, each with its error."""
        waiting = {attempt: each.error.what for attempt, each in self.failures.items() if each.due > now}
        self._snapshots.publish(replace(self._snapshots.now, failures=waiting))

    async def run(self) -> None:
        """Remove attempts from the Snapshot when they may be made again, for ever."""
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
