# SPDX-License-Identifier: Apache-2.0
"""USB devices: their nodes belong to QEMU while a pod has them, and a record tells their former owners.

Nothing in the kernel keeps a second process from a USB device: it is allocated only when no process has it
open. The record is on disk before an owner is changed, so a daemon that dies in between leaves a line too
many and no node too many. It has the number by which a pod got a device: with another number the guest has
it no more. A node goes back to its owner when it is known that no pod has the device. The record is below
/run, since owners of nodes and numbers on a bus end with the boot as well; a damaged record is set aside.

Loaded by ``app`` when a rule asks for USB devices; ``agent.allocate`` calls ``ensure``.
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
"""The id of a Device → the USB devices that it stands for."""


def components(core: Core) -> Sequence[Component]:
    """The one component, which prepares USB nodes from now on."""
    nodes = UsbNodes(core)
    core.usb_nodes.set(nodes)
    return (nodes,)


class UsbNodes:
    """The one writer of the Snapshot's ``loans`` after the first scan, and of their record."""

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
        self._is_read = False  # the record of the daemon before

    # Before an allocation

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], owned: Collection[str]) -> None:
        """Make the nodes of these devices QEMU's; the pod that asks has the ``owned`` ones already.

        :raises AllocationRefused: if that cannot be done in time.
        """
        async with self._lock:
            await self._read()
            try:
                with anyio.fail_after(self._timeouts.usb_node_creation):
                    await self._assign(await self._wait_until_closed(device_ids, owned))
            except TimeoutError:
                what = f"{name}: {', '.join(device_ids)}: the nodes do not become QEMU's"
                raise AllocationRefused(
                    what, "look for blocked tasks in the kernel log of the host"
                ) from None
            except KernelRefused as error:
                raise AllocationRefused(
                    f"{name}: {', '.join(device_ids)}: {error.what}", error.hint
                ) from error

    async def _wait_until_closed(self, device_ids: Sequence[str], owned: Collection[str]) -> Members:
        """The members of these Devices, when no process has them open; a set may change meanwhile.

        :raises KernelRefused: if that takes too long.
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
        """Which of the devices, or of their disks, a process has open, in words.

        Where not all processes are seen, a device that a pod had until a moment ago counts as open.
        """
        limit, root = self._timeouts.open_file_scan, self._root
        seen = await self._open_files.call(limit, _find_open_nodes, root, devices)
        if seen is not None and seen.openers:
            return next(f"{each}: open by {process}" for each, process in seen.openers.items())
        if (seen is None or not seen.decisive) and self._is_just_released(devices):
            return f"{devices[0].id}: the pod that had it until a moment ago may have it open yet"
        if driven := [each for each in devices if each.driver]:
            used = await self._open_files.call(limit, _find_open_disk, root, driven)
            return f"{driven[0].id}: its open disks cannot be seen in time" if used is None else used or None
        return None

    def _is_just_released(self, devices: Sequence[UsbDevice]) -> bool:
        """True if a pod had one of them a moment ago: alone, in a set of then, or by a node of it.

        A release right before this daemon came is not known: it may have been of any of them.
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
        """Record the owners of the nodes, then make them QEMU's."""
        before = self._snapshots.now.loans
        devices = [each for several in members.values() for each in several]
        loans = await threads.call(_find_owners, self._root, devices, before)
        lent = {head: tuple(loans[each.id] for each in several) for head, several in members.items()}
        await self._keep({**before, **lent})
        await threads.call(_give, self._root, tuple(loans.values()))

    # After a release

    async def run(self) -> None:
        """Return the nodes of released devices to their owners, for ever."""
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
            log.event(log.NOTE, text=f"{loan.node} stays QEMU's: {error.what}", hint=error.hint)
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
    """The loans by id, with the owners of their nodes; a node that is QEMU's by a former loan keeps that one.

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
    "without it the nodes of USB devices would stay QEMU's",
)
