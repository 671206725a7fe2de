# SPDX-License-Identifier: Apache-2.0
"""Time that passes only where all wait: for tests that would wait for seconds.

The loop's clock jumps to the next timer when nothing can be read and nothing is to be done. So it fits what
happens in this process: other processes get no time, and threads enough to read a file, not to hang.
``anyio.current_time`` tells it, and no other clock. Mark a test with ``@virtual.TIME``.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Sequence

import looptime
import pytest

from nodeagent.base import threads
from tests.pulse import Longest, Standstill

END = 3600.0  # seconds after which a test that waits for ever is ended
THREADS = 0.01  # seconds of each look for events that a thread may take; many come before a jump


class Patient(selectors.DefaultSelector):
    """Gives threads at work a moment: the loop looks for events many times before its clock jumps.

    Knows for how long the loop did not look: real seconds, which a clock that jumps does not tell.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        """Forget the turns before."""
        self._turns = Longest()

    def select(self, timeout: float | None = None) -> Sequence[tuple[selectors.SelectorKey, int]]:  # type: ignore[override]
        """What can be read or written, by then or at once."""
        self._turns.end()
        try:
            return super().select(THREADS if timeout == 0 and _at_work() else timeout)
        finally:
            self._turns.begin()

    def stop(self) -> Standstill:
        """The longest of the turns; the present one is as good as over."""
        return self._turns.found


def _at_work() -> bool:
    """True while a thread is at a call of the daemon's."""
    names = (thread.name for thread in threading.enumerate())
    return any(name.startswith(threads.NAME) for name in names)


class Loop(looptime.LoopTimeEventLoop, asyncio.SelectorEventLoop):
    """The event loop of Linux, with such a clock."""

    def __init__(self) -> None:
        """Its time begins at 1000: zero would hide a clock that is not the loop's."""
        self.looks = Patient()
        super().__init__(self.looks, start=1000.0, end=1000.0 + END)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """One for a test."""
    return Loop()


TIME = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("asyncio", {"loop_factory": new_event_loop}), id="virtual")],
)
