# SPDX-License-Identifier: Apache-2.0
"""Makes QEMU's user the owner of USB device nodes while a pod uses them, and restores the former owners.

The kernel lets several processes open a USB device, so a device is allocated only when no process has it
open. Each former owner is recorded on disk before the owner is changed, so a daemon that crashes never leaves
a changed device node without a record. The record includes the device number; after a replug the device has
another number, and the guest has lost the device. A device node is returned to its former owner when no pod
is known to use the device. The record is below /run, because owners of device nodes and device numbers also
change at a reboot; a damaged record is moved aside.

``app`` loads this module when a rule matches USB devices; ``agent.allocate`` calls ``ensure``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio

from nodeagent.agent.core import Core
from nodeagent.base import log, state, threads
from nodeagent.base.errors import AllocationRefused, KernelRefused
from nodeagent.base.state import Section
from nodeagent.base.supervise import Component
from nodeagent.kernel import open_files
from nodeagent.kernel.apply import usb_owner
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import host_use
from nodeagent.model.host import Loan, Loans, UsbDevice
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.policy.offer import usb_sets

Members = Mapping[DeviceId, Sequence[UsbDevice]]
"""Device id → the USB devices that a pod gets with it."""


def components(core: Core) -> Sequence[Component]:
    """The component that prepares the nodes of USB devices."""
    nodes = UsbNodes(core)
    core.usb_nodes.set(nodes)
    return (nodes,)


class UsbNodes:
    """No other component writes the Snapshot's ``loans`` after the first scan, or their record on disk."""

    name = "USB loans"

    def __init__(self, core: Core) -> None:
        self._root = core.root
        self._snapshots = core.snapshots
        self._offering = core.offering
        self._releases = core.releases
        self._released = core.usage.released
        self._timeouts = core.timeouts
        self._began = anyio.current_time()
        self._open_files = threads.OneByOne()
        self._lock = anyio.Lock()
        self._is_read = False  # the record of the previous daemon

    # Before an allocation

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], owned: Collection[str]) -> None:
        """Make QEMU's user the owner of the nodes of these devices; the requesting pod already has the
        ``owned`` ones.

        :raises AllocationRefused: if the owners cannot be changed in time.
        """
        async with self._lock:
            await self._read()
            try:
                with anyio.fail_after(self._timeouts.usb_node_creation):
                    await self._assign(await self._wait_until_closed(device_ids, owned))
            except TimeoutError:
                what = f"{name}: {', '.join(device_ids)}: the device nodes get no new owner in time"
                raise AllocationRefused(
                    what, "look for blocked tasks in the kernel log of the host"
                ) from None
            except KernelRefused as error:
                raise AllocationRefused(
                    f"{name}: {', '.join(device_ids)}: {error.what}", error.hint
                ) from error

    async def _wait_until_closed(self, device_ids: Sequence[str], owned: Collection[str]) -> Members:
        """Wait until no process has these devices open; return the USB devices of each id, which may have
        changed.

        :raises KernelRefused: if a device stays open too long.
        """
        end = anyio.current_time() + self._timeouts.usb_holder_close
        while True:
            members = self._members(device_ids)
            devices = [each for head in members if head not in owned for each in members[head]]
            opened = await self._find_open(devices) if devices else None
            if opened is None and self._members(device_ids) == members:
                return members
            if opened is not None and anyio.current_time() > end:
                hint = "the container of a force-deleted pod may still run: find its process"
                raise KernelRefused(opened, hint)
            await anyio.sleep(self._timeouts.usb_close_poll)

    async def _find_open(self, devices: Sequence[UsbDevice]) -> str | None:
        """The message that a process has one of the devices, or a disk of one, open; None if all are closed.

        If not all processes can be read, a device that a pod had until a moment ago counts as open.
        """
        limit, root = self._timeouts.open_file_scan, self._root
        seen = await self._open_files.call(limit, _find_open_nodes, root, devices)
        if seen is not None and seen.openers:
            return next(f"{each}: open by {process}" for each, process in seen.openers.items())
        if (seen is None or not seen.decisive) and self._is_just_released(devices):
            return f"{devices[0].id}: the pod that used it until a moment ago may still have it open"
        if driven := [each for each in devices if each.driver]:
            used = await self._open_files.call(limit, _find_open_disk, root, driven)
            return (
                f"{driven[0].id}: the search for open disks of this USB device takes too long"
                if used is None
                else used or None
            )
        return None

    def _is_just_released(self, devices: Sequence[UsbDevice]) -> bool:
        """True if a pod used one of the devices until a moment ago, alone, in a set, or by its device node.

        A release right before this daemon started is not known, so at the start every device counts as
        released.
        """
        now = anyio.current_time()
        if now < self._began + self._timeouts.forgotten_container_end:
            return True
        had = usb_sets.find_formerly_in_containers(self._released.find_recent(now), self._snapshots.now)
        return any(each.id in had or self._released.is_recent(each, now) for each in devices)

    def _members(self, device_ids: Sequence[str]) -> Members:
        decision = self._offering.one_turn()
        usb = decision.snapshot.host.usb
        offers = ((device_id, decision.offer_of(device_id)) for device_id in device_ids)
        return {
            DeviceId(device_id): [usb[each] for each in offer.host_devices if each in usb]
            for device_id, offer in offers
            if offer is not None
        }

    async def _assign(self, members: Members) -> None:
        """Record the owners of the nodes, then make QEMU's user the owner."""
        before = self._snapshots.now.loans
        devices = [each for several in members.values() for each in several]
        loans = await threads.call(_find_owners, self._root, devices, before)
        lent = {head: tuple(loans[each.id] for each in several) for head, several in members.items()}
        await self._keep({**before, **lent})
        await threads.call(_give, self._root, tuple(loans.values()))

    # After a release

    async def run(self) -> None:
        """Return the device nodes of released devices to their former owners, for ever."""
        async with self._lock:
            await self._read()
        seen = -1
        while True:
            seen, _ = await self._snapshots.newer(seen)
            async with self._lock:
                await self._return_nodes()
            self._releases.wait_for(frozenset(self._snapshots.now.loans), by=self.name)

    async def _return_nodes(self) -> None:
        snapshot = self._snapshots.now
        admitting, known = snapshot.reservations.admitting, snapshot.allocations.complete
        over = {head for head in snapshot.loans if snapshot.holder(head) is None and head not in admitting}
        if not over or not known:
            return
        left = {head: loans for head, loans in snapshot.loans.items() if head not in over}
        still = {loan.node for loans in left.values() for loan in loans}
        returned = [loan for head in over for loan in snapshot.loans[head] if loan.node not in still]
        for loan, error in await threads.call(_take_back, self._root, returned):
            text = f"{loan.node} still belongs to QEMU's user: {error.what}"
            log.event(log.NOTE, text=text, hint=error.hint)
        await self._keep(left)

    # The record

    async def _read(self) -> None:
        if not self._is_read:
            self._publish(await threads.call(SECTION.load, self._root.prefix))
            self._is_read = True

    async def _keep(self, loans: Loans) -> None:
        if loans != self._snapshots.now.loans:
            await threads.call(SECTION.save, self._root.prefix, loans)
            self._publish(loans)

    def _publish(self, loans: Loans) -> None:
        self._snapshots.publish(replace(self._snapshots.now, loans=loans))


