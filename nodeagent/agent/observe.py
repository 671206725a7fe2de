# SPDX-License-Identifier: Apache-2.0
"""Scans the host after kernel events and on request. No other module writes ``host`` and ``names`` of the
Snapshot.

The first event after a quiet time starts a scan at once. Events right after a scan are collected until none
has arrived for a moment, with an upper bound. Scans run one after the other, so an older scan never
overwrites a newer one. A caller that needs current facts waits for a scan that starts after its call. A
device whose driver is still initializing is scanned again soon, because no event shows when it is ready. A
device that stops answering, or answers again, is logged once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import anyio

from nodeagent.agent.names import NameKeeper
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Heartbeat
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kernel import aer
from nodeagent.kernel.events import KernelEvents
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.readers import NOT_READABLE
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, mdev_uuid, pci_address
from nodeagent.model.nodes import cdi_nodes
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import NO_DURATIONS, Durations, HostStatus
from nodeagent.policy import groups

_HOST = "the host"


class Scanned(NamedTuple):
    """The number of the last finished scan, its error if it failed, and the durations of all scans."""

    number: int = 0
    error: KernelRefused | None = None
    durations: Durations = NO_DURATIONS


class Observer:
    """The component that runs the scans."""

    name = "observe"

    def __init__(
        self,
        root: Root,
        snapshots: Snapshots,
        scan_requests: ScanRequests,
        events: KernelEvents,
        settings: Latest[Settings],
        names: NameKeeper,
        timeouts: Timeouts,
    ) -> None:
        self.heartbeat = Heartbeat("the loop that scans the host", timeouts.loop_turn)
        self.scanned: Latest[Scanned] = Latest(Scanned())
        self._snapshots = snapshots
        self._scan_requests = scan_requests
        self._gathering = Gathering(scan_requests, timeouts)
        self._events = events
        self._settings = settings
        self._names = names
        self._timeouts = timeouts
        self._scanner = Scanner(root, scan_requests, timeouts, deadline=timeouts.device_read)
        self._reports = ReadReports(timeouts.device_read)
        self._rescans = UnfinishedRescans(scan_requests, timeouts.rescan_delays)

    @property
    def status(self) -> HostStatus:
        """The numbers of the host for ``nodeagent status``."""
        events = self._events.statistics
        now = self._snapshots.now
        stuck, unread = self._scanner.stuck, self._reports.unreadable
        return HostStatus.of(
            now.host, stuck, events, self.scanned.get().durations, now.allocations.holders, unread
        )

    def wake(self, keys: Iterable[str | None]) -> None:
        """Request a scan of the devices with these keys; the key None means everything."""
        for key in keys:
            self._scan_requests.add(key)

    async def run(self) -> None:
        """Scan whenever there is a scan request, for ever."""
        while True:
            slow = self._events.resync_interval(self._settings.get().timing.resync)
            if not await self.heartbeat.wait(self._gathering.due(slow)):
                continue
            await self.scan()
            if self._reports.unreadable is not None:
                self._scan_requests.add(None)  # repeats the requests of the failed scan
                await anyio.sleep(self._timeouts.failed_scan_retry)

    async def follow_nodes(self) -> None:
        """Watch the device nodes that rules name; scan when these, or device nodes of pods, change."""
        seen, paths, before = -1, tuple[str, ...](), Snapshot()
        while True:
            seen, snapshot = await self._snapshots.newer(seen)
            if snapshot.spec is not before.spec and snapshot.spec.node_paths != paths:
                paths = snapshot.spec.node_paths
                self._events.watch_rule_nodes(paths)
                self._scan_requests.add(None)
            nodes_changed = snapshot.allocations.nodes is not before.allocations.nodes
            if (nodes_changed or snapshot.loans is not before.loans) and not snapshot.allocated_nodes_scanned:
                self._scan_requests.add(snapshot.allocated_nodes_beyond_rules[0])
            before = snapshot

    async def recheck(self, ids: Sequence[str], functions: Sequence[PciAddress] = ()) -> None:
        """Read these devices and their groups from sysfs, and scan them if they differ from the Host.

        One word of the PCI configuration space of ``functions`` is read, too: a function that does not answer
        has fallen off the bus. If a read hangs in the kernel, this call waits, and the device is Unhealthy
        meanwhile.

        :raises KernelRefused: if changed devices could not be read; the Host is the old one then.
        """
        keys = frozenset(ids)
        overdue = asyncio.get_running_loop().call_later(self._timeouts.device_read, self.wake, keys)
        try:
            unchanged, fallen = await self._scanner.recheck(ids, self._snapshots.now.host, functions)
        finally:
            overdue.cancel()
        for address in fallen:
            self._scan_requests.recovery(address, Recovery.FALLEN)
        if fallen or not unchanged:
            await self._wait_for_scan(keys)
            if (error := self.scanned.get().error) is not None:
                raise error
        with anyio.move_on_after(self._timeouts.device_read):  # a scan that began before may lack them
            while any(each.unreadable == NOT_READABLE for each in self._snapshots.now.host.devices_of(keys)):
                await self.scanned.newer(self.scanned.version)

    async def refresh(self, ids: Collection[str]) -> None:
        """Scan the devices with these ids, as far as they exist, and wait a limited time for the scan."""
        host = self._snapshots.now.host
        keys = frozenset(device_id for device_id in ids if host.device(device_id) is not None)
        if keys:
            await self.rescan(keys)

    async def rescan(self, keys: frozenset[str] | frozenset[None]) -> None:
        """Scan the devices with these keys (None: everything), and wait a limited time for the scan."""
        with anyio.move_on_after(2 * self._timeouts.device_read):
            await self._wait_for_scan(keys)

    async def _wait_for_scan(self, keys: frozenset[str] | frozenset[None]) -> None:
        self.wake(keys)
        wanted = self._gathering.started + 1
        while self.scanned.get().number < wanted:
            await self.scanned.newer(self.scanned.version)

    async def scan(self) -> None:
        """Scan the devices of all scan requests so far. Only one scan may run at a time."""
        self._events.log_losses()
        keys, number, before = self._gathering.take(), self._gathering.started, self._snapshots.now
        specs, error, began = self._scan_requests.specs, None, anyio.current_time()
        nodes = (
            *before.spec.node_paths,
            *(cdi_nodes(specs) if specs else ()),
            *before.allocated_nodes_beyond_rules,
        )
        try:
            host = await self._scanner.scan(keys, before.host, nodes, self._scan_requests.recoveries, specs)
            self._scan_requests.settle(host)
            with self.heartbeat.paused():
                names = await self._names.names(host, before.names)
        except KernelRefused as refused:
            host, names, error = before.host, before.names, refused
        except Exception:
            self._scan_requests.add(None)  # repeats the requests of the failed scan
            raise
        durations = self.scanned.get().durations.and_one(anyio.current_time() - began)
        self._reports.report(self._scanner.stuck, error)
        scanned_nodes = before.scanned_nodes if error else frozenset(nodes)
        now = replace(self._snapshots.now, host=host, names=names, scanned_nodes=scanned_nodes)
        self._snapshots.publish(now)
        self._rescans.follow(host)
        self.scanned.set(Scanned(number, error, durations))
        self.heartbeat.turned()


async def warn_of_old_errors(root: Root, snapshots: Snapshots, limit: float) -> None:
    """Log fatal PCI errors from before the start, if they can be read within ``limit`` seconds."""
    with anyio.move_on_after(limit):
        host = snapshots.now.host
        for address, count in await threads.call(_find_fatal_errors, root, host):
            text = f"{count} fatal errors were counted before nodeagent started"
            group = host.functions[address].group
            log.event(log.AER_WARNING, pci_address=address, text=text, device=address, group=group)


def _find_fatal_errors(root: Root, host: Host) -> list[tuple[PciAddress, int]]:
    bound: list[PciFunction] = [
        function for function in host.functions.values() if function.vfio and function.recovery is None
    ]
    counts = ((function.address, aer.fatal_errors(root, function.address)) for function in bound)
    return [(address, count) for address, count in counts if count]


class Gathering:
    """Combines scan requests into scans; ``started`` is the number of started scans."""

    def __init__(self, scan_requests: ScanRequests, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.started = 0
        self._scan_requests = scan_requests
        self._everything = -math.inf  # when the last scan of everything was started

    def take(self) -> frozenset[str] | None:
        """The keys to scan now, None for everything; later requests wait for the next scan."""
        self.started += 1
        keys = self._scan_requests.take()
        if keys is None:
            self._everything = anyio.current_time()
        return keys

    async def due(self, slow: float) -> None:
        """Wait until a scan is due; it is a full scan if the last full scan was ``slow`` seconds ago.

        Requests for single devices do not delay the full scan: nodeagent may poll a device every two seconds
        for days.
        """
        began = anyio.current_time()
        remaining = max(self._everything + slow - began, 0)
        if not remaining or not self._scan_requests.due:
            with anyio.move_on_after(remaining) as wait:
                await self._scan_requests.newer(self._scan_requests.version)
            if wait.cancelled_caught:
                self._scan_requests.add(None)
        if anyio.current_time() - began < self._timeouts.event_burst_gap:
            await self._gather()

    async def _gather(self) -> None:
        """Wait until no scan request has come for a moment, but not longer than an upper bound."""
        end = anyio.current_time() + self._timeouts.event_burst
        while anyio.current_time() < end:
            seen = self._scan_requests.version
            with anyio.move_on_after(self._timeouts.event_burst_gap):
                await self._scan_requests.newer(seen)
                continue
            return


class UnfinishedRescans:
    """Requests scans of devices whose driver is still initializing, a few times with growing delays."""

    def __init__(self, scan_requests: ScanRequests, delays: Sequence[float]) -> None:
        """``delays``: seconds between scans of such a device; after these only the periodic scan reads it."""
        self._delays = delays
        self._scan_requests = scan_requests
        self._unfinished: frozenset[str] = frozenset()
        self._pauses: Iterator[float] = iter(())
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, host: Host) -> None:
        """Start again with the first delay if one more device has an initializing driver."""
        before = self._unfinished
        self._unfinished = frozenset(
            function.address for function in host.functions.values() if groups.is_unfinished(function)
        )
        if self._unfinished - before:
            self._pauses = iter(self._delays)
            if self._timer is not None:  # its delay may be long by now
                self._timer.cancel()
                self._timer = None
        if self._unfinished and self._timer is None:
            pause = next(self._pauses, None)
            if pause is not None:
                self._timer = asyncio.get_running_loop().call_later(pause, self._request_scan)

    def _request_scan(self) -> None:
        self._timer = None
        for address in self._unfinished:
            self._scan_requests.add(address)


class ReadReports:
    """Logs unreadable parts of the host. ``unreadable``: why the host cannot be read at all, or None."""

    def __init__(self, deadline: float) -> None:
        """``deadline``: seconds after which a read counts as hanging, for the message."""
        self.unreadable: str | None = None
        self._deadline = deadline
        self._hanging: frozenset[str] = frozenset()

    def report(self, hanging: Iterable[str], error: KernelRefused | None) -> None:
        """Log changes. ``hanging``: keys of devices that do not answer; ``error``: why the last scan failed.

        The path in the error of a scan is added to the keys of devices that do not answer.
        """
        now = frozenset(hanging)
        if error is not None and error.path:
            now, error = now | {error.path}, None
        before, self._hanging = self._hanging, now
        for key in sorted(now - before):
            seconds = str(self._deadline)
            log.event(
                log.HOST_READ_SLOW,
                object=key,
                seconds=seconds,
                device=_device(key),
                pci_address=pci_address(key),
            )
        for key in sorted(before - now):
            log.event(log.HOST_READ_RECOVERED, object=key, device=_device(key), pci_address=pci_address(key))
        was_unreadable, self.unreadable = self.unreadable, None if error is None else error.what
        if error is not None and was_unreadable is None:
            log.event(log.HOST_READ_FAILED, error=error.what, hint=error.hint)
        elif error is None and was_unreadable is not None:
            log.event(log.HOST_READ_RECOVERED, object=_HOST)


def _device(key: str) -> str | None:
    """The key of a scan request if it is a PCI address or an mdev UUID; None for an IOMMU group."""
    return pci_address(key) or mdev_uuid(key)
