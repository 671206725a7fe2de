# SPDX-License-Identifier: Apache-2.0
"""The lowest count of opens of each function on a VFIO driver, on record below /run for the next daemon.

Also of one that has lost that driver since, and has none: an unbind may wait for whoever has it open.

A count above it means open. A daemon that starts has seen no lower one: without the record it could not tell
what a pod has open that the kubelet has forgotten from what a driver of the host has left, where it sees no
processes. A count is of one binding of a driver, which the kernel makes anew each time, with other inodes.
What is damaged, or of another binding, says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import anyio

from nodeagent.base import log, sealed, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel.root import Root, looked
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress

PATH = "/run/nodeagent/baselines.json"
_HINT = "without it a restart forgets what is closed, where it cannot see the processes of the host"


class Baseline(NamedTuple):
    """The lowest count of opens under one binding; ``driver`` "": it has lost that since."""

    lowest: int
    driver: str
    inode: int
    vfio_inode: int


Record = Mapping[PciAddress, Baseline]


def look(root: Root) -> Record:
    """What is on record; nothing of it if it is damaged. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        return _read(root.path(PATH))
    except sealed.Broken:
        return {}


def read(root: Root) -> Record:
    """As ``look``, for whoever writes it: a damaged record is set aside, and told. Blocks."""
    try:
        return _read(root.path(PATH))
    except sealed.Broken as error:
        sealed.set_aside(root.path(PATH))
        log.event(log.BASELINES_RECORD_BROKEN, error=str(error))
        return {}


def _read(path: str) -> Record:
    """:raises Broken: if it is not what was written."""
    try:
        return {PciAddress(key): _baseline(*entry) for key, entry in sealed.content(path).items()}
    except OSError as error:
        looked(error)
        return {}
    except (TypeError, ValueError) as error:
        raise sealed.Broken(f"{path} is damaged; it is kept as {path}{sealed.ASIDE}") from error


def _baseline(lowest: Any, driver: Any, inode: Any, vfio_inode: Any) -> Baseline:
    return Baseline(int(lowest), str(driver), int(inode), int(vfio_inode))


def of(function: PciFunction) -> Baseline | None:
    """The lowest count that is known of it; None where there is none that tells."""
    if function.driver is None and function.lowest is not None and function.inode is not None:
        return Baseline(function.lowest, "", function.inode, 0)
    driver, inode, vfio_inode = function.driver, function.inode, function.vfio_inode
    if not function.vfio or None in (function.idle, driver, inode, vfio_inode):
        return None
    return Baseline(function.idle or 0, driver or "", inode or 0, vfio_inode or 0)


def restored(host: Host, record: Record, addresses: Iterable[PciAddress]) -> Host:
    """The host with the counts on record, where they are lower and the function is bound as then."""
    lower: dict[PciAddress, PciFunction] = {}
    for address in addresses:
        function, known = host.functions.get(address), record.get(address)
        if function is None or known is None:
            continue
        if _lower(known, of(function)):
            lower[address] = function._replace(idle=known.lowest)
        elif _left_so(known, function):
            lower[address] = function._replace(lowest=known.lowest)
    return replace(host, functions={**host.functions, **lower}, changes=None) if lower else host


def _lower(known: Baseline, now: Baseline | None) -> bool:
    return now is not None and known == now._replace(lowest=known.lowest) and known.lowest < now.lowest


def _left_so(known: Baseline, function: PciFunction) -> bool:
    """True if a daemon before saw it on a VFIO driver last, and it has none now."""
    return function.driver is None and function.lowest is None and known.inode == function.inode


def updated(record: Record, host: Host, addresses: Iterable[PciAddress]) -> Record:
    """The record with what the host tells of these functions; of one that cannot be read it stays."""
    told = dict(record)
    for address in addresses:
        function = host.functions.get(address)
        if function is not None and function.unreadable is not None:
            continue
        now = None if function is None else of(function)
        if now is not None:
            told[address] = now
        else:
            told.pop(address, None)
    return told


class Baselines:
    """Keeps the record of a daemon. What cannot be written is told once, and tried again."""

    def __init__(self, root: Root, limit: float) -> None:
        """``limit``: seconds for the record to be written."""
        self._limit = limit
        self._root = root
        self._record: Record | None = None
        self._writing: threads.Call[None] | None = None  # the last one, which may hang
        self.unwritten = False  # there is a newer one than on disk

    async def kept(self, host: Host, before: Host) -> Host:
        """The host with the lowest counts of all daemons, which are on record before anybody acts on it.

        A file system that does not answer is waited for, but not long.

        :raises KernelRefused: if nothing can be read at present.
        """
        changed = host.changes_since(before).functions
        if not changed and not self.unwritten:
            return host
        if self._record is None:
            self._record = await threads.call(read, self._root)
        host = restored(host, self._record, changed)
        record = updated(self._record, host, changed)
        if self.unwritten or record != self._record:
            await self._keep(record)
        self._record = record
        return host

    async def _keep(self, record: Record) -> None:
        error: KernelRefused | None = None
        try:
            await self._write(record)
        except KernelRefused as refused:
            error = refused
        if error is not None and not self.unwritten:
            log.event(log.BASELINES_UNRECORDED, error=error.what, hint=error.hint)
        self.unwritten = error is not None

    async def _write(self, record: Record) -> None:
        """At most one write hangs. :raises KernelRefused: if it cannot be written, or not in time."""
        path, document = self._root.path(PATH), dict[str, Any](record.items())
        if self._writing is None or self._writing.ended:
            self._writing = threads.start(sealed.write, path, document, _HINT)
            with anyio.move_on_after(self._limit):
                return await self._writing.result()
        raise KernelRefused(f"{path} cannot be written: the file system does not answer", _HINT, path=path)
