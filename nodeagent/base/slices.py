# SPDX-License-Identifier: Apache-2.0
"""Long work on the event loop, cut into slices: others have their turn in between.

A thread would not do for work that is all Python: it gives the interpreter up every 5 ms only, and the loop
would wait that long at each system call. Knows nothing of the work.
"""

from __future__ import annotations

import time

import anyio.lowlevel

SLICE = 0.002  # seconds


class Slices:
    """The slices of one piece of work; the first begins now."""

    def __init__(self) -> None:
        self._until = time.monotonic() + SLICE

    async def rest(self) -> None:
        """Let the others have their turn, if it is time."""
        if time.monotonic() >= self._until:
            await anyio.lowlevel.checkpoint()
            self._until = time.monotonic() + SLICE
