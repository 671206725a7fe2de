# SPDX-License-Identifier: Apache-2.0
"""The loop that changes the host: plans anew after each change, and has the steps carried out, card by card.

What fails holds up nothing else. Nothing is remembered that the host shows, so a crash at any point loses
nothing. A turn that finds nothing to do touches no file. Decides nothing: that is ``policy.change``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing import executor
from nodeagent.agent.changing.card_run import CardRuns
from nodeagent.agent.changing.executor import Executor
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.retries import Failure, Retries
from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.tell import devices
from nodeagent.base import log
from nodeagent.base.supervise import Heartbeat
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.action import Step, moved, occupied
from nodeagent.model.desired import Desired
from nodeagent.model.ids import PciAddress, pci_address
from nodeagent.model.plan import CardPlan, Plan
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import CardStatus, ChangesStatus, FailingStatus, Status, WaitingStatus
from nodeagent.policy import containers
from nodeagent.policy.change import plan as planning


class ChangeLoop:
    """Owns the plan: what is to be done to the host, and what waits."""

    name = "changes"

    def __init__(
        self,
        snapshots: Snapshots,
        releases: Releases,
        ledger: LedgerKeeper,
        retries: Retries,
        executor: Executor,
        runs: CardRuns,
        timeouts: Timeouts,
    ) -> None:
        self.heartbeat = Heartbeat("the loop that changes the host", timeouts.loop_turn)
        self.plan = Plan()
        self._snapshots = snapshots
        self._releases = releases
        self._ledger = ledger
        self._retries = retries
        self._executor = executor
        self._runs = runs
        self._inputs: tuple[object, ...] | None = None  # of the plan; None: nothing is to be changed
        self._waiting: Mapping[str, str] = {}

    @property
    def working(self) -> frozenset[str]:
        """The cards that are being worked on."""
        return self._runs.working

    async def run(self) -> None:
        """Plan and carry out, for ever."""
        self._inputs = None
        await self._ledger.open()
        await self._runs.reset()
        async with anyio.create_task_group() as group:
            while True:
                seen = self._snapshots.version
                self.one_turn(group)
                self.heartbeat.turned()
                await self.heartbeat.wait(self._snapshots.newer(seen))

    def one_turn(self, group: TaskGroup) -> None:
        """Plan if anything has changed, and start work on the cards that have steps and no work yet."""
        snapshot = self._snapshots.now
        if not planning.due(snapshot) and self._inputs is None:
            self._forget()
            return
        if not snapshot.host.generation:
            return  # the first scan has failed: an empty Host would say that all devices are gone
        if self._inputs == _inputs(snapshot, self._runs):
            return
        self._ledger.learn(self._runs.busy)
        snapshot = self._snapshots.now
        before, self.plan = self.plan, self._at_rest(planning.plan(snapshot), snapshot.desired)
        self._forget()
        self._tell(before)
        for card, steps in self._batches().items():
            self._runs.start(card, steps, snapshot, group)
        self._inputs = _inputs(snapshot, self._runs) if planning.due(snapshot) else None

    def report(self, status: Status) -> Status:
        """The changes of the host: under way, waiting and refused."""
        return status._replace(changes=self.status, remarks=(*status.remarks, *self.plan.notes))

    @property
    def status(self) -> ChangesStatus:
        """What is made of the host, what waits and what for, what the kernel refuses."""
        now, plan = anyio.current_time(), self.plan
        return ChangesStatus(
            tuple(_card(card) for card in plan.cards),
            _words(self._executor.under_way),
            tuple(_waiting(step) for step in plan.waiting),
            tuple(_failing(failure, now) for failure in self._retries.failures.values()),
            tuple(problem.what for problem in plan.problems),
            self._executor.writes,
            _words(self._executor.late),
            tuple(self._retries.results.values()),
            {problem.what: problem.hint for problem in plan.problems if problem.hint},
            tuple(problem.what for problem in plan.notes),
        )

    def _at_rest(self, plan: Plan, desired: Desired) -> Plan:
        """With what was known of the room of cards in the middle of our own work: it was read half-way.

        Of what was wanted before, nothing is known any more.
        """
        working = self._runs.working
        same = self._inputs is not None and self._inputs[0] is desired
        known = [each for each in self.plan.problems if same and _is_shortfall(each, working)]
        new = [each for each in plan.problems if not _is_shortfall(each, working)]
        return replace(plan, problems=tuple(dict.fromkeys((*new, *known))))

    def _forget(self) -> None:
        """What was refused and is not to be done any more; not on a card that is on its way."""
        plan = self.plan
        attempts = {step.action.attempt for step in (*plan.steps, *plan.waiting)}
        moving = self._runs.working | {step.action.card for step in plan.steps}
        assigned = {(card.address, card.type_id) for card in plan.cards if card.address in moving}
        self._retries.keep(attempts, assigned, anyio.current_time())

    def _batches(self) -> Mapping[str, Sequence[Step]]:
        """The steps by card, without those that must wait for work that is under way."""
        batches: dict[str, list[Step]] = {}
        working, busy = self._runs.working, self._runs.busy
        for step in self.plan.steps:
            if step.action.card not in working and busy.isdisjoint(occupied(step.action)):
                batches.setdefault(step.action.card, []).append(step)
        return batches

    def _tell(self, before: Plan) -> None:
        """Say what is new among what waits and what cannot be meant; a refusal was logged when it came."""
        known = {each.what for each in (*before.problems, *before.notes)}
        for each in self.plan.problems:
            if each.what not in known:
                log.event(log.PLAN_PROBLEM, text=each.what, hint=each.hint or None)
        for each in self.plan.notes:
            if each.what not in known:
                log.event(log.NOTE, text=each.what)
        failing = self._retries.failures
        waiting = [step for step in self.plan.waiting if step.action.attempt not in failing]
        reasons = {step.action.text: step.why for step in waiting}
        for step in {step.action.text: step for step in waiting}.values():
            if self._waiting.get(step.action.text) != step.why:
                self._tell_waiting(step)
        self._waiting = reasons
        awaited = (each for step in self.plan.waiting for each in self._awaited(step))
        self._releases.wait_for(frozenset(awaited), by=self.name)

    def _awaited(self, step: Step) -> Iterator[str]:
        """What somebody has to let go of first: ids that can be given, or what is behind a function."""
        yield from step.action.takes
        snapshot = self._snapshots.now
        yield from (each for each in moved(step.action) if containers.part_of(PciAddress(each), snapshot))

    def _tell_waiting(self, step: Step) -> None:
        """What it waits for is often a pod, or a device of a group."""
        action, snapshot = step.action, self._snapshots.now
        log.event(
            log.ACTION_WAITING,
            action=action.text,
            why=step.why,
            device=executor.targets(action),
            type=action.type_id,
            pci_address=pci_address(action.card),
            group=devices.groups_of(action.targets, snapshot),
            pod=devices.pods_with(action.takes, snapshot),
        )


def _inputs(snapshot: Snapshot, runs: CardRuns) -> tuple[object, ...]:
    """All that a plan, and what is begun of it, depend on.

    Parts that did not change are the same objects, so comparing is quick.
    """
    return (
        snapshot.desired,
        snapshot.host,
        snapshot.names,
        snapshot.allocations,
        snapshot.reservations.pending,
        snapshot.reservations.admitting,
        snapshot.behind,
        snapshot.loans,
        snapshot.looked_for,
        snapshot.open,
        snapshot.ledger,
        snapshot.failures,
        snapshot.machine_id,
        runs.working,
        runs.busy,
    )


def _is_shortfall(problem: Problem, cards: frozenset[str]) -> bool:
    """True if it says how much fits on one of these cards."""
    return problem.code == ProblemCode.SHORTFALL and problem.about in cards


def _words(steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.action.text for step in steps)


def _card(card: CardPlan) -> CardStatus:
    return CardStatus(card.address, card.type_id, len(card.instances), card.notes)


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
