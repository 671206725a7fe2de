# SPDX-License-Identifier: Apache-2.0
"""The sources of kernel events: each event requests a scan of one device or of everything.

On the running kernel these are uevents, read by ``uevents``, and inotify for changes by programs: udev and
devtmpfs create device nodes with ordinary system calls. inotify watches the same directories below every
root: those of device nodes, the lists of devices and drivers in sysfs, and each driver's directory. For its
own changes in sysfs, the kernel raises no inotify event. In a simulated host, programs make all changes, so
inotify reports them; a program that changes an attribute then replaces the link of the device, to cause an
event. A slow timer finds changes that neither uevents nor inotify report. The observer merges bursts.
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
_LINK_DIRECTORIES = ("/by-id", "/by-path")  # directories of udev's links to device nodes


class KernelEvents:
    """The component that watches the host below one root and requests scans."""

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
        self._lost = 0  # by readers of the sockets
        self._reported_losses = 0
        self.armed = anyio.Event()  # set when no change can be missed; scan after that
        self._watch_nodes()

    def watch_rule_nodes(self, paths: Iterable[str]) -> None:
        """Watch for changes of the device nodes that rules name; the caller scans after this call.

        USB devices are watched if the directory of their device nodes is one of ``paths``.
        """
        self._rule_nodes = frozenset(paths)
        self._watch_nodes()
        self._watch({usb.DEVICES} if NODES in self._rule_nodes else (), self._usb_changed)

    def watch_cdi_nodes(self, paths: Iterable[str]) -> None:
        """Watch for changes of the device nodes that CDI files name; the caller scans after this call."""
        self._cdi_nodes = frozenset(paths)
        self._watch_nodes()

    @property
    def statistics(self) -> EventsStatus:
        """Return the current counts; the source is "uevents", "tree" (inotify on a simulated host) or
        "poll".
        """
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
            from nodeagent.kernel import uevents  # imported here because a simulated host does not need it

            if uevents.are_received(self._root):
                await self._read_uevents()
        self._set_armed()
        await anyio.sleep_forever()

    async def wait_until_listening(self, resync: float) -> None:
        """Wait for a limited time until no change can be missed; report if the kernel sends no events."""
        with anyio.move_on_after(self._timeouts.event_source_start):
            await self.armed.wait()
        if self._polls:
            error = "a process in a separate user namespace receives no kernel uevents"
            seconds = f"{self.resync_interval(resync):g}"
            log.event(log.EVENTS_UNAVAILABLE, source="the kernel", seconds=seconds, error=error)

    def resync_interval(self, resync: float) -> float:
        """Seconds between scans without an event; fewer than ``resync`` if the kernel sends no events."""
        return min(resync, self._timeouts.host_poll) if self._polls else resync

    @property
    def _polls(self) -> bool:
        """True if the kernel sends no events."""
        return self._root.is_host and self._reader is None

    def log_losses(self) -> None:
        """Log that events were lost, if any were lost since the last call."""
        lost = self._lost + self._watcher.overflows
        if lost > self._reported_losses:
            self._reported_losses = lost
            log.event(log.EVENTS_LOST, source=self.statistics.source)

    async def _read_uevents(self) -> None:
        from nodeagent.kernel import uevents

        with uevents.open_socket() as sock:
            reader = self._reader = uevents.Reader(sock, uevents.from_kernel)
            self._set_armed()  # the socket receives events from here on
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
        """Call ``on_change`` for changes in exactly these directories of the host."""
        self._watcher.watch_only(map(self._root.path, directories), on_change)

    def _watch_drivers(self) -> None:
        self._watch((f"{_DRIVERS}/{name}" for name in self._root.names(_DRIVERS)), self._driver_changed)

    def _watch_nodes(self) -> None:
        directories = set(_COMMON_DIRECTORIES)
        if nodes := self._rule_nodes | self._cdi_nodes:
            # imported here because few nodes have rules for device nodes
            from nodeagent.kernel.scan import devnodes

            directories.update(place for path in nodes for place in devnodes.watched_directories(path))
        self._watch(directories, self._node_changed)

    def _request_scan(self, key: str | None) -> None:
        self._events += 1
        self._scan_requests.add(key)

    # The scans that a change in a directory requests

    def _device_listed(self, change: Change) -> None:
        directory, name = self._root.host_path(change.directory), change.name
        if name is None or directory == mdevs.PARENTS:  # the event does not name the parent of the mdevs
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
        elif ":" not in change.name:  # the directory also lists USB interfaces
            self._request_scan(usb.scan_key(change.name))

    def _node_changed(self, change: Change) -> None:
        path = f"{self._root.host_path(change.directory)}/{change.name}"
        if change.lost:
            self._request_scan(None)
        elif path.startswith("/dev/vfio/") or path in _COMMON_NODES or self._concerns(path):
            self._request_scan(path)

    def _concerns(self, path: str) -> bool:
        """Return True for a watched device node, and for any name in a directory of links to device nodes."""
        if path.rpartition("/")[0].endswith(_LINK_DIRECTORIES):
            return True
        return any(fits(path, node) for node in self._rule_nodes | self._cdi_nodes)
