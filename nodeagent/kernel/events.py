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

from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import Change, DirectoryWatcher, OnChange
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
        self._rule_nodes: frozenset[str] = frozenset()
        self._cdi_nodes: frozenset[str] = frozenset()
        self._reader: Reader | None = None
        self._events = 0
        self._lost = 0  # by readers
        self._reported_losses = 0
        self.armed = anyio.Event()  # set when no change can be missed any more: scan after that
        self._watch_nodes()

    def watch_rule_nodes(self, paths: Iterable[str]) -> None:
        """Watch for the device nodes that rules name from now on; scan after this call.

        With the directory of their nodes USB devices are watched.
        """
        self._rule_nodes = frozenset(paths)
        self._watch_nodes()
        self._watch({usb.DEVICES} if NODES in self._rule_nodes else (), self._usb_changed)

    def watch_cdi_nodes(self, paths: Iterable[str]) -> None:
        """Watch for the device nodes that CDI files name from now on; scan after this call."""
        self._cdi_nodes = frozenset(paths)
        self._watch_nodes()

    @property
    def statistics(self) -> EventsStatus:
        """The counts of now; the source is "uevents", "tree" (inotify on a simulated host) or "poll"."""
        source = "poll" if self._reader is None else "uevents"
        return EventsStatus(
            source=source if self._root.is_host else "tree",
            events=self._events,
            lost=self._lost + self._watcher.overflows,
            foreign=self._reader.foreign if self._reader else 0,
            unwatched=len(self._watcher.unwatched),
        )

    async def run(self) -> None:
        """Watch until cancelled. :raises KernelRefused: if the source of events fails."""
        self._watch(_DEVICE_LISTS, self._device_listed)
        self._watch((_DRIVERS,), self._driver_listed)
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
        if self._polls:
            error = "a user namespace of its own gets no kernel events"
            seconds = f"{self.resync_interval(resync):g}"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=seconds, error=error)

    def resync_interval(self, resync: float) -> float:
        """Seconds between scans without an event; fewer than ``resync`` where the kernel sends none."""
        return min(resync, self._timeouts.host_poll) if self._polls else resync

    @property
    def _polls(self) -> bool:
        """True where the kernel sends no events."""
        return self._root.is_host and self._reader is None

    def log_losses(self) -> None:
        """Report that events were lost, if that is new."""
        lost = self._lost + self._watcher.overflows
        if lost > self._reported_losses:
            self._reported_losses = lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)

    async def _read_uevents(self) -> None:
        from nodeagent.kernel import uevents

        with uevents.open_socket() as sock:
            reader = self._reader = uevents.Reader(sock, uevents.from_kernel)
            self._set_armed()  # the socket listens from here on
            try:
                while True:
                    for event in await reader.receive():
                        if event is None:
                            self._lost += 1
                            self._scan_requests.add(None)
                        else:
                            self._events += 1
                            uevents.request_scans(event, self._scan_requests, usb=NODES in self._rule_nodes)
            finally:
                self._reader = None

    def _set_armed(self) -> None:
        self.armed.set()
        self._request_scan(None)

    def _watch(self, directories: Iterable[str], on_change: OnChange) -> None:
        """Call ``on_change`` for changes in these directories of the host, and in no others."""
        self._watcher.watch_only(map(self._root.path, directories), on_change)

    def _watch_drivers(self) -> None:
        self._watch((f"{_DRIVERS}/{name}" for name in self._root.names(_DRIVERS)), self._driver_changed)

    def _watch_nodes(self) -> None:
        directories = set(_COMMON_DIRECTORIES)
        if nodes := self._rule_nodes | self._cdi_nodes:
            from nodeagent.kernel.scan import devnodes  # here: few nodes have rules for device nodes

            directories.update(place for path in nodes for place in devnodes.watched_directories(path))
        self._watch(directories, self._node_changed)

    def _request_scan(self, key: str | None) -> None:
        self._events += 1
        self._scan_requests.add(key)

    # What a change of a directory requests

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

    def _node_changed(self, change: Change) -> None:
        path = f"{self._root.host_path(change.directory)}/{change.name}"
        if change.lost:
            self._request_scan(None)
        elif path.startswith("/dev/vfio/") or path in _COMMON_NODES or self._concerns(path):
            self._request_scan(path)

    def _concerns(self, path: str) -> bool:
        """True for one of the nodes, and for any name in a directory of links to device nodes."""
        if path.rpartition("/")[0].endswith(_LINK_DIRECTORIES):
            return True
        return any(fits(path, node) for node in self._rule_nodes | self._cdi_nodes)
