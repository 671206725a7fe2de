# SPDX-License-Identifier: Apache-2.0
"""Who has devices open, asked right before they are removed and from time to time after that.

Closing has no event. What is not known in time counts as open.
"""

from __future__ import annotations

from collections.abc import Collection

import anyio

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root

DEADLINE = 2.0  # seconds to find out
FRESH = 0.5  # seconds for which an answer is good


async def ask(root: Root, ids: Collection[str]) -> frozenset[str]:
    """Those of the ids that something on the host has open, as far as can be told in time."""
    with anyio.move_on_after(DEADLINE):
        return await threads.call(in_use.in_use, root, tuple(ids))
    return frozenset(ids)


class Users:
    """The answer for all removals of one batch: asked once, and again when it is old."""

    def __init__(self, root: Root, ids: Collection[str]) -> None:
        self.ids = frozenset(ids)
        self.found: frozenset[str] = frozenset()
        self._root = root
        self._until: float | None = None

    async def have(self, devices: frozenset[str]) -> bool:
        """True if something has one of the devices open."""
        if self._until is None or anyio.current_time() > self._until:
            self.found = await ask(self._root, self.ids)
            self._until = anyio.current_time() + FRESH
        return bool(devices & self.found)
