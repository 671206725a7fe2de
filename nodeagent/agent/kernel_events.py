# SPDX-License-Identifier: Apache-2.0
"""Hears the kernel: what it says becomes wakes, and what was lost of it is told."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from nodeagent.base import log
from nodeagent.base.watching import Watcher
from nodeagent.kernel.events.source import EventSource, Statistics
from nodeagent.kernel.root import Root
from nodeagent.kernel.wakes import Wakes

POLL = 5.0  # seconds between scans where the kernel sends no events
ARMING = 2.0  # seconds that the first scan waits for the source of events


class KernelEvents:
    """Feeds the wakes of one host."""

    name = "kernel events"

    def __init__(self, root: Root, watcher: Watcher, wakes: Wakes) -> None:
        self._source = EventSource(root, watcher, wakes)
        self._lost = 0

    @property
    def statistics(self) -> Statistics:
        """Where wakes come from, and how many."""
        return self._source.statistics()

    async def run(self) -> None:
        """Take events, for ever."""
        await self._source.run()

    def watch_nodes(self, paths: Sequence[str]) -> None:
        """Watch these device nodes from now on; scan after this call."""
        self._source.set_nodes(paths)

    async def listening(self, resync: float) -> None:
        """Wait, but not long, until no change can be missed any more; say so where the kernel sends none."""
        with anyio.move_on_after(ARMING):
            await self._source.armed.wait()
        if self.statistics.source == "poll":
            error = "a user namespace of its own gets no kernel events"
            seconds = f"{self.slow(resync):g}"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=seconds, error=error)

    def slow(self, resync: float) -> float:
        """Seconds after which all is scanned without an event; fewer than ``resync`` where none can come."""
        return min(resync, POLL) if self.statistics.source == "poll" else resync

    def tell_losses(self) -> None:
        """Say that events were lost, if that is new."""
        if self.statistics.lost > self._lost:
            self._lost = self.statistics.lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)
