# SPDX-License-Identifier: Apache-2.0
"""Who has devices open: probed right before they are removed, and again while somebody waits for it.

Closing has no event. What is not known in time counts as open: one file of a dead file system, open in any
process, keeps the answer away for good. The one writer of the Snapshot's ``open``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root


class Probe:
    """Asks the kernel. A question that it does not answer is left behind, and none is asked beside it."""

    def __init__(self, root: Root, snapshots: Snapshots, deadline: float, fresh: float) -> None:
        """``deadline``: seconds for an answer; ``fresh``: seconds for which it serves a batch of changes."""
        self.fresh = fresh
        self._root = root
        self._snapshots = snapshots
        self._deadline = deadline
        self._looks = threads.OneByOne()

    async def ask(self, ids: Collection[str]) -> frozenset[str]:
        """Those of the ids that something on the host has open, as far as that is known in time."""
        opened = await self._in_time(frozenset(ids))
        now = self._snapshots.now
        self._snapshots.publish(replace(now, open=(now.open - frozenset(ids)) | opened))
        return opened

    async def refresh(self, ids: Collection[str]) -> None:
        """Ask again for those of the ids that were open."""
        if opened := self._snapshots.now.open.intersection(ids):
            await self.ask(opened)

    async def _in_time(self, ids: frozenset[str]) -> frozenset[str]:
        try:
            opened = await self._looks.call(self._deadline, in_use.find_in_use, self._root, tuple(ids))
        except KernelRefused:  # not looked at, as with a question that is not answered
            return ids
        return ids if opened is None else opened


class BatchProbe:
    """The answer for all removals of one batch: asked once, and again when it is old."""

    def __init__(self, probe: Probe, ids: Collection[str]) -> None:
        self._probe = probe
        self._ids = frozenset(ids)
        self._opened: frozenset[str] = frozenset()
        self._until: float | None = None

    async def opened(self, ids: frozenset[str]) -> bool:
        """True if something has one of these open."""
        if self._until is None or anyio.current_time() > self._until:
            self._opened = await self._probe.ask(self._ids)
            self._until = anyio.current_time() + self._probe.fresh
        return bool(ids & self._opened)
