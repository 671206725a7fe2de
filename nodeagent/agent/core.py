# SPDX-License-Identifier: Apache-2.0
"""What components share: the Snapshot, what sees the host, which pod uses which device.

Built once, before anything runs. A feature takes it and returns its components.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.agent import recoveries
from nodeagent.agent.allocate import UsbNodes
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.names import NameKeeper
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.cluster import account
from nodeagent.config import Settings
from nodeagent.kernel.events.source import KernelEvents
from nodeagent.kernel.root import Root
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.kubevirt import ClusterWishes
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import LOANS_RECORD
from nodeagent.policy import merge


class RequestQueue:
    """Manual requests wait here until the code that answers them is loaded (``agent.changing.requests``)."""

    def __init__(self, snapshots: Snapshots) -> None:
        self.wanted = False  # a request has come
        self.handler: Latest[Callable[[bytes, int], Awaitable[dict[str, Any]]] | None] = Latest(None)
        self._snapshots = snapshots

    async def reply(self, question: bytes, asker: int) -> dict[str, Any]:
        """The plain data of the answer to that of a request; ``asker``: the process that asks."""
        self.wanted = True
        self._snapshots.ring()  # for ``app``, which loads that code
        while (handler := self.handler.get()) is None:
            await self.handler.newer(self.handler.version)
        return await handler(question, asker)


@dataclass(frozen=True, slots=True)
class Core:
    """The shared parts of one daemon."""

    root: Root
    settings: Latest[Settings]
    timeouts: Timeouts
    cluster: Latest[ClusterWishes]
    watcher: DirectoryWatcher
    supervisor: Supervisor
    snapshots: Snapshots
    wakes: Wakes
    events: KernelEvents
    observer: Observer
    names: NameKeeper
    reservations: ReservationBook
    releases: Releases
    kubelet: KubeletView
    usage: Usage
    offering: Offering
    usb_nodes: Latest[UsbNodes | None]  # None until the code for USB devices is loaded
    requests: RequestQueue


def build(root: Root, settings: Latest[Settings], timeouts: Timeouts) -> Core:
    """The shared parts, wired."""
    watcher, wakes = DirectoryWatcher(root.prefix), Wakes()
    cluster = Latest(_said_before(root, settings.get()))
    wishes = cluster.get()
    desired = merge.merge(settings.get().configuration, wishes.kubevirt, wishes.labels)
    snapshots = Snapshots(Snapshot(desired=desired))
    events = KernelEvents(root, watcher, wakes, timeouts)
    chosen = settings.get().configuration.discovery.pci_ids
    names = NameKeeper(root, chosen)
    observer = Observer(root, snapshots, wakes, events, settings, names, timeouts)
    releases = Releases(settings)
    releases.look_with(observer)
    reservations = ReservationBook(snapshots, timeouts)
    kubelet = KubeletView(root, settings.get(), snapshots, timeouts)
    usage = Usage(kubelet, snapshots, reservations, observer, releases, settings, timeouts)
    return Core(
        root,
        settings,
        timeouts,
        cluster,
        watcher,
        Supervisor(timeouts),
        snapshots,
        wakes,
        events,
        observer,
        names,
        reservations,
        releases,
        kubelet,
        usage,
        Offering(snapshots, releases, timeouts),
        Latest(None),
        RequestQueue(snapshots),
    )


def _said_before(root: Root, settings: Settings) -> ClusterWishes:
    """What the cluster said to the daemon before this one: nothing is decided without it."""
    if not account.reaches(settings.configuration.following):
        return ClusterWishes()
    from nodeagent.agent.cluster import state  # here: most nodes ask no cluster

    return state.FILE.load(root.path(state.PATH)).wishes


async def first_scan(core: Core) -> None:
    """The first scan, as soon as no change can be missed any more."""
    if not core.watcher.has_instance:
        error = "the kernel gives no inotify instance; raise fs.inotify.max_user_instances"
        seconds = f"{core.timeouts.directory_check:g}"
        log.event(log.EVENTS_UNAVAILABLE, source="inotify", seconds=seconds, error=error)
    await core.events.listening(core.settings.get().timing.resync)
    await recoveries.restore(core.root, core.wakes)
    await first_specs(core)
    with contextlib.suppress(KernelRefused):  # whoever lends reads it once more
        await _lent_before(core)
    await core.observer.scan()


async def first_specs(core: Core) -> None:
    """What CDI files say that rules ask for, before the first scan."""
    if core.snapshots.now.desired.cdi_kinds:
        from nodeagent.agent import cdi_specs  # here: few nodes have rules for such

        desired, limit = core.snapshots.now.desired, core.timeouts.cdi_directory_read
        core.wakes.specs = await cdi_specs.first(core.root, desired, limit)


async def _lent_before(core: Core) -> None:
    """What pods were lent by the daemon before this one: the first list has none of it as free."""
    if core.root.exists(LOANS_RECORD):
        from nodeagent.agent import usb  # here: few nodes have such a record

        loans = await threads.call(usb.FILE.peek, core.root.path(LOANS_RECORD))
        core.snapshots.publish(replace(core.snapshots.now, loans=loans))
