# SPDX-License-Identifier: Apache-2.0
"""Lends USB devices: their nodes are QEMU's while a pod has them, and nobody forgets whose they were.

The record is on disk before an owner is changed, so a daemon that dies in between leaves a line too many and
no node too many. It also knows by which number a pod got a device: with another one the guest has it no more,
and that is told until the pod lets go. What was lent is given back when it is known that nobody has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import anyio

from nodeagent.agent import loans_record
from nodeagent.agent.core import Core
from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.base.supervise import Component
from nodeagent.kernel import in_use
from nodeagent.kernel.apply import owner
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import usb_uses
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import Loan, Loans, UsbDevice
from nodeagent.policy.offer import usb_sets

DEADLINE = 8.0  # seconds for the nodes of one Allocate, which may take ten
PATIENCE = 5.0  # of these for a former holder to let go
POLL = 0.2  # seconds: closing raises no event


def components(core: Core) -> Sequence[Component]:
    """The one component, which sees to USB nodes from now on."""
    lending = Lending(core.root, core.snapshots, core.offering, core.reservations.forgotten)
    core.provisions.serve_usb(lending)
    return (lending,)


class Lending:
    """The one writer of the Snapshot's ``loans`` after the first scan, and of their record."""

    name = "USB loans"

    def __init__(self, root: Root, snapshots: Snapshots, offering: Offering, forgotten: Forgotten) -> None:
        self._root = root
        self._path = root.path(loans_record.PATH)
        self._snapshots = snapshots
        self._offering = offering
        self._forgotten = forgotten
        self._lock = anyio.Lock()
        self._known = False  # what an earlier daemon has lent

    async def run(self) -> None:
        """Give back what nobody has any more, for ever."""
        async with self._lock:
            await self._read()
        seen = -1
        while True:
            seen, _ = await self._snapshots.newer(seen)
            async with self._lock:
                await self._give_back()

    async def ensure(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """Make the nodes of these devices QEMU's. :raises Refused: if that cannot be done in time."""
        async with self._lock:
            await self._read()
            wanted = self._wanted(device_ids)
            try:
                with anyio.fail_after(DEADLINE):
                    await self._lend(wanted)
            except TimeoutError:
                what = f"{name}: {', '.join(device_ids)}: the nodes do not become QEMU's"
                raise Refused(what, "look for blocked tasks in the kernel log of the host") from None
            except KernelRefused as error:
                raise Refused(f"{name}: {', '.join(device_ids)}: {error.what}", error.hint) from error

    def _wanted(self, device_ids: Sequence[str]) -> Mapping[DeviceId, Sequence[UsbDevice]]:
        decision = self._offering.one_turn()
        offers = {device_id: decision.offer_of(device_id) for device_id in device_ids}
        return {
            DeviceId(device_id): [
                found for each in offer.host_devices if (found := decision.snapshot.host.usb.get(each))
            ]
            for device_id, offer in offers.items()
            if offer is not None
        }

    async def _lend(self, wanted: Mapping[DeviceId, Sequence[UsbDevice]]) -> None:
        before, snapshot = self._loans, self._snapshots.now
        new = [head for head in wanted if head not in before or snapshot.holder(head) is None]
        await self._closed([each for head in new for each in wanted[head]])
        devices = [each for members in wanted.values() for each in members]
        fresh = await threads.call(_looked, self._root, devices, before)
        lent = {head: tuple(fresh[each.id] for each in members) for head, members in wanted.items()}
        await self._keep({**before, **lent})
        await threads.call(_give, self._root, tuple(fresh.values()))

    async def _closed(self, devices: Sequence[UsbDevice]) -> None:
        """Wait until no process has them open: a container may outlive its pod by seconds.

        Where not every process is seen, whoever had one until a moment ago counts as one that has it open.
        """
        end = anyio.current_time() + PATIENCE
        while opened := await threads.call(_opened, self._root, devices, doubted=self._doubted(devices)):
            if anyio.current_time() > end:
                hint = "the container of a pod that was deleted by force may still run: look for its process"
                raise KernelRefused(opened, hint)
            await anyio.sleep(POLL)

    def _doubted(self, devices: Sequence[UsbDevice]) -> bool:
        """True if a pod had one of them a moment ago: alone, in a set of then, or by a node of it."""
        now = anyio.current_time()
        had = usb_sets.were_in_containers(self._forgotten.lately(now), self._snapshots.now)
        return any(each.id in had or self._forgotten.has(each, now) for each in devices)

    async def _give_back(self) -> None:
        snapshot = self._snapshots.now
        over = {head: loans for head, loans in snapshot.loans.items() if _is_over(head, snapshot)}
        if not over:
            return
        left = {head: loans for head, loans in snapshot.loans.items() if head not in over}
        still = {loan.node for loans in left.values() for loan in loans}
        returned = [loan for loans in over.values() for loan in loans if loan.node not in still]
        for loan, error in await threads.call(_take_back, self._root, returned):
            log.event(log.NOTE, text=f"{loan.node} stays QEMU's: {error.what}", hint=error.hint)
        await self._keep(left)

    @property
    def _loans(self) -> Loans:
        return self._snapshots.now.loans

    async def _read(self) -> None:
        if not self._known:
            self._publish(await threads.call(loans_record.read, self._path))
            self._known = True

    async def _keep(self, loans: Loans) -> None:
        if loans != self._loans:
            await threads.call(loans_record.write, self._path, loans)
            self._publish(loans)

    def _publish(self, loans: Loans) -> None:
        self._snapshots.publish(replace(self._snapshots.now, loans=loans))


def _is_over(head: DeviceId, snapshot: Snapshot) -> bool:
    """True if it is known that no pod has it, nor is being given it."""
    if not snapshot.allocations.complete or head in snapshot.reservations.settling:
        return False
    return snapshot.holder(head) is None


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


def _opened(root: Root, devices: Sequence[UsbDevice], *, doubted: bool) -> str | None:
    """Which of them a process has open, or one of its disks; None if nothing is seen to be.

    If they are ``doubted`` they count as open where that cannot be seen.
    """
    nodes = {each.id: "{}:{}".format(*owner.number(each.place)) for each in devices}
    holders, whole = in_use.characters_open(root, nodes)
    for device_id, holder in holders.items():
        return f"{device_id}: open by {holder}"
    if doubted and nodes and not whole:
        return f"{next(iter(nodes))}: who had it until a moment ago may have it open yet"
    for each in devices:
        for use in usb_uses.opened(root, each).found if each.driver else ():
            return f"{each.id}: in use by the host ({use})"
    return None


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
