# SPDX-License-Identifier: Apache-2.0
"""What is to be scanned next, and when: the first wake after quiet at once, a burst as one.

What follows a scan closely is gathered until no wake has come for a moment, but never longer than a bound.
Knows neither where wakes come from nor what is done about them.
"""

from __future__ import annotations

import anyio

from nodeagent.base.latest import Latest

QUIET = 0.01  # seconds without a wake that end a burst: a driver change sends four within 2 ms
BOUND = 0.5  # seconds after which a burst that does not end is scanned all the same


class Wakes:
    """The keys that wait for a scan (see ``kernel.scan.wake_keys``); all of the host at the start."""

    def __init__(self) -> None:
        self.taken = 0  # how many scans were begun
        self._keys: set[str] | None = None  # None: everything
        self._bell: Latest[None] = Latest(None)

    def wake(self, keys: frozenset[str] | None = None) -> None:
        """Scan soon what the keys name, or everything."""
        if keys is None:
            self._keys = None
        elif self._keys is not None:
            self._keys |= keys
        self._bell.touch()

    def wake_one(self, key: str | None) -> None:
        """Scan soon what the key names; None is everything."""
        self.wake(None if key is None else frozenset({key}))

    def take(self) -> frozenset[str] | None:
        """What to scan now; from now on wakes are for the next scan."""
        keys = None if self._keys is None else frozenset(self._keys)
        self._keys = set()
        self.taken += 1
        return keys

    async def due(self, slow: float) -> None:
        """Wait until a scan is to begin; after ``slow`` seconds without a wake it is one of everything."""
        began = anyio.current_time()
        if self._keys == set():
            await self._first(slow)
        if anyio.current_time() - began < QUIET:
            await self._gather()

    async def _first(self, slow: float) -> None:
        seen = self._bell.version
        with anyio.move_on_after(slow):
            await self._bell.newer(seen)
            return
        self._keys = None

    async def _gather(self) -> None:
        """Wait until no wake has come for a moment, but not longer than the bound."""
        end = anyio.current_time() + BOUND
        while anyio.current_time() < end:
            seen = self._bell.version
            with anyio.move_on_after(QUIET):
                await self._bell.newer(seen)
                continue
            return
