# SPDX-License-Identifier: Apache-2.0
"""Lends USB devices: their nodes are QEMU's while a pod has them, and nobody forgets whose they were.

The record is on disk before an owner is changed, so a daemon that dies in between leaves a line too many and
no node too many. It also knows by which number a pod got a device: with another one the guest has it no more,
and that is told until the pod lets go. What was lent is given back when it is known that nobody has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import anyio

from nodeagent.agent import loans_record
from nodeagent.agent.core import Core
from nodeagent.agent.forgotten import Forgotten
from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usb_closing import UsbClosing
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.base.supervise import Component
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import owner
from nodeagent.kernel.root import Root
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.usb import Loan, Loans, UsbDevice

_Wanted = Mapping[DeviceId, Sequence[UsbDevice]]
"""The id of a Device → the USB devices that it stands for."""


def components(core: Core) -> Sequence[Component]:
    """The one component, which sees to USB nodes from now on."""
    forgotten = core.reservations.forgotten
    lending = Lending(core.root, core.snapshots, core.offering, forgotten, core.timeouts)
    core.provisions.serve_usb(lending)
    return (lending,)


class Lending:
    """The one writer of the Snapshot's ``loans`` after the first scan, and of their record."""

    name = "USB loans"

    def __init__(
        self, root: Root, snapshots: Snapshots, offering: Offering, forgotten: Forgotten, timeouts: Timeouts
    ) -> None:
        self._timeouts = timeouts
        self._root = root
        self._path = root.path(loans_record.PATH)
        self._snapshots = snapshots
        self._offering = offering
        self._closing = UsbClosing(root, snapshots, forgotten, timeouts)
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

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], had: Collection[str]) -> None:
        """Make the nodes of these devices QEMU's; the pod that asks ``had`` some of them before.

        :raises Refused: if that cannot be done in time.
        """
        async with self._lock:
            await self._read()
            try:
                with anyio.fail_after(self._timeouts.usb_node_creation):
                    await self._lend(await self._closed(device_ids, had))
            except TimeoutError:
                what = f"{name}: {', '.join(device_ids)}: the nodes do not become QEMU's"
                raise Refused(what, "look for blocked tasks in the kernel log of the host") from None
            except KernelRefused as error:
                raise Refused(f"{name}: {', '.join(device_ids)}: {error.what}", error.hint) from error

    async def _closed(self, device_ids: Sequence[str], had: Collection[str]) -> _Wanted:
        """What these ids stand for, when nobody else has that open: another one may be in a set by then."""
        while True:
            wanted = self._wanted(device_ids)
            await self._closing.closed([each for head in wanted if head not in had for each in wanted[head]])
            if self._wanted(device_ids) == wanted:
                return wanted

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
        """True if it is known that no pod has it, nor is being given it.

        Of whom the kubelet has named it is known however young it is: it names them no more (``known``).
        """
        if snapshot.holder(head) is not None or head in snapshot.reservations.settling:
            return False
        return snapshot.allocations.complete or head in self._named

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
