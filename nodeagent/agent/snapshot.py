# SPDX-License-Identifier: Apache-2.0
"""The one Snapshot of the daemon, and the one bell that rings when any part of it has changed.

Each part has one writer. A writer takes ``now``, replaces its part and publishes that without an await in
between, so nothing is lost and nobody locks. Parts that are equal stay the same objects, so a reader finds
out by identity whether what it depends on has changed. The bell rings as well when a part of the Status has
changed that is not in the Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from nodeagent.base.latest import Latest
from nodeagent.model.snapshot import Snapshot

_PARTS = tuple(part.name for part in fields(Snapshot))


class Snapshots:
    """The newest Snapshot; readers wait for a newer one, each at its own pace."""

    def __init__(self, first: Snapshot) -> None:
        self._cell = Latest(first)

    @property
    def now(self) -> Snapshot:
        """The newest."""
        return self._cell.get()

    @property
    def version(self) -> int:
        """Changes with each change."""
        return self._cell.version

    def publish(self, snapshot: Snapshot) -> bool:
        """Make this the newest; False, and nobody is woken, if it says what the present one does."""
        before = self._cell.get()
        changed: dict[str, Any] = {}
        for part in _PARTS:
            old, new = getattr(before, part), getattr(snapshot, part)
            if old is not new and old != new:
                changed[part] = new
        return bool(changed) and self._cell.set(replace(before, **changed))

    def ring(self) -> None:
        """Wake all readers although no part has changed."""
        self._cell.touch()

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait for a Snapshot of which that is true."""
        seen, snapshot = self.version, self.now
        while not condition(snapshot):
            seen, snapshot = await self.newer(seen)
        return snapshot

    async def newer(self, seen: int) -> tuple[int, Snapshot]:
        """Wait until the version differs from ``seen``; the present version and Snapshot."""
        return await self._cell.newer(seen)
