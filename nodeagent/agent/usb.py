# SPDX-License-Identifier: Apache-2.0
"""USB devices: their nodes belong to QEMU while a pod has them, and a record says whose they were before.

Nothing in the kernel keeps a second process from a USB device: it is allocated only when no process has it
open. The record is on disk before an owner is changed, so a daemon that dies in between leaves a line too
many and no node too many. It has the number by which a pod got a device: with another number the guest has
it no more. The nodes are given back when it is known that no pod has the device. The record is below /run,
since owners of nodes and numbers on a bus end with the boot as well; a damaged record is set aside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from nodeagent.agent.core import Core
from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import RecentReleases
from nodeagent.base import log, sealed, threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.base.supervise import Component
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.apply import owner
from nodeagent.kernel.root import Root, looked
from nodeagent.kernel.scan import usb_uses
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import LOANS_RECORD, Loan, Loans, UsbDevice
from nodeagent.policy.offer import usb_sets

_HINT = "without it the nodes of USB devices would stay QEMU's"

_Wanted = Mapping[DeviceId, Sequence[UsbDevice]]
"""The id of a Device → the USB devices that it stands for."""


def components(core: Core) -> Sequence[Component]:
    """The one component, which sees to USB nodes from now on."""
    lending = Lending(core.root, core.snapshots, core.offering, core.usage.released, core.timeouts)
    core.usb_nodes.set(lending)
    return (lending,)


class Lending:
    """The one writer of the Snapshot's ``loans`` after the first scan, and of their record."""

    name = "USB loans"

    def __init__(
        self,
        root: Root,
        snapshots: Snapshots,
        offering: Offering,
        released: RecentReleases,
        timeouts: Timeouts,
    ) -> None:
        self._timeouts = timeouts
        self._root = root
        self._path = root.path(LOANS_RECORD)
        self._snapshots = snapshots
        self._offering = offering
        self._released = released
        self._began = anyio.current_time()
        self._nodes = threads.OneByOne()
        self._disks = threads.OneByOne()
        self._lock = anyio.Lock()
        self._known = False  # what an earlier daemon has lent
        self._named: frozenset[DeviceId] = frozenset()  # of what is lent: the kubelet has said who has it

    async def run(self) -> None:
        """Give back what nobody has any more, for ever."""
        async with self._lock:
            await self._read()
        seen = -1
        while True:
            seen, _ = await self._snapshots.newer(seen)
            async with self._lock:
                await self._give_back()

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], owned: Collection[str]) -> None:
        """Make the nodes of these devices QEMU's; the pod that asks has the ``owned`` ones already.

        :raises Refused: if that cannot be done in time.
        """
        async with self._lock:
            await self._read()
            try:
                with anyio.fail_after(self._timeouts.usb_node_creation):
                    await self._lend(await self._closed(device_ids, owned))
            except TimeoutError:
                what = f"{name}: {', '.join(device_ids)}: the nodes do not become QEMU's"
                raise Refused(what, "look for blocked tasks in the kernel log of the host") from None
            except KernelRefused as error:
                raise Refused(f"{name}: {', '.join(device_ids)}: {error.what}", error.hint) from error

    async def _closed(self, device_ids: Sequence[str], owned: Collection[str]) -> _Wanted:
        """What these ids stand for, when nobody else has that open: another one may be in a set by then."""
        while True:
            wanted = self._wanted(device_ids)
            others = [each for head in wanted if head not in owned for each in wanted[head]]
            await self._wait_until_closed(others)
            if self._wanted(device_ids) == wanted:
                return wanted

    async def _wait_until_closed(self, devices: Sequence[UsbDevice]) -> None:
        """Wait until no process has them open, or one of their disks.

        :raises KernelRefused: if that takes too long.
        """
        end = anyio.current_time() + self._timeouts.usb_holder_close
        while opened := await self._find_open(devices) or await self._find_used(devices):
            if anyio.current_time() > end:
                hint = "the container of a pod that was deleted by force may still run: look for its process"
                raise KernelRefused(opened, hint)
            await anyio.sleep(self._timeouts.usb_close_poll)

    async def _find_open(self, devices: Sequence[UsbDevice]) -> str | None:
        """Which of them a process has open, in words.

        Where not all processes are seen, what a pod had until a moment ago counts as open.
        """
        if not devices:
            return None
        places = [each.place for each in devices]
        seen = await self._nodes.call(self._timeouts.open_file_scan, _look, self._root, places)
        for each in devices:
            if seen is not None and each.place in seen.openers:
                return f"{each.id}: open by {seen.openers[each.place][-1]}"
        if (seen is None or not seen.closed.issuperset(places)) and self._is_just_released(devices):
            return f"{devices[0].id}: the pod that had it until a moment ago may have it open yet"
        return None

    async def _find_used(self, devices: Sequence[UsbDevice]) -> str | None:
        """Which of them has a disk that a process has open, in words."""
        driven = [each for each in devices if each.driver]
        if not driven:
            return None
        used = await self._disks.call(self._timeouts.open_file_scan, _disks_open, self._root, driven)
        return f"{driven[0].id}: what has its disks open cannot be seen in time" if used is None else used

    def _is_just_released(self, devices: Sequence[UsbDevice]) -> bool:
        """True if a pod had one of them a moment ago: alone, in a set of then, or by a node of it.

        What was released right before this daemon came is not known: it may be any of them.
        """
        now = anyio.current_time()
        if now < self._began + self._timeouts.forgotten_container_end:
            return True
        had = usb_sets.were_in_containers(self._released.at(now), self._snapshots.now)
        return any(each.id in had or self._released.has(each, now) for each in devices)

    def _wanted(self, device_ids: Sequence[str]) -> _Wanted:
        decision = self._offering.one_turn()
        offers = {device_id: decision.offer_of(device_id) for device_id in device_ids}
        return {
            DeviceId(device_id): [
                found for each in offer.host_devices if (found := decision.snapshot.host.usb.get(each))
            ]
            for device_id, offer in offers.items()
            if offer is not None
        }

    async def _lend(self, wanted: _Wanted) -> None:
        before = self._loans
        devices = [each for members in wanted.values() for each in members]
        fresh = await threads.call(_looked, self._root, devices, before)
        lent = {head: tuple(fresh[each.id] for each in members) for head, members in wanted.items()}
        await self._keep({**before, **lent})
        await threads.call(_give, self._root, tuple(fresh.values()))

    async def _give_back(self) -> None:
        snapshot = self._snapshots.now
        self._named = frozenset(
            head for head in snapshot.loans if head in self._named or _named(head, snapshot)
        )
        over = {head: loans for head, loans in snapshot.loans.items() if self._is_over(head, snapshot)}
        if not over:
            return
        left = {head: loans for head, loans in snapshot.loans.items() if head not in over}
        still = {loan.node for loans in left.values() for loan in loans}
        returned = [loan for loans in over.values() for loan in loans if loan.node not in still]
        for loan, error in await threads.call(_take_back, self._root, returned):
            log.event(log.NOTE, text=f"{loan.node} stays QEMU's: {error.what}", hint=error.hint)
        await self._keep(left)

    def _is_over(self, head: DeviceId, snapshot: Snapshot) -> bool:
        """True if it is known that no pod has it, nor is being allocated it."""
        if snapshot.holder(head) is not None or head in snapshot.reservations.admitting:
            return False
        return snapshot.allocations.complete or head in self._named

    @property
    def _loans(self) -> Loans:
        return self._snapshots.now.loans

    async def _read(self) -> None:
        if not self._known:
            self._publish(await threads.call(read_record, self._path))
            self._known = True

    async def _keep(self, loans: Loans) -> None:
        if loans != self._loans:
            await threads.call(write_record, self._path, loans)
            self._publish(loans)

    def _publish(self, loans: Loans) -> None:
        self._snapshots.publish(replace(self._snapshots.now, loans=loans))


