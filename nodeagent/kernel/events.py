# SPDX-License-Identifier: Apache-2.0
"""The sources of events: each asks for a scan of one device, or of everything; none says what has changed.

On the running kernel they are uevents, which ``uevents`` reads, and inotify for what programs do: udev and
devtmpfs create device nodes with ordinary system calls. inotify watches the same directories on every root:
those of device nodes, the lists of devices and drivers in sysfs, and each driver's own. The kernel raises no
inotify event in sysfs for changes of its own. In a simulated host every change is made by a program, so there
inotify reports them all, and a simulated attribute is announced by a renewal of the device's link.
Where neither can report a change the slow timer finds it. Bursts are gathered by the observer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import anyio

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import mdevs, pci, usb
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import NODES
from nodeagent.model.ids import mdev_uuid, pci_address
from nodeagent.model.nodes import fits
from nodeagent.model.status import EventsStatus

if TYPE_CHECKING:
    from nodeagent.kernel.uevents import Reader

_DRIVERS = "/sys/bus/pci/drivers"
_DEVICE_LISTS = (pci.DEVICES, mdevs.DEVICES, mdevs.PARENTS)
_COMMON_NODES = frozenset({"/dev/iommu"})
_COMMON_DIRECTORIES = frozenset({"/dev", pci.VFIO, pci.VFIO_DEVICES})
_LINK_DIRECTORIES = ("/by-id", "/by-path")  # of udev's links to device nodes


class KernelEvents:
    """The component that watches the host below one root and asks for scans."""

    name = "kernel events"

    def __init__(
        self, root: Root, watcher: DirectoryWatcher, scan_requests: ScanRequests, timeouts: Timeouts
    ) -> None:
        self._root = root
        self._watcher = watcher
        self._scan_requests = scan_requests
        self._timeouts = timeouts
        self._nodes = NodeWatches(root, watcher, self._request_scan, common=True)
        self._device_lists = _Watches(root, watcher, self._device_listed)
        self._driver_list = _Watches(root, watcher, self._driver_listed)
        self._drivers = _Watches(root, watcher, self._driver_changed)
        self._usb = _Watches(root, watcher, self._usb_changed)
        self._reader: Reader | None = None
        self._inotify_events = 0
        self._uevents = 0  # of readers that have ended
        self._lost = 0  # likewise
        self._reported_losses = 0
        self.armed = anyio.Event()  # set when no change can be missed any more: scan after that
        self.watch_nodes(())

    def watch_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes as well from now on; scan after this call.

        With the directory of their nodes USB devices are watched.
        """
        self._nodes.set_nodes(paths)
        self._usb.set({usb.DEVICES} if self._nodes.includes(NODES) else ())

    @property
    def statistics(self) -> EventsStatus:
        """The counts of now; the source is "uevents", "tree" (inotify on a simulated host) or "poll"."""
        reader = self._reader
        source = "poll" if reader is None else "uevents"
        return EventsStatus(
            source=source if self._root.is_host else "tree",
            events=self._inotify_events + self._uevents + (reader.events if reader else 0),
            lost=self._lost + self._watcher.overflows + (reader.lost if reader else 0),
            foreign=reader.foreign if reader else 0,
            unwatched=len(self._watcher.unwatched),
        )

    def close(self) -> None:
        """End the watches."""
        self._nodes.close()
        for watches in (self._device_lists, self._driver_list, self._drivers, self._usb):
            watches.set(())

    async def run(self) -> None:
        """Watch until cancelled. :raises KernelRefused: if the source of events fails."""
        self._device_lists.set(_DEVICE_LISTS)
        self._driver_list.set((_DRIVERS,))
        self._watch_drivers()
        if self._root.is_host:
            from nodeagent.kernel import uevents  # here: a simulated host has no use for it

            if uevents.are_received(self._root):
                await self._read_uevents()
        self._set_armed()
        await anyio.sleep_forever()

    async def wait_until_listening(self, resync: float) -> None:
        """Wait, but not long, until no change can be missed; report it where the kernel sends no events."""
        with anyio.move_on_after(self._timeouts.event_source_start):
            await self.armed.wait()
        if self.statistics.source == "poll":
            error = "a user namespace of its own gets no kernel events"
            seconds = f"{self.resync_interval(resync):g}"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=seconds, error=error)

    def resync_interval(self, resync: float) -> float:
        """Seconds between scans without an event; fewer than ``resync`` where the kernel sends none."""
        return min(resync, self._timeouts.host_poll) if self.statistics.source == "poll" else resync

    def log_losses(self) -> None:
        """Report that events were lost, if that is new."""
        if self.statistics.lost > self._reported_losses:
            self._reported_losses = self.statistics.lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)

    def _request_scan(self, key: str | None) -> None:
        self._inotify_events += 1
        self._scan_requests.add(key)

    def _set_armed(self) -> None:
        self.armed.set()
        self._request_scan(None)

    async def _read_uevents(self) -> None:
        from nodeagent.kernel import uevents

        with uevents.open_socket() as sock:
            reader = self._reader = uevents.Reader(sock, uevents.from_kernel)
            self._set_armed()  # the socket listens from here on
            try:
                while True:
                    for event in await reader.receive():
                        if event is None:
                            self._request_scan(None)
                        else:
                            uevents.request_scans(event, self._scan_requests, usb=self._nodes.includes(NODES))
            finally:
                self._uevents += reader.events
                self._lost += reader.lost
                self._reader = None

    def _device_listed(self, change: Change) -> None:
        directory, name = self._root.host_path(change.directory), change.name
        if name is None or directory == mdevs.PARENTS:  # no key names the parent of mdevs
            self._request_scan(None)
        elif pci_address(name) or mdev_uuid(name):
            self._request_scan(name)

    def _driver_listed(self, _: Change) -> None:
        self._watch_drivers()
        self._request_scan(None)

    def _driver_changed(self, change: Change) -> None:
        if change.name is not None and pci_address(change.name):
            self._request_scan(change.name)

    def _usb_changed(self, change: Change) -> None:
        if change.name is None:
            self._request_scan(None)
        elif ":" not in change.name:  # interfaces are listed beside the devices
            self._request_scan(usb.scan_key(change.name))

    def _watch_drivers(self) -> None:
        self._drivers.set(f"{_DRIVERS}/{name}" for name in self._root.names(_DRIVERS))


