# SPDX-License-Identifier: Apache-2.0
"""Scans the host: everything, or only the devices that an event named.

One thread reads the devices one after the other, each with the Reader of its table. A reader may name further
objects to read (``follow``): the group that a function has left, the PF of a VF, the parents of an mdev. A
read of sysfs sleeps as long as the kernel locks the device, and no signal ends it. So a thread that reads one
device for longer than the deadline is replaced by another thread, which reads the other devices; the hanging
device is listed as unreadable with its last known state, and is not read again before the first thread has
returned. Each hanging device makes the first scan one deadline longer; later scans take no longer.
``agent.observe`` and the commands call this module; ``assembly`` merges the results.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import anyio

from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import open_files
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import assembly, groups, mdevs, nvidia, pci, usb
from nodeagent.kernel.scan.readers import Item, Reader
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import NODES, Host, HostUses, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import CdiFile, DevNode

NO_SPECS: Final[Mapping[str, CdiFile]] = MappingProxyType({})
COMMON_NODES = ("/dev/vfio/vfio", "/dev/iommu")
READERS: Mapping[str, Reader] = {
    reader.table: reader
    for reader in (pci.READER, mdevs.READER, groups.READER, mdevs.PARENTS_READER, usb.READER)
}
_LISTS = Item("", "/sys")  # an item for the lists of devices


class Scanner:
    """Scans the host below one root; used on the event loop."""

    def __init__(
        self, root: Root, scan_requests: ScanRequests, timeouts: Timeouts, *, deadline: float
    ) -> None:
        """Create the scanner. When a hanging device can be read again, a scan of it is requested in
        ``scan_requests``.

        ``deadline``: seconds for one device.
        """
        self._root = root
        self._scan_requests = scan_requests
        self._deadline = deadline
        self._open_files = threads.OneByOne()
        self._opener_scan = timeouts.opener_scan
        self._host_uses = threads.OneByOne()
        self._stuck: Counter[Item] = Counter()

    @property
    def stuck(self) -> tuple[str, ...]:
        """Return the keys of the devices that a thread is still reading after a scan."""
        return tuple(sorted(str(item.key) for item in self._stuck if item != _LISTS))

    async def scan(
        self,
        keys: frozenset[str] | None,
        previous: Host,
        nodes: Sequence[str],
        recoveries: Mapping[PciAddress, Recovery],
        specs: Mapping[str, CdiFile] = NO_SPECS,
    ) -> Host:
        """Return the current Host: scan everything (``keys`` None), or only the devices that the keys name.

        ``nodes``: device nodes to list besides those of VFIO; ``recoveries``: the latest results of AER
        events. ``specs``: the contents of CDI files, whose nodes are among ``nodes``.

        :raises KernelRefused: if the list of devices cannot be read in time, or nothing can be read.
        """
        reads = _Reads(self._root, keys, previous, nodes, recoveries, specs, frozenset(self._stuck))
        host = await self._scan_devices(reads)
        read = reads.found["functions"]
        host = await open_files.add_openers(host, read, self._root, self._open_files, self._opener_scan)
        return await self._scan_host_use(host, previous, None if reads.whole else map(PciAddress, read))

    async def recheck(
        self, ids: Sequence[str], host: Host, functions: Sequence[PciAddress] = ()
    ) -> tuple[bool, Sequence[PciAddress]]:
        """Return True if these functions, mdevs and nodes, and their groups, are unchanged since ``host``.

        The second result lists the ``functions`` whose configuration space does not answer; reading it wakes
        a sleeping function. Waits without a limit.
        """

        def read() -> tuple[bool, Sequence[PciAddress]]:
            unchanged = _reads_as_known(self._root, ids, host)
            return unchanged, [each for each in functions if pci.has_fallen_off_bus(self._root, each)]

        return await threads.call(read)

    async def _scan_devices(self, reads: _Reads) -> Host:
        if _LISTS in self._stuck:
            raise _no_list()
        while True:
            call, item = threads.start(reads.run), None
            try:
                while item is None and not call.done():
                    with anyio.move_on_after(reads.remaining(self._deadline)) as scope:
                        await asyncio.wait([call])
                    if scope.cancelled_caught:
                        item = reads.replace_thread(self._deadline)
            finally:  # the scan may have been cancelled
                if not call.done() and (left := item or reads.replace_thread(0.0)) is not None:
                    self._stuck[left] += 1
                    call.add_done_callback(functools.partial(self._forget, left))
            if item == _LISTS:
                raise _no_list()
            if item is None and (host := call.result()) is not None:
                return host

    def _forget(self, item: Item, _: object) -> None:
        """Request a new scan of a hanging device when its thread has returned."""
        self._stuck[item] -= 1
        if self._stuck[item] <= 0:
            del self._stuck[item]
            self._scan_requests.add(None if item == _LISTS else str(item.key))

    async def _scan_host_use(self, host: Host, before: Host, read: Iterable[PciAddress] | None) -> Host:
        """Return the Host with the uses of functions by the host; ``read`` are the functions scanned, None:
        all.

        Only functions that have changed or that the host uses are examined, because the end of a use changes
        no other attribute of a function. If the examination does not finish in time, the previous result is
        kept; before each driver change, a more detailed examination is made.
        """
        if read is None:
            scope = list(host.functions.values())
        else:
            changed = host.changes_since(before).functions
            scanned = (host.functions[address] for address in {*read, *changed} if address in host.functions)
            scope = [each for each in scanned if each.address in changed or (each.uses and each.uses.found)]
        wanted = [each.address for each in scope if each.usable and each.unreadable is None]
        found = None
        if wanted:
            found = await self._host_uses.call(self._deadline, _read_host_uses, self._root, wanted)
        kept = {each.address: each.uses for each in scope if each.usable}
        return host.with_uses(dict.fromkeys(each.address for each in scope) | kept | (found or {}), before)


class _Reads:
    """The reads of one scan, by one thread at a time: ``run`` is called in a thread, other methods on the
    loop.

    A thread that was replaced reads no further device, and its late result is dropped.
    """

    def __init__(
        self,
        root: Root,
        keys: frozenset[str] | None,
        previous: Host,
        nodes: Sequence[str],
        recoveries: Mapping[PciAddress, Recovery],
        specs: Mapping[str, CdiFile],
        stuck: frozenset[Item],
    ) -> None:
        self._root = root
        self._previous = previous
        self._nodes = nodes
        self._recoveries = dict(recoveries)
        self._specs = specs
        self._stuck = stuck
        self._named = None if keys is None else resolve(keys, previous)
        self.whole = self._named is None
        self.found: dict[str, dict[str, Any]] = {table: {} for table in READERS}
        self._frame: Host | None = None
        self._pending: deque[Item] = deque()
        self._known: set[Item] = set()
        self._lock = threading.Lock()
        self._thread = 0  # the number of the thread that reads
        self._item: Item | None = None  # the device that it reads
        self._since = 0.0  # monotonic seconds

    def run(self) -> Host | None:
        """Read all pending devices and return the Host; None if this thread was replaced meanwhile."""
        with self._lock:
            self._thread += 1
            number = self._thread
            self._item, self._since = None if self._frame else _LISTS, time.monotonic()
        if self._frame is None and not self._list(number):
            return None
        item: Item | None = None
        value: object = None
        while True:
            with self._lock:
                if number != self._thread:
                    return None
                if item is not None:
                    self._put(item, value)
                item = self._item = self._pending.popleft() if self._pending else None
                self._since = time.monotonic()
            if item is None:
                break
            value = READERS[item.table].read(self._root, item.key)
        if self._frame is None:
            return None
        check_fallen(self._root, self.found["functions"], self._recoveries)
        return assembly.assemble(self.found, self._frame, self._previous, self._recoveries, whole=self.whole)

    def remaining(self, deadline: float) -> float:
        """Return the seconds until the current read exceeds the deadline."""
        with self._lock:
            return deadline if self._item is None else self._since + deadline - time.monotonic()

    def replace_thread(self, deadline: float) -> Item | None:
        """Replace the thread after the deadline; return the device that it reads, now listed as unreadable,
        or None.
        """
        with self._lock:
            item = self._item
            if item is None or time.monotonic() - self._since < deadline:
                return None
            self._item = None
            self._thread += 1
            if item != _LISTS:
                self._put_unanswered(item)
            return item

    def _list(self, number: int) -> bool:
        """Read the lists of devices, and all facts besides devices; False if this thread was replaced
        meanwhile.
        """
        frame = read_frame(self._root, self._previous, self._nodes, whole=self.whole)
        items = self._named if self._named is not None else tuple(list_devices(self._root, self._nodes))
        specs = self._previous.cdi if self._previous.cdi == self._specs else self._specs
        with self._lock:
            if number != self._thread:
                return False
            self._frame = replace(frame, cdi=specs)
            self._add(items)
            return True

    def _put(self, item: Item, value: object) -> None:
        self.found[item.table][item.key] = value
        if self.whole:
            return  # the other tables are listed; parents of mdevs come last
        if item.table == "mdev_parents":
            self._known.discard(item)
        self._add(READERS[item.table].follow(item.key, value, self._previous))

    def _put_unanswered(self, item: Item) -> None:
        self.found[item.table][item.key] = READERS[item.table].unanswered(item.key, self._previous)

    def _add(self, items: Iterable[Item]) -> None:
        """Add objects to read; each is read once, except an mdev parent that is added again after it was
        read.

        The free capacity of a parent may have changed without an event.
        """
        for item in items:
            if item in self._known:
                continue
            self._known.add(item)
            if item in self._stuck:
                self._put_unanswered(item)
            else:
                self._pending.append(item)


def resolve(keys: Iterable[str], previous: Host) -> tuple[Item, ...] | None:
    """Return the devices that the keys of events name; None if a key names no device: then everything must be
    read.

    A key is a PCI address, an mdev UUID, a VFIO device name (``vfio3``), a device node (``/dev/vfio/13``), a
    USB device (``usb:1-1.2``, or its id) or an IOMMU group's directory. The keys are looked up in the
    previous Host, without I/O.
    """
    items: dict[str, dict[Item, None]] = {table: {} for table in READERS}
    for key in sorted(keys):
        answers = ((reader.table, reader.named(key, previous)) for reader in READERS.values())
        table, names = next(((t, n) for t, n in answers if n is not None), ("", None))
        if names is not None:
            items[table] |= {Item(table, name): None for name in names}
        elif not key.startswith("/dev/"):  # nodes are listed in each scan
            return None
    return tuple(item for table in items.values() for item in table)


def list_devices(root: Root, nodes: Sequence[str]) -> Iterable[Item]:
    """Return all devices of all tables. May hang."""
    for reader in READERS.values():
        if reader.table != "usb" or NODES in nodes:
            yield from (Item(reader.table, key) for key in reader.list(root))


def read_frame(root: Root, previous: Host, nodes: Sequence[str], *, whole: bool) -> Host:
    """Return a Host with all facts besides devices: device nodes, NUMA nodes, IOMMU, kernel modules. May
    hang.

    Facts that do not change until a reboot are read only by full scans.
    """
    dev_nodes = read_nodes(root, nodes)
    lasting = previous
    vfio_loaded = root.exists("/sys/bus/pci/drivers/vfio-pci")
    if whole:
        numa, iommus = root.names("/sys/devices/system/node"), root.names("/sys/class/iommu")
        lasting = Host(
            numa_nodes=frozenset(int(n[4:]) for n in numa if n.startswith("node") and n[4:].isdecimal()),
            iommu=bool(iommus),
            vtd=any(name.startswith("dmar") for name in iommus),
            release=root.text("/proc/sys/kernel/osrelease"),
            boot_framebuffers=pci.read_boot_framebuffers(root),
        )
        if not iommus or not vfio_loaded:
            lasting = _with_missing(root, lasting, vfio_loaded=vfio_loaded)
    return Host(
        nodes=existing_nodes(root, dev_nodes),
        dev_nodes=assembly.keep_equal(previous.dev_nodes, dev_nodes),
        numa_nodes=lasting.numa_nodes,
        iommu=lasting.iommu,
        vtd=lasting.vtd,
        vfio_loaded=vfio_loaded,
        sriov_manage=root.exists(nvidia.SRIOV_MANAGE),
        egm=nvidia.find_egm_nodes(root),
        release=lasting.release,
        boot_framebuffers=lasting.boot_framebuffers,
        iommu_missing=lasting.iommu_missing,
        vfio_missing=None if vfio_loaded else lasting.vfio_missing,
    )


def _with_missing(root: Root, host: Host, *, vfio_loaded: bool) -> Host:
    """Return the Host with the reasons for a missing IOMMU or vfio-pci driver."""
    from nodeagent.kernel import prerequisites  # imported here because most nodes have both

    return replace(
        host,
        iommu_missing=None if host.iommu else prerequisites.explain_iommu_off(root),
        vfio_missing=None if vfio_loaded else prerequisites.explain_vfio_missing(root, host.release),
    )


def existing_nodes(root: Root, dev_nodes: Iterable[str]) -> frozenset[str]:
    """Return these device nodes, and the device nodes of VFIO and iommufd, as far as they exist."""
    return frozenset((*dev_nodes, *(path for path in COMMON_NODES if root.exists(path))))


def read_nodes(root: Root, wanted: Sequence[str]) -> Mapping[str, DevNode]:
    """Return the device nodes for these paths and patterns."""
    if not wanted:
        return {}
    from nodeagent.kernel.scan import devnodes  # imported here because few nodes have rules for device nodes

    return devnodes.read(root, wanted)


def check_fallen(
    root: Root, functions: dict[str, PciFunction | None], recoveries: Mapping[PciAddress, Recovery]
) -> None:
    """Read the functions that had fallen off the bus, because no event reports that a function answers again.

    The read wakes a sleeping device, which is acceptable because no pod uses it.
    """
    for address, recovery in recoveries.items():
        function = functions.get(address)
        if function is not None and recovery is Recovery.FALLEN and function.answers is None:
            answers = pci.config_space_answers(root, address)
            functions[address] = function._replace(answers=answers)


def _reads_as_known(root: Root, ids: Collection[str], host: Host) -> bool:
    """Return True if these functions, mdevs, nodes, and groups are unchanged since ``host``. May hang."""
    if existing_nodes(root, ()) != host.nodes.intersection(COMMON_NODES):
        return False
    paths = [path for path in ids if path.startswith("/")]
    known = {path: host.dev_nodes[path] for path in paths if path in host.dev_nodes}
    if paths and _unnamed(read_nodes(root, paths)) != _unnamed(known):
        return False
    devices = [device_id for device_id in ids if not device_id.startswith("/")]
    if not all(_device_reads_as_known(root, device_id, host) for device_id in devices):
        return False
    numbers = {device.group for name in devices if (device := host.device(name)) is not None}
    return all(
        groups.group(root, number) == host.groups.get(number) for number in numbers if number is not None
    )


def _device_reads_as_known(root: Root, device_id: str, host: Host) -> bool:
    for reader in READERS.values():
        if reader.recheck and (known := getattr(host, reader.table).get(device_id)) is not None:
            return reader.recheck(root, known)
    return False


def _unnamed(dev_nodes: Mapping[str, DevNode]) -> dict[str, DevNode]:
    """Return the device nodes without their persistent names, which are not visible in a container."""
    return {path: node._replace(alias="") for path, node in dev_nodes.items()}


def _no_list() -> KernelRefused:
    return KernelRefused(
        "the list of devices below /sys cannot be read: the kernel does not answer",
        "check for blocked tasks in the kernel log of the host (dmesg)",
        path="/sys",
    )


def _read_host_uses(root: Root, addresses: Sequence[PciAddress]) -> dict[PciAddress, HostUses]:
    # imported here because nodes with only VFIO drivers do not need it
    from nodeagent.kernel.scan import host_use

    return host_use.find_uses(root, addresses)
