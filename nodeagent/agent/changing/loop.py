# SPDX-License-Identifier: Apache-2.0
"""Plans changes of the host from each new Snapshot, and starts one task for each card that needs changes.

A failure on one card does not delay other cards. The loop stores no facts that the host shows, so a crash at
any point loses nothing. If no change is due, no file is read or written. ``policy.change`` plans the changes,
and ``agent.changing.step`` makes each change. ``app`` loads this module when the first change is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing.retries import Failure
from nodeagent.agent.changing.step import ChangeRunner, targets
from nodeagent.agent.core import Core
from nodeagent.agent.reporting import device_log
from nodeagent.base import log
from nodeagent.base.supervise import Component, Heartbeat
from nodeagent.model.change import ActionKind, CardPlan, Plan, Step, moved, occupied
from nodeagent.model.ids import PciAddress, pci_address
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.model.status import CardStatus, ChangesStatus, FailingStatus, WaitingStatus
from nodeagent.policy.change import guards
from nodeagent.policy.change import plan as planning

Inputs = tuple[Snapshot, frozenset[str], frozenset[str]]
"""The inputs of a plan: the Snapshot, and the cards and devices on which changes are in progress."""


def components(core: Core) -> tuple[ChangeLoop, Component, Component]:
    """The components that change the host, which share the daemon's Core."""
    runner = ChangeRunner(core)
    return ChangeLoop(core, runner), runner.retries, runner.ledger


