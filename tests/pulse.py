# SPDX-License-Identifier: Apache-2.0
"""How long an event loop did not turn: how long its thread worked, and how long it stood at all.

Both are told apart, as they have different causes. What works too long is the code's fault on any machine.
What stands may wait for a disk or for a thread that has no processor, on busy machines; that others had all
processors does not count at all.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path
from typing import NamedTuple

SCHEDSTAT = Path("/proc/thread-self/schedstat")  # Documentation/scheduler/sched-stats.rst
BEAT = 0.05

_of_thread = threading.local()


class Standstill(NamedTuple):
    """Seconds in which a loop did not turn: what its thread worked of them, and all."""

    worked: float
    stood: float


class Longest:
    """The longest of several standstills, by each of the two measures."""

    def __init__(self) -> None:
        self.begin()
        self.found = Standstill(0.0, 0.0)

    def begin(self) -> None:
        """One begins now."""
        self._since = time.thread_time(), ready_time()

    def end(self) -> None:
        """It is over."""
        worked, stood = self._since
        self.found = Standstill(
            max(self.found.worked, time.thread_time() - worked), max(self.found.stood, ready_time() - stood)
        )


class Pulse:
    """Measures the longest standstill of the running loop, from its next turn on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._longest = Longest()
        self._timer: asyncio.Handle = self._loop.call_soon(self._beat)

    def _beat(self) -> None:
        self._longest.begin()
        self._timer = self._loop.call_later(BEAT, self._beaten)

    def _beaten(self) -> None:
        self._longest.end()
        self._beat()

    def stop(self) -> Standstill:
        """What was found, a ``BEAT`` more than there was; the present turn counts."""
        self._timer.cancel()
        self._longest.end()
        return self._longest.found


def ready_time() -> float:
    """A clock, in seconds, that stands while this thread waits for a processor."""
    return time.monotonic() - _waited() / 1e9


def _waited() -> int:
    """Nanoseconds; from a file that stays open, for a test may leave no free descriptor."""
    try:
        if not hasattr(_of_thread, "schedstat"):
            _of_thread.schedstat = SCHEDSTAT.open("rb", buffering=0)
        return int(os.pread(_of_thread.schedstat.fileno(), 128, 0).split()[1])
    except FileNotFoundError:  # a kernel without CONFIG_SCHED_INFO
        return 0
