# SPDX-License-Identifier: Apache-2.0
"""The parts of the daemon as tests wire them: real ones, on a simulated host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import anyio

from nodeagent import config
from nodeagent.agent.names import NameKeeper
from nodeagent.agent.observe import Observer
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.config import Settings, Sources, Timing
from nodeagent.kernel.events import KernelEvents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.sim.host import SimulatedHost

LATER = 3600.0


def settings(settle: float = 1.0, resync: float = LATER, holders: float = 60.0) -> Latest[Settings]:
    """The default settings with these times, in seconds."""
    return Latest(
        replace(config.load(Sources("/nonexistent", {}, {})), timing=Timing(settle, resync, holders))
    )


@dataclass
class Eyes:
    """What sees the host: the Observer and all that feeds it."""

    host: SimulatedHost
    snapshots: Snapshots = field(default_factory=lambda: Snapshots(Snapshot()))
    settings: Latest[Settings] = field(default_factory=settings)
    scan_requests: ScanRequests = field(default_factory=ScanRequests)
    watcher: DirectoryWatcher = field(default_factory=DirectoryWatcher)

    def __post_init__(self) -> None:
        root = Root(self.host.directory)
        self.events = KernelEvents(root, self.watcher, self.scan_requests, timeouts=Timeouts())
        self.names = NameKeeper(root)
        self.observer = Observer(
            root,
            self.snapshots,
            self.scan_requests,
            self.events,
            self.settings,
            self.names,
            timeouts=Timeouts(),
        )

    @property
    def now(self) -> Host:
        """The newest Host."""
        return self.snapshots.now.host

    @property
    def scans(self) -> int:
        """How many scans have ended."""
        return self.observer.scanned.get().number

    async def until(self, condition: Callable[[Host], bool]) -> Host:
        """Wait for a Host of that kind."""
        return (await until(self.snapshots, lambda snapshot: condition(snapshot.host))).host

    @asynccontextmanager
    async def open(self, *, events: bool = False) -> AsyncIterator[Eyes]:
        """After the first scan; with ``events`` changes are heard of."""
        async with anyio.create_task_group() as tasks:
            await self.observer.scan()
            tasks.start_soon(self.observer.run)
            if events:
                tasks.start_soon(self.watcher.run)
                tasks.start_soon(self.events.run)
            yield self
            tasks.cancel_scope.cancel()
        self.watcher.close()


async def until(snapshots: Snapshots, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """Wait for a Snapshot of that kind."""
    with anyio.fail_after(5):
        seen = -1
        while True:
            seen, snapshot = await snapshots.newer(seen)
            if condition(snapshot):
                return snapshot


def wanting(spec: Spec) -> Snapshots:
    """Snapshots of a node on which this is spec."""
    return Snapshots(Snapshot(spec=spec))