def _find_open_nodes(root: Root, devices: Sequence[UsbDevice]) -> open_files.OpenFiles:
    numbers = {each.id: "{}:{}".format(*usb_owner.device_number(each.place)) for each in devices}
    return open_files.find_open(
        root, {each: open_files.character_device(one) for each, one in numbers.items()}
    )


def _find_open_disk(root: Root, devices: Sequence[UsbDevice]) -> str:
    for each in devices:
        for use in host_use.find_open_usb_disks(root, each).found:
            return f"{each.id}: in use by the host ({use})"
    return ""


def _find_owners(root: Root, devices: Sequence[UsbDevice], former: Loans) -> dict[str, Loan]:
    """The loans (allocated USB devices with the former owners of their nodes) by device id; a node that
    QEMU's user owns already keeps its older record.

    :raises KernelRefused: if one has no node.
    """
    lent = {(loan.node, loan.place): loan for loans in former.values() for loan in loans}
    found: dict[str, Loan] = {}
    for each in devices:
        now = usb_owner.read_owner(root, Loan(each.id, each.node, each.place, name=each.name))
        before = lent.get((now.node, now.place))
        own = before is not None and (now.user, now.group) == (usb_owner.QEMU, usb_owner.QEMU)
        found[each.id] = before._replace(id=each.id) if before is not None and own else now
    return found


def _give(root: Root, loans: Sequence[Loan]) -> None:
    for loan in loans:
        usb_owner.assign_to_qemu(root, loan)


def _take_back(root: Root, loans: Sequence[Loan]) -> list[tuple[Loan, KernelRefused]]:
    refused: list[tuple[Loan, KernelRefused]] = []
    for loan in loans:
        try:
            usb_owner.return_to_owner(root, loan)
        except KernelRefused as error:
            refused.append((loan, error))
    return refused


def _loans(document: dict[str, Any]) -> Loans:
    return {DeviceId(head): tuple(map(_loan, several)) for head, several in document.items()}


def _loan(written: Any) -> Loan:
    device_id, node, place, user, group, *name = written
    bus, _, number = place.partition(":")
    return Loan(
        str(device_id), str(node), f"{int(bus)}:{int(number)}", int(user), int(group), *map(str, name)
    )


SECTION: Section[Loans] = Section(
    state.USB,
    {},
    _loans,
    lambda loans: {str(head): several for head, several in loans.items()},
    "after a restart the device nodes of USB devices may still belong to QEMU's user",
)
