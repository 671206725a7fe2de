# SPDX-License-Identifier: Apache-2.0
"""Holds the daemon's Snapshot, and wakes its readers when any part of it has changed.

Each part of the Snapshot has one writer. A writer reads ``now``, replaces its part and publishes the result
without an await in between, so no change is lost and no lock is needed. Parts that have not changed stay the
same objects, so a reader compares its inputs by identity. Readers are also woken by ``touch``, when a part of
the Status changes that is not in the Snapshot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from nodeagent.base.latest import Latest
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec

_PARTS = tuple(part.name for part in fields(Snapshot))


class Snapshots(Latest[Snapshot]):
    """Holds the newest Snapshot; each reader waits for a newer one at its own pace."""

    @property
    def now(self) -> Snapshot:
        """The newest Snapshot."""
        return self._value

    def publish(self, snapshot: Snapshot) -> bool:
        """Make this the newest Snapshot; return False, and wake no reader, if it equals the present one."""
        before = self._value
        changed: dict[str, Any] = {}
        for part in _PARTS:
            old, new = getattr(before, part), getattr(snapshot, part)
            if old is not new and old != new:
                changed[part] = new
        if changed:
            self._value = replace(before, **changed)
            self.touch()
        return bool(changed)

    async def until(self, condition: Callable[[Spec], bool]) -> None:
        """Wait for a Spec that fulfils the condition, which is checked once for each new Spec."""
        seen, spec = self.version, self._value.spec
        while not condition(spec):
            before = spec
            while spec is before:
                seen, snapshot = await self.newer(seen)
                spec = snapshot.spec
