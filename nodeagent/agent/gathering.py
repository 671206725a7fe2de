# SPDX-License-Identifier: Apache-2.0
"""When the next scan begins: at once for the first wake after quiet, and once for a burst.

What follows a scan closely is gathered until no wake has come for a moment, but never longer than a bound.
Knows neither where wakes come from nor what is done about them.
"""

from __future__ import annotations

import anyio

from nodeagent.kernel.wakes import Wakes

QUIET = 0.01  # seconds without a wake that end a burst: a driver change sends four within 2 ms
BOUND = 0.5  # seconds after which a burst that does not end is scanned all the same


class Gathering:
    """Takes from the wakes what is to be scanned; ``taken`` counts the scans that were begun."""

    def __init__(self, wakes: Wakes) -> None:
        self.taken = 0
        self._wakes = wakes

    def take(self) -> frozenset[str] | None:
        """What to scan now, None for everything; from now on wakes are for the next scan."""
        self.taken += 1
        return self._wakes.take()

    async def due(self, slow: float) -> None:
        """Wait until a scan is to begin; after ``slow`` seconds without a wake it is one of everything."""
        began = anyio.current_time()
        if not self._wakes.due:
            await self._first(slow)
        if anyio.current_time() - began < QUIET:
            await self._gather()

    async def _first(self, slow: float) -> None:
        with anyio.move_on_after(slow):
            await self._wakes.newer(self._wakes.version)
            return
        self._wakes.wake(None)

    async def _gather(self) -> None:
        """Wait until no wake has come for a moment, but not longer than the bound."""
        end = anyio.current_time() + BOUND
        while anyio.current_time() < end:
            seen = self._wakes.version
            with anyio.move_on_after(QUIET):
                await self._wakes.newer(seen)
                continue
            return
