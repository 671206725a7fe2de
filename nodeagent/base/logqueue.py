# SPDX-License-Identifier: Apache-2.0
"""Log lines on their way to a reader that may be slow, or never read again: a pipe, a terminal, journald.

Whoever logs never waits for it: a thread writes one line after the other, and may sleep for as long as it
likes. What does not fit any more, or cannot be written, is lost, and counted. Knows nothing of what a line
is.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

MOST = 5000  # lines that wait; some MiB


class LogQueue:
    """The lines that wait, and the thread that writes them; it starts with the first one."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._waiting: deque[Callable[[], object]] = deque()
        self._moved = threading.Condition()
        self._writing = False
        self._lost = 0
        self._thread: threading.Thread | None = None

    def put(self, write: Callable[[], object]) -> None:
        """Have this called when its turn has come, or never, if too many wait before it."""
        with self._moved:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="nodeagent, log", daemon=True)
                self._thread.start()
            if len(self._waiting) >= self._most:
                self._lost += 1
                return
            self._waiting.append(write)
            self._moved.notify_all()

    def take_lost(self) -> int:
        """How many were lost since this was asked last; 0 as long as there is little room to say so."""
        with self._moved:
            if len(self._waiting) * 2 > self._most:
                return 0
            lost, self._lost = self._lost, 0
            return lost

    def finish(self, seconds: float) -> bool:
        """Wait until all is written, but no longer than that; True if it is."""
        with self._moved:
            return self._moved.wait_for(lambda: not self._waiting and not self._writing, seconds)

    def _run(self) -> None:
        while True:
            write = self._next()
            try:
                write()
            except Exception:  # noqa: BLE001 - there is no place to say it, and the others are to be read
                with self._moved:
                    self._lost += 1

    def _next(self) -> Callable[[], object]:
        with self._moved:
            self._writing = False
            self._moved.notify_all()
            self._moved.wait_for(lambda: self._waiting)
            self._writing = True
            return self._waiting.popleft()