class _Watches:
    """Directories of the host, for whose changes one function is called."""

    def __init__(self, root: Root, watcher: DirectoryWatcher, on_change: Callable[[Change], None]) -> None:
        self._root = root
        self._watcher = watcher
        self._on_change = on_change
        self._directories: frozenset[str] = frozenset()

    def set(self, directories: Iterable[str]) -> None:
        """Watch these from now on, and no others."""
        before, self._directories = self._directories, frozenset(directories)
        for directory in sorted(self._directories - before):
            self._watcher.watch(self._root.path(directory), self._on_change)
        for directory in before - self._directories:
            self._watcher.unwatch(self._root.path(directory), self._on_change)


class NodeWatches:
    """Asks for a scan of a device node, or of everything where a directory of nodes comes or goes."""

    def __init__(
        self,
        root: Root,
        watcher: DirectoryWatcher,
        request_scan: Callable[[str | None], None],
        *,
        common: bool = False,
    ) -> None:
        """``common``: watch the nodes of VFIO and iommufd as well."""
        self._root = root
        self._watches = _Watches(root, watcher, self._changed)
        self._request_scan = request_scan
        self._common = _COMMON_DIRECTORIES if common else frozenset[str]()
        self._nodes: frozenset[str] = frozenset()

    def set_nodes(self, paths: Iterable[str]) -> None:
        """Watch for these device nodes from now on; list them after this call."""
        self._nodes = frozenset(paths)
        self._watches.set(self._directories_of_nodes() | self._common)

    def includes(self, path: str) -> bool:
        """True if the path is one of those set."""
        return path in self._nodes

    def close(self) -> None:
        """End all watches."""
        self._watches.set(())

    def _directories_of_nodes(self) -> frozenset[str]:
        if not self._nodes:
            return frozenset()
        from nodeagent.kernel.scan import devnodes  # here: few nodes have rules for device nodes

        return frozenset(place for path in self._nodes for place in devnodes.watched_directories(path))

    def _changed(self, change: Change) -> None:
        path = f"{self._root.host_path(change.directory)}/{change.name}"
        if change.lost:
            self._request_scan(None)
        elif path.startswith("/dev/vfio/") or path in _COMMON_NODES or self._concerns(path):
            self._request_scan(path)

    def _concerns(self, path: str) -> bool:
        """True for one of the nodes, and for any name in a directory of links to device nodes."""
        if path.rpartition("/")[0].endswith(_LINK_DIRECTORIES):
            return True
        return any(fits(path, node) for node in self._nodes)