def _named(head: DeviceId, snapshot: Snapshot) -> bool:
    holder = snapshot.allocations.holder(head)
    return holder is not None and holder.named


def _looked(root: Root, devices: Sequence[UsbDevice], former: Loans) -> dict[str, Loan]:
    """The loans by id, with whose their nodes were before; nothing is changed yet.

    :raises KernelRefused: if one has no node.
    """
    lent = {(loan.node, loan.place): loan for loans in former.values() for loan in loans}
    fresh: dict[str, Loan] = {}
    for each in devices:
        now = owner.lend(root, Loan(each.id, each.node, each.place, name=each.name))
        before = lent.get((now.node, now.place))
        own = before is not None and (now.user, now.group) == (owner.QEMU, owner.QEMU)
        fresh[each.id] = before._replace(id=each.id) if before is not None and own else now
    return fresh


def _give(root: Root, loans: Sequence[Loan]) -> None:
    for loan in loans:
        owner.give(root, loan)


def _take_back(root: Root, loans: Sequence[Loan]) -> list[tuple[Loan, KernelRefused]]:
    refused: list[tuple[Loan, KernelRefused]] = []
    for loan in loans:
        try:
            owner.take_back(root, loan)
        except KernelRefused as error:
            refused.append((loan, error))
    return refused


def _look(root: Root, places: Sequence[str]) -> in_use.Seen:
    return in_use.characters_open(root, {each: "{}:{}".format(*owner.number(each)) for each in places})


def _disks_open(root: Root, devices: Sequence[UsbDevice]) -> str:
    for each in devices:
        for use in usb_uses.opened(root, each).found:
            return f"{each.id}: in use by the host ({use})"
    return ""


def peek_record(path: str) -> Loans:
    """Who was given what; nothing without a file, or if it is damaged. Blocks.

    :raises KernelRefused: if nothing can be read at present.
    """
    try:
        return _read_record(path)
    except sealed.Broken:
        return {}


def read_record(path: str) -> Loans:
    """As ``peek_record``, by the writer of the record: a damaged one is set aside and logged. Blocks."""
    try:
        return _read_record(path)
    except sealed.Broken as error:
        sealed.set_aside(path)
        log.event(log.USB_RECORD_BROKEN, error=str(error))
        return {}


def _read_record(path: str) -> Loans:
    """:raises Broken: if it is not what was written."""
    try:
        document = sealed.content(path)
    except OSError as error:
        looked(error)
        return {}
    try:
        return {DeviceId(head): tuple(map(_loan, several)) for head, several in document.items()}
    except (TypeError, ValueError) as error:
        raise sealed.Broken(f"{path} is damaged; it is kept as {path}{sealed.ASIDE}") from error


def _loan(written: Any) -> Loan:
    device_id, node, place, user, group, *name = written
    bus, _, number = place.partition(":")
    return Loan(
        str(device_id), str(node), f"{int(bus)}:{int(number)}", int(user), int(group), *map(str, name)
    )


def write_record(path: str, loans: Loans) -> None:
    """Replace the file at once and whole; remove it if nothing is lent.

    :raises KernelRefused: if it cannot be written.
    """
    if loans:
        sealed.write(path, {str(head): several for head, several in loans.items()}, _HINT, mode=0o644)
        return
    try:
        Path(path).unlink(missing_ok=True)
    except OSError as error:
        raise KernelRefused(f"{path} cannot be removed: {error.strerror}", _HINT, path=path) from error
