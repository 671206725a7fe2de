# SPDX-License-Identifier: Apache-2.0
"""What the kernel has refused, and when it is tried again: one back-off for each card and type.

A first "no room" or "exists already" only means that the picture was old: looking again is the answer. The
same once more, with no success between, is a failure like any other. Keeps no timer.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused

Key = tuple[str, str]  # card, type ("" where there is none)

BACKOFF = Backoff(first=1.0, limit=300.0)
_LOOK_AGAIN = (errno.ENOSPC, errno.EEXIST)


@dataclass(frozen=True, slots=True)
class Failure:
    """What was refused last, how often in a row, and when the next try is (seconds, monotonic)."""

    error: KernelRefused
    count: int
    due: float


class Retries:
    """The failures by card and type."""

    def __init__(self, backoff: Backoff = BACKOFF) -> None:
        self.failures: dict[Key, Failure] = {}
        self._backoff = backoff
        self._surprised: set[Key] = set()

    def refused(self, key: Key, error: KernelRefused, now: float) -> bool:
        """Note a refusal; True if it is a failure, False if looking again is enough."""
        if error.errno in _LOOK_AGAIN and key not in self._surprised:
            self._surprised.add(key)
            return False
        count = self.failures[key].count + 1 if key in self.failures else 1
        self.failures[key] = Failure(error, count, now + self._backoff.delay(count - 1))
        return True

    def succeeded(self, key: Key) -> None:
        """Forget what was refused before."""
        self.failures.pop(key, None)
        self._surprised.discard(key)

    def keep(self, known: Callable[[Key], bool]) -> None:
        """Forget the cards that are not known any more: one that comes back is a new one."""
        self.failures = {key: failure for key, failure in self.failures.items() if known(key)}
        self._surprised = {key for key in self._surprised if known(key)}

    def waiting(self, now: float) -> Mapping[Key, str]:
        """What must not be tried yet, and what the kernel said."""
        return {key: each.error.what for key, each in self.failures.items() if each.due > now}

    def next_due(self, now: float) -> float | None:
        """Seconds until the next try of anything; None if nothing waits."""
        return min((each.due - now for each in self.failures.values() if each.due > now), default=None)