class ChangeLoop:
    """Holds the Plan: the changes that are due, and those that wait."""

    name = "changes"

    def __init__(self, core: Core, runner: ChangeRunner) -> None:
        self.heartbeat = Heartbeat("the loop that changes the host", core.timeouts.loop_turn)
        self.plan = Plan()
        self.runner = runner
        self._snapshots = core.snapshots
        self._releases = core.releases
        self._retries = runner.retries
        self._inputs: Inputs | None = None  # the inputs of the plan; None: no change is needed
        self._waiting: Mapping[str, str] = {}

    async def run(self) -> None:
        """Plan and start changes, for ever."""
        self._inputs = None
        await self.runner.ledger.open()
        async with anyio.create_task_group() as group:
            await self.runner.resume(group)
            while True:
                seen = self._snapshots.version
                self.one_turn(group)
                self.heartbeat.turned()
                await self.heartbeat.wait(self._snapshots.newer(seen))

    def one_turn(self, group: TaskGroup) -> None:
        """Plan again if an input has changed, and start the steps of cards without work in progress."""
        snapshot = self._snapshots.now
        if not planning.is_due(snapshot) and self._inputs is None:
            self._forget_unplanned()
            return
        if not snapshot.host.generation:
            return  # the first scan has failed: an empty Host would say that all devices are gone
        if self._inputs == _inputs(snapshot, self.runner):
            return
        self.runner.ledger.learn(self.runner.busy)
        snapshot = self._snapshots.now
        before, self.plan = self.plan, self._with_known_shortfalls(planning.plan(snapshot), snapshot.spec)
        self._forget_unplanned()
        self.runner.forget_open((*self.plan.steps, *self.plan.waiting))
        self._log_news(before)
        self._await_releases()
        for card, steps in self._batches().items():
            self.runner.start(card, steps, snapshot, group)
        self._inputs = _inputs(snapshot, self.runner) if planning.is_due(snapshot) else None

    @property
    def status(self) -> ChangesStatus:
        """The changes in progress, waiting changes with reasons, and changes that the kernel has refused."""
        now, plan = anyio.current_time(), self.plan
        return ChangesStatus(
            tuple(_card(card) for card in plan.cards),
            _texts(self.runner.in_progress),
            tuple(_waiting(step) for step in self._waiting_steps()),
            tuple(_failing(failure, now) for failure in self._retries.failures.values()),
            plan.problems,
            self.runner.writes,
            _texts(self.runner.late),
            tuple(self._retries.results.values()),
            plan.notes,
        )

    def _waiting_steps(self) -> Sequence[Step]:
        """The waiting steps, except steps that only wait for the next attempt after a refusal."""
        failing = self._retries.failures
        return [step for step in self.plan.waiting if step.action.attempt not in failing]

    def _with_known_shortfalls(self, plan: Plan, spec: Spec) -> Plan:
        """Keep the known shortfalls of cards with work in progress, whose free capacity was read during a
        change.

        Shortfalls of an earlier configuration are dropped.
        """
        working = self.runner.working
        same = self._inputs is not None and self._inputs[0].spec is spec
        known = [each for each in self.plan.problems if same and _is_shortfall(each, working)]
        new = [each for each in plan.problems if not _is_shortfall(each, working)]
        return replace(plan, problems=tuple(dict.fromkeys((*new, *known))))

    def _forget_unplanned(self) -> None:
        """Forget refusals of changes that are no longer planned, except on cards with work in progress."""
        plan = self.plan
        attempts = {step.action.attempt for step in (*plan.steps, *plan.waiting)}
        moving = self.runner.working | {step.action.card for step in plan.steps}
        assigned = {(each.address, type_id) for each in plan.cards for type_id in each.types}
        assigned = {place for place in assigned if place[0] in moving}
        self._retries.forget_unplanned(attempts, assigned, anyio.current_time())

    def _batches(self) -> Mapping[str, Sequence[Step]]:
        """The steps by card, except steps that must wait for work in progress."""
        batches: dict[str, list[Step]] = {}
        working, busy = self.runner.working, self.runner.busy
        for step in self.plan.steps:
            if step.action.card not in working and busy.isdisjoint(occupied(step.action)):
                batches.setdefault(step.action.card, []).append(step)
        return batches

    def _log_news(self, before: Plan) -> None:
        """Log new problems, notes and waiting steps; a refusal was logged when it happened."""
        known = {each.message for each in (*before.problems, *before.notes)}
        for each in self.plan.problems:
            if each.message not in known:
                log.event(log.PLAN_PROBLEM, text=each.message, hint=each.hint or None)
        for each in self.plan.notes:
            if each.message not in known:
                log.event(log.NOTE, text=each.message, hint=each.hint or None)
        waiting = self._waiting_steps()
        reasons = {step.action.text: step.why for step in waiting}
        for step in {step.action.text: step for step in waiting}.values():
            if self._waiting.get(step.action.text) != step.why:
                self._log_waiting(step)
        self._waiting = reasons

    def _await_releases(self) -> None:
        """Await the release of ids that waiting steps remove, and of PCI functions of which a pod has a
        device or a device node.

        Also await PCI functions that are not bound because the host uses them: no uevent shows when the host
        stops using a function. If a pod uses a device that is to be removed or to get its former driver, the
        device is allocated to no other pod afterwards, unless the kernel has already refused that change.
        """
        actions, snapshot = [step.action for step in self.plan.waiting], self._snapshots.now
        removals = [
            step.action for step in self._waiting_steps() if step.action.kind is not ActionKind.BIND_DRIVERS
        ]
        unwanted = {each for action in removals for each in action.takes if snapshot.holder(each) is not None}
        self._snapshots.publish(replace(snapshot, unwanted=frozenset(unwanted)))
        ids = {each for action in actions for each in action.takes}
        functions = {each for action in actions for each in moved(action)}
        ids |= {each for each in functions if guards.describe_indirect_user(PciAddress(each), snapshot)}
        ids |= guards.find_ending_uses(self.plan.problems, snapshot.host)
        self._releases.wait_for(frozenset(ids), by=self.name)

    def _log_waiting(self, step: Step) -> None:
        action, snapshot = step.action, self._snapshots.now
        log.event(
            log.ACTION_WAITING,
            action=action.text,
            cause=step.why,
            device=targets(action),
            type=action.type_id,
            pci_address=pci_address(action.card),
            group=device_log.groups_of(action.targets, snapshot),
            pod=device_log.pods_with(action.takes, snapshot),
        )


def _inputs(snapshot: Snapshot, runner: ChangeRunner) -> Inputs:
    """The inputs of a plan; no plan depends on the marks of withdrawn and unwanted ids."""
    reservations = replace(snapshot.reservations, withdrawn=frozenset())
    planned = replace(snapshot, reservations=reservations, unplugged=frozenset(), unwanted=frozenset())
    return planned, runner.working, runner.busy


def _is_shortfall(problem: Problem, cards: frozenset[str]) -> bool:
    """True if the problem says how many vGPUs fit on one of these cards."""
    return problem.code == ProblemCode.SHORTFALL and problem.subject in cards


def _texts(steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.action.text for step in steps)


def _card(card: CardPlan) -> CardStatus:
    return CardStatus(card.address, card.types, len(card.instances), card.notes)


def _waiting(step: Step) -> WaitingStatus:
    return WaitingStatus(step.action.card, step.action.text, step.why, step.action.kind)


def _failing(failure: Failure, now: float) -> FailingStatus:
    action, error = failure.step.action, failure.error
    return FailingStatus(
        action.card,
        action.type_id,
        action.text,
        error.what,
        error.hint,
        failure.count,
        round(max(failure.due - now, 0.0), 1),
    )
