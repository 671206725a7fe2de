# SPDX-License-Identifier: Apache-2.0
"""What the kernel has refused, and when it is tried again: one back-off for each attempt.

A first "no room" or "exists already" only means that the picture was old: looking again is the answer. The
same once more, with no success between, is a failure like any other. Keeps no timer.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused
from nodeagent.model.action import Step

BACKOFF = Backoff(first=1.0, limit=300.0)
_LOOK_AGAIN = (errno.ENOSPC, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Failure:
    """What was refused last, how often in a row, and when the next try is (seconds, monotonic)."""

    step: Step
    error: KernelRefused
    count: int
    due: float


class Retries:
    """The failures by attempt, see ``model.action``."""

    def __init__(self, backoff: Backoff = BACKOFF) -> None:
        self.failures: dict[str, Failure] = {}
        self._backoff = backoff
        self._surprised: dict[str, Step] = {}

    def refused(self, step: Step, error: KernelRefused, now: float) -> bool:
        """Note a refusal; True if it is a failure, False if looking again is enough."""
        attempt = step.action.attempt
        if error.errno in _LOOK_AGAIN and attempt not in self._surprised:
            self._surprised[attempt] = step
            return False
        count = self.failures[attempt].count + 1 if attempt in self.failures else 1
        self.failures[attempt] = Failure(step, error, count, now + self._backoff.delay(count - 1))
        return True

    def succeeded(self, step: Step) -> None:
        """Forget what was refused before."""
        self.failures.pop(step.action.attempt, None)
        self._surprised.pop(step.action.attempt, None)

    def keep(self, planned: Collection[str], assigned: Collection[tuple[str, str | None]]) -> None:
        """Forget the attempts that are not ``planned`` any more: what comes back is tried at once.

        Not so for a card on its way to a type (``assigned``): what dies as soon as it is made is removed in
        between, and must not be made anew ever faster.
        """

        def meant(step: Step) -> bool:
            return step.action.attempt in planned or step.place in assigned

        self.failures = {attempt: each for attempt, each in self.failures.items() if meant(each.step)}
        self._surprised = {attempt: step for attempt, step in self._surprised.items() if meant(step)}

    def waiting(self, now: float) -> Mapping[str, str]:
        """What must not be tried yet, and what the kernel said."""
        return {attempt: each.error.what for attempt, each in self.failures.items() if each.due > now}

    def next_due(self, now: float) -> float | None:
        """Seconds until the next try of anything; None if nothing waits."""
        return min((each.due - now for each in self.failures.values() if each.due > now), default=None)
