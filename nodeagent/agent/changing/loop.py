# SPDX-License-Identifier: Apache-2.0
"""The loop that changes the host: plans anew after each change, and has the steps carried out, card by card.

Cards are worked on at the same time, a card's steps one after the other. A batch ends at the first surprise,
at new wishes and at new holders; then the card is looked at again and planned anew. What fails holds up
nothing else. Nothing is remembered that the host shows, so a crash at any point loses nothing. A turn that
finds nothing to do touches no file. Decides nothing: that is ``policy``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent import releases
from nodeagent.agent.changing.executor import DEADLINE, Executor
from nodeagent.agent.changing.probe import BatchProbe, Probe
from nodeagent.agent.changing.retries import BACKOFF
from nodeagent.agent.observe import Observer
from nodeagent.agent.reservations import Reservations
from nodeagent.base import log, threads
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.kernel import identity
from nodeagent.kernel.root import Root
from nodeagent.model import allocation
from nodeagent.model.action import Step
from nodeagent.model.allocation import Allocations
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress
from nodeagent.model.ledger import Ledger
from nodeagent.model.plan import Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import plan as planning


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator and the pods want. Cells keep an equal value, so comparing is by identity mostly."""

    desired: Desired
    allocations: Allocations
    machine: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan depends on; large parts are immutable, so that identity tells whether they changed."""

    host: Host
    wishes: Wishes
    ledger: Ledger
    open: frozenset[str]
    settling: frozenset[str]
    failed: Mapping[str, str]
    busy: frozenset[str]  # cards that are being worked on, and devices whose write has not returned

    def same(self, other: Inputs | None) -> bool:
        """True if a plan from these is the plan from those."""
        return (
            other is not None
            and self.host is other.host
            and self.ledger is other.ledger
            and (self.open, self.settling) == (other.open, other.settling)
            and (self.failed, self.busy) == (other.failed, other.busy)
            and self.wishes == other.wishes
        )


class ChangeLoop:
    """Owns all changes of the host; reads the cells that it is given. ``wake``: one of them has changed."""

    def __init__(
        self,
        root: Root,
        observe: Observer,
        wake: Latest[None],
        desired: Latest[Desired],
        allocations: Latest[Allocations],
        reservations: Reservations,
        *,
        recheck: Callable[[], float] = lambda: 5.0,
        deadline: float = DEADLINE,
        backoff: Backoff = BACKOFF,
        on_waiting: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """``recheck``: seconds between two looks whether what is open has been closed.

        ``on_waiting`` is told whether anything waits: a pod that ends has no event of its own.
        """
        self.plan = Plan()
        self.writer = Executor(root, backoff, self._written, deadline)
        self._root = root
        self._observe = observe
        self._wake = wake
        self._desired = desired
        self._allocations = allocations
        self._reservations = reservations
        self._on_waiting = on_waiting
        self._recheck = recheck
        self._asking = Probe(root)
        self._open: Latest[frozenset[str]] = Latest(frozenset(), wake.touch)
        self._working: frozenset[str] = frozenset()
        self._taking: dict[Step, frozenset[str]] = {}  # what each has withdrawn and not given back
        self._machine = ""
        self._inputs: Inputs | None = None
        self._told: Mapping[str, str] = {}

    @property
    def working(self) -> frozenset[str]:
        """The cards that are being worked on."""
        return self._working

    async def run(self) -> None:
        """Plan and carry out, for ever."""
        self._working, self._inputs = frozenset(), None
        self._machine = await threads.call(identity.machine_id, self._root)
        await self.writer.open()
        async with anyio.create_task_group() as group:
            self.writer.resume(group)
            for step in self._taking:
                group.start_soon(self._restore, step, name="give back what was withdrawn")
            look = partial(releases.while_any, self._open, self._recheck, self._look_for_users)
            group.start_soon(look, name="users of devices")
            while True:
                seen = self._wake.version
                self.one_turn(group)
                with suppress(KernelRefused):  # it is told as soon as a type is to be set
                    await self.writer.save()
                with anyio.move_on_after(self.writer.retries.next_due(anyio.current_time())):
                    await self._wake.newer(seen)

    def one_turn(self, group: TaskGroup) -> None:
        """Plan if anything has changed, and start work on the cards that have steps and no work yet."""
        if not self._desired.get().changes_host and self._inputs is None:
            self._forget()
            return
        if not self._observe.host.get().generation:
            return  # the first look has failed: an empty Host would say that all devices are gone
        self.writer.learn(self._observe.host.get(), self._observe.names.get())
        inputs = self._gather()
        if inputs.same(self._inputs):
            return
        self._inputs = inputs
        before, self.plan = self.plan, planning.plan(_snapshot(inputs))
        self._forget()
        self._tell(before)
        self._on_waiting(bool(self._told))
        for card, steps in self._batches().items():
            self._working |= {card}
            group.start_soon(self._work, card, steps, inputs, group, name=f"work on {card}")

        if not self._desired.get().changes_host:
            self._inputs = None  # nothing is to be followed any more

    def _gather(self) -> Inputs:
        return Inputs(
            self._observe.host.get(),
            self._wishes(),
            self.writer.ledger,
            self._open.get(),
            self._reservations.settling.get(),
            self.writer.retries.waiting(anyio.current_time()),
            self._working | self._busy(),
        )

    def _wishes(self) -> Wishes:
        return Wishes(self._desired.get(), self._allocations.get(), self._machine)

    def _busy(self) -> frozenset[str]:
        """Devices whose write has not returned, or was not looked at yet."""
        return self.writer.devices | {step.action.device for step in self._taking}

    def _forget(self) -> None:
        """What was refused and is not to be done any more; not on a card that is on its way."""
        actions = [step.action for step in self.plan.steps] + [each.action for each in self.plan.waiting]
        moving = self._working | {step.action.card for step in self.plan.steps}
        assigned = {(card.address, card.type_id) for card in self.plan.cards if card.address in moving}
        self.writer.retries.keep({action.attempt for action in actions}, assigned)

    def _batches(self) -> Mapping[str, Sequence[Step]]:
        """The steps by card, without those that must wait for work that is under way."""
        batches: dict[str, list[Step]] = {}
        busy = self._busy()
        for step in self.plan.steps:
            if step.action.card not in self._working and step.action.device not in busy:
                batches.setdefault(step.action.card, []).append(step)
        return batches

    def _tell(self, before: Plan) -> None:
        """Say what is new among what waits and what cannot be meant; a refusal is told when it comes."""
        for text in self.plan.problems:
            if text not in before.problems:
                log.event(log.PLAN_PROBLEM, text=text)
        failing, waiting = self.writer.retries.failures, self.plan.waiting
        told = {each.action.describe(): each.why for each in waiting if each.action.attempt not in failing}
        for action, why in told.items():
            if self._told.get(action) != why:
                log.event(log.ACTION_WAITING, action=action, why=why)
        self._told = told

    async def _work(self, card: str, steps: Sequence[Step], inputs: Inputs, group: TaskGroup) -> None:
        """One batch: the steps in their order, until one does not go as planned; a refusal is no surprise."""
        ends = {step: step.action.takes for step in steps}
        asked = BatchProbe(self._asking, {each for found in ends.values() for each in found})
        refused: set[str] = set()
        for step in steps:
            if self._wishes() != inputs.wishes:
                break
            if step.action.attempt in refused or (ends[step] and await asked.have(ends[step])):
                continue
            withdraw = partial(self._withdraw, step, ends[step], inputs)
            if await self.writer.take(step, group, withdraw):
                continue
            if step.action.attempt not in self.writer.retries.waiting(anyio.current_time()):
                break
            refused.add(step.action.attempt)
        late = self.writer.under_way
        await self._observe.look_at(_places(card, inputs.host))
        self._open.set((self._open.get() - asked.ids) | asked.found)
        self._end_taking(steps, late, group)
        self._working -= {card}
        self._wake.touch()

    def _withdraw(self, step: Step, ids: frozenset[str], inputs: Inputs) -> bool:
        """Right before the write: False if anybody has got one of the ids, or wants anything else, by now."""
        if self._wishes() != inputs.wishes or not self._reservations.withdraw(ids):
            return False
        if ids:
            self._taking[step] = ids
        return True

    def _end_taking(self, steps: Sequence[Step], late: Sequence[Step], group: TaskGroup) -> None:
        """After a look at the card: what was removed is known to be gone, the rest may be given again."""
        for step in steps:
            if step not in late:
                self._reservations.restore(self._taking.pop(step, frozenset()))
            elif step in self._taking:
                group.start_soon(self._restore, step, name="give back what was withdrawn")

    async def _restore(self, step: Step) -> None:
        """The same for a write that is late: when it has returned, and the host was looked at since."""
        while step in self.writer.under_way:
            await self._wake.newer(self._wake.version)
        await self._observe.look_at(self._taking[step])
        self._reservations.restore(self._taking.pop(step))

    def _written(self, step: Step) -> None:
        self._observe.wake(step.action.targets)
        self._wake.touch()

    async def _look_for_users(self, ids: frozenset[str]) -> None:
        self._open.set(await self._asking.ask(ids))


def _snapshot(inputs: Inputs) -> Snapshot:
    wishes = inputs.wishes
    return Snapshot(
        inputs.host,
        wishes.desired,
        allocations=wishes.allocations,
        reservations=allocation.Reservations(inputs.settling),
        open=inputs.open,
        ledger=inputs.ledger,
        failures=inputs.failed,
        machine_id=wishes.machine,
    )


def _places(card: str, host: Host) -> frozenset[str]:
    """What to look at after work on a card: itself, and its VFs, which share its room."""
    function = host.functions.get(PciAddress(card))
    return frozenset((card, *function.vfs)) if function is not None else frozenset((card,))
