# SPDX-License-Identifier: Apache-2.0
"""Who has devices open, asked right before they are removed and from time to time after that.

Closing has no event. What is not known in time counts as open: one file of a dead file system, open in any
process, keeps the answer away for good.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import anyio

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root

DEADLINE = 2.0  # seconds to find out
FRESH = 0.5  # seconds for which an answer is good


class Probe:
    """Asks the kernel. A question that it does not answer is left behind, and none is asked beside it."""

    def __init__(self, root: Root, deadline: float = DEADLINE) -> None:
        self._root = root
        self._deadline = deadline
        self._left: set[threads.Call[frozenset[str]]] = set()

    async def ask(self, ids: Collection[str]) -> frozenset[str]:
        """Those of the ids that something on the host has open, as far as can be told in time."""
        with anyio.move_on_after(self._deadline):
            while self._left:
                await next(iter(self._left)).wait()
            return await self._answer(threads.start(in_use.in_use, self._root, tuple(ids)))
        return frozenset(ids)

    async def _answer(self, call: threads.Call[frozenset[str]]) -> frozenset[str]:
        try:
            return await call.result()
        finally:
            if not call.ended:
                self._left.add(call)
                call.when_ended(partial(self._left.discard, call))


class BatchProbe:
    """The answer for all removals of one batch: asked once, and again when it is old."""

    def __init__(self, asking: Probe, ids: Collection[str]) -> None:
        self.ids = frozenset(ids)
        self.found: frozenset[str] = frozenset()
        self._asking = asking
        self._until: float | None = None

    async def have(self, devices: frozenset[str]) -> bool:
        """True if something has one of the devices open."""
        if self._until is None or anyio.current_time() > self._until:
            self.found = await self._asking.ask(self.ids)
            self._until = anyio.current_time() + FRESH
        return bool(devices & self.found)
