# SPDX-License-Identifier: Apache-2.0
"""Makes one change of the host, from the check that the device is free to the scan that shows the effect.

``ChangeRunner.start`` starts a task for one card. A card here is a PF with its VFs and mdevs; for driver
changes it is an IOMMU group, named by the group's first PCI function. ``agent.changing.loop`` calls
``start``, or ``agent.changing.requests`` when no daemon runs. The steps of one card run one after the other;
steps of different cards run at the same time. ``_make`` makes one step; ``_finish`` runs after the last step
of a card. If a step does not end as planned, the task ends early, so that the card is scanned and planned
again. A refusal by the kernel does not end the task.

A write may sleep in the kernel for as long as a VM runs. If a write takes longer than its deadline, it is
logged as late. The device of a late write stays withdrawn, and the task waits for the end of the write, while
another task works on the rest of the card. There is never more than one write to a device at a time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.kernel import open_files
from nodeagent.kernel.apply import actions
from nodeagent.kernel.scan import mdevs
from nodeagent.model.change import Action, Step, moved, occupied
from nodeagent.model.ids import PciAddress, pci_address, pci_order
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import cards


class Then(Enum):
    """The action that follows a step: the next step, or a new plan."""

    NEXT_STEP = auto()
    NEW_PLAN = auto()  # scan the card, and plan again


class PendingWrite(NamedTuple):
    """A write in progress since ``began`` (monotonic seconds)."""

    step: Step
    call: asyncio.Future[None]
    began: float


@dataclass(slots=True)
class CardWork:
    """The steps of one card, planned from a Snapshot. ``open``: ids that were open at the last probe."""

    card: str
    steps: Sequence[Step]
    planned: Snapshot
    open: frozenset[str] = frozenset()
    probed: float = -math.inf  # seconds, monotonic
    late: PendingWrite | None = None


class ChangeRunner:
    """Makes changes. Holds the writes in progress, and the ids that are withdrawn from allocation meanwhile.

    No other component writes ``open`` of the Snapshot.
    """

    def __init__(self, core: Core) -> None:
        self.ledger = LedgerKeeper(core.root, core.snapshots)
        self.retries = Retries(core.snapshots, core.timeouts)
        self.working: frozenset[str] = frozenset()  # cards
        self.writes = 0
        self.snapshots = core.snapshots
        self._core = core
        self._timeouts = core.timeouts
        self._probes = threads.OneByOne()
        self._locks: dict[str, anyio.Lock] = {}  # by device
        self._writes: dict[str, PendingWrite] = {}  # in progress, by device
        self._unfinished: set[Step] = set()  # their ids are withdrawn, and no scan has shown the effect yet
        core.releases.add_reader(self)

    @property
    def in_progress(self) -> tuple[Step, ...]:
        """The steps with a write in progress; a late write stays here until its result is recorded."""
        return tuple(write.step for write in self._writes.values())

    @property
    def late(self) -> tuple[Step, ...]:
        """The steps whose write takes longer than the deadline."""
        latest = anyio.current_time() - self._timeouts.write_late
        return tuple(write.step for write in self._writes.values() if write.began <= latest)

    @property
    def busy(self) -> frozenset[str]:
        """The devices of steps whose effect the Host does not show yet."""
        return frozenset[str]().union(*(occupied(step.action) for step in self._unfinished))

    # The task of one card

    def start(self, card: str, steps: Sequence[Step], planned: Snapshot, group: TaskGroup) -> None:
        """Start to make the steps of one card, which were planned from that Snapshot."""
        self.working |= {card}
        group.start_soon(self._work, CardWork(card, steps, planned), name=f"work on {card}")

    async def _work(self, work: CardWork) -> None:
        """Make the steps. Then other steps of the card may start, while this task awaits a late write."""
        for step in work.steps:
            if await self._make(step, work) is Then.NEW_PLAN:
                break
        late = work.late
        await self._finish([each for each in work.steps if late is None or each != late.step], _places(work))
        self.working -= {work.card}
        self.snapshots.touch()
        if late is not None:
            await self._await_late(late)

    async def _make(self, step: Step, work: CardWork) -> Then:
        """Make one change.

        1. The plan must still be valid: the configuration is the same, and no pod has got or released a
           device.
        2. An action that the kernel refused a moment ago, for another step of the card, is skipped. An action
           whose devices a process has open is also skipped: the next plan contains it as waiting.
        3. The device ids are withdrawn, so that no Allocate gets them. Then the kubelet is queried and
           rewrites its checkpoint, so that all its allocations are known.
        4. The present driver, vGPU type or autoprobe switch is recorded: the write overwrites it.
        5. The plan must still be valid, because steps 3 and 4 take time. If the plan has become invalid, the
           Ledger may record a driver that was not replaced: the next plan removes that record by a
           RESTORE_DRIVERS without a write.
        6. The write is made. A new configuration does not stop a write in progress: the next plan then undoes
           the change.
        """
        action = step.action
        disturbs = bool(action.takes or moved(action))
        if not self._is_current(work.planned):
            return Then.NEW_PLAN
        if action.attempt in self.snapshots.now.failures:
            return Then.NEXT_STEP
        if action.takes and action.takes & await self._probe_batch(work):
            return Then.NEXT_STEP
        if not disturbs and await self._has_foreign_mdev(work):
            return Then.NEW_PLAN
        if not self._withdraw(step):
            return Then.NEW_PLAN  # allocated a moment ago
        if disturbs:
            await self._core.usage.request_before_change()
        async with self._locks.setdefault(action.device, anyio.Lock()):
            if action.device in self._writes:
                return Then.NEW_PLAN  # a late write of another step
            try:
                await self.ledger.save_before(action)
            except KernelRefused as error:
                return self._note_refusal(step, error)
            if not self._is_current(work.planned):
                self.ledger.note_end(action, made=False)
                return Then.NEW_PLAN
            write = self._write(step)
            with anyio.move_on_after(self._timeouts.write_late):
                return await self._result(write)
        work.late = write
        why = f"the kernel has not answered for {self._timeouts.write_late:g} s"
        log.event(
            log.ACTION_WAITING,
            action=action.text,
            cause=why,
            device=targets(action),
            type=action.type_id,
            pci_address=pci_address(action.card),
        )
        return Then.NEW_PLAN

    async def _finish(self, steps: Collection[Step], keys: frozenset[str]) -> None:
        """Scan, so that the Host shows the changes; then devices that still exist may be allocated again."""
        await self._core.observer.rescan(keys)
        for step in self._unfinished.intersection(steps):
            self._unfinished.remove(step)
            moving = moved(step.action)
            self._core.reservations.restore(step.action.takes | moving, moving)

    async def _await_late(self, write: PendingWrite) -> None:
        """Wait for the end of a late write, and record its result."""
        await self._result(write)
        await self._finish([write.step], write.step.action.targets)
        self.snapshots.touch()

    async def resume(self, group: TaskGroup) -> None:
        """Continue the steps and writes that were in progress when the loop failed."""
        self.working = frozenset()
        for write in self._writes.values():
            group.start_soon(self._await_late, write, name=f"late write to {write.step.action.device}")
        if left := self._unfinished.difference(self.in_progress):
            await self._finish(left, frozenset(key for step in left for key in step.action.targets))

    # The checks before a write

    def _is_current(self, planned: Snapshot) -> bool:
        """True if the configuration has not changed since the plan, and no pod has got, lost or released a
        device.

        Equal parts of two Snapshots are the same objects (``agent.snapshot``), so they are compared by
        identity. If a device node that a pod uses has vanished, the node may have belonged to any PCI
        function.
        """
        now = self.snapshots.now
        return (
            now.spec is planned.spec
            and now.allocations is planned.allocations
            and now.recently_allocated == planned.recently_allocated
            and now.machine_id == planned.machine_id
            and now.unknown_node == planned.unknown_node
        )

    def _withdraw(self, step: Step) -> bool:
        """Withdraw the ids that the step removes from allocation; False if one was allocated a moment ago.

        There is no await between the check and the mark (``agent.reservations``). The device of the step
        counts as busy until ``_finish``, even if the step removes no id.
        """
        moving = moved(step.action)
        if not self._core.reservations.withdraw(step.action.takes | moving, moving):
            return False
        self._unfinished.add(step)
        return True

    async def _has_foreign_mdev(self, work: CardWork) -> bool:
        """True if the card has an mdev that is neither known nor planned: then no mdev is created there."""
        host = work.planned.host
        parents = tuple(
            each for each in host.mdev_parents if cards.find_card_address(host, each) == work.card
        )
        if not parents:
            return False
        found = await threads.call(mdevs.instances_on, self._core.root, parents)
        return not found <= host.mdevs.keys() | {each for step in work.steps for each in step.action.targets}

    async def _probe_batch(self, work: CardWork) -> frozenset[str]:
        """The ids that steps of a card remove and that a process has open; an old result is probed again."""
        if anyio.current_time() > work.probed + self._timeouts.open_file_scan_fresh:
            work.open = await self.probe({each for step in work.steps for each in step.action.takes})
            work.probed = anyio.current_time()
        return work.open

    async def probe(self, ids: Collection[str]) -> frozenset[str]:
        """Return the ids that a process on the host has open, and publish them: closing a device causes no
        event.

        An id counts as open if the kernel does not answer in time: one open file on a dead file system blocks
        the answer for good. Only one probe runs at a time.
        """
        asked = frozenset(ids)
        try:
            limit = self._timeouts.open_file_scan
            opened = await self._probes.call(limit, open_files.find_in_use, self._core.root, tuple(asked))
        except KernelRefused:  # no file descriptor was left for the probe
            opened = None
        found = asked if opened is None else opened
        now = self.snapshots.now
        self.snapshots.publish(replace(now, open=(now.open - asked) | found))
        return found

    def forget_open(self, planned: Collection[Step]) -> None:
        """Forget the open ids that no planned step removes: they are not probed again.

        A probe reports a PCI function that got its former driver back as open, although a new bind is
        possible.
        """
        now = self.snapshots.now
        takes = frozenset[str]().union(*(step.action.takes for step in planned))
        self.snapshots.publish(replace(now, open=now.open & takes))

    async def refresh(self, ids: Collection[str]) -> None:
        """Probe the devices that were open again while their release is awaited (``agent.releases``)."""
        if opened := self.snapshots.now.open.intersection(ids):
            await self.probe(opened)

    # The write and its result

    def _write(self, step: Step) -> PendingWrite:
        self.writes += 1
        call = threads.start(actions.apply, self._core.root, step.action, self._timeouts)
        write = self._writes[step.action.device] = PendingWrite(step, call, anyio.current_time())
        return write

    async def _result(self, write: PendingWrite) -> Then:
        """Wait for the end of a write and record its result; a cancellation does not stop the write."""
        action = write.step.action
        try:
            await threads.result(write.call)
        except Exception as error:
            self._note_return(action)
            if isinstance(error, KernelRefused):
                return self._note_refusal(write.step, error)
            raise
        self._note_return(action)
        self.retries.succeeded(write.step, anyio.current_time())
        self.ledger.note_end(action, made=True)
        log.event(
            log.ACTION_DONE,
            action=action.text,
            cause=write.step.why,
            device=targets(action),
            type=action.type_id,
            pci_address=pci_address(action.card),
        )
        return Then.NEXT_STEP

    def _note_return(self, action: Action) -> None:
        del self._writes[action.device]
        for key in action.targets:
            self._core.scan_requests.add(key)

    def _note_refusal(self, step: Step, error: KernelRefused) -> Then:
        """Record the kernel's refusal, and log it once per card and type; NEW_PLAN if a scan is enough."""
        self.ledger.note_end(step.action, made=False)
        known = {failure.step.place for failure in self.retries.failures.values()}
        if not self.retries.refused(step, error, anyio.current_time()):
            return Then.NEW_PLAN
        if step.place not in known:
            log.event(
                log.ACTION_FAILED,
                action=step.action.text,
                error=error.what,
                hint=error.hint,
                device=targets(step.action),
                type=step.action.type_id,
                pci_address=pci_address(step.action.card),
            )
        return Then.NEXT_STEP


def _places(work: CardWork) -> frozenset[str]:
    """The keys to scan after changes on a card: the card and its VFs, which share the capacity of the card.

    The devices of each action are scanned when its write ends (``_note_return``).
    """
    function = work.planned.host.functions.get(PciAddress(work.card))
    return frozenset((work.card, *function.vfs)) if function is not None else frozenset((work.card,))


def targets(action: Action) -> tuple[str, ...]:
    """The device ids with which log lines about the action are marked."""
    return tuple(sorted(action.targets, key=pci_order))
