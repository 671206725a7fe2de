# SPDX-License-Identifier: Apache-2.0
"""Holds the daemon's Snapshot, and wakes its readers when any part of it has changed.

Each part has one writer. A writer reads ``now``, replaces its part and publishes the result without an await
in between, so no change is lost and no lock is needed. Equal parts stay the same objects, so a reader
compares by identity to see whether its inputs have changed. Readers are also woken by ``ring``, when a part
of the Status changes that is not in the Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from nodeagent.base.latest import Latest
from nodeagent.model.snapshot import Snapshot

_PARTS = tuple(part.name for part in fields(Snapshot))


class Snapshots:
    """Holds the newest Snapshot; each reader waits for a newer one at its own pace."""

    def __init__(self, first: Snapshot) -> None:
        self._cell = Latest(first)

    @property
    def now(self) -> Snapshot:
        """The newest Snapshot."""
        return self._cell.get()

    @property
    def version(self) -> int:
        """A number that grows with each change of the Snapshot."""
        return self._cell.version

    def publish(self, snapshot: Snapshot) -> bool:
        """Make this the newest Snapshot; return False, and wake no reader, if it equals the present one."""
        before = self._cell.get()
        changed: dict[str, Any] = {}
        for part in _PARTS:
            old, new = getattr(before, part), getattr(snapshot, part)
            if old is not new and old != new:
                changed[part] = new
        return bool(changed) and self._cell.set(replace(before, **changed))

    def ring(self) -> None:
        """Wake all readers although no part of the Snapshot has changed."""
        self._cell.touch()

    async def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """Wait for a Snapshot for which the condition is true, and return it."""
        seen, snapshot = self.version, self.now
        while not condition(snapshot):
            seen, snapshot = await self.newer(seen)
        return snapshot

    async def newer(self, seen: int) -> tuple[int, Snapshot]:
        """Wait until the version differs from ``seen``; return the new version and Snapshot."""
        return await self._cell.newer(seen)
