# SPDX-License-Identifier: Apache-2.0
"""Handles manual requests: ``nodeagent bind`` and ``release``, in the daemon and without one.

A request is recorded in the Ledger, and the next plan includes its changes. ``ManualRequests`` answers
requests in the daemon, whose loop makes the changes. When no daemon runs, ``carry_out_alone`` carries out the
request in the process of the command: it takes the daemon's lock, changes only the named IOMMU groups, and
advertises no resource.

Before a request is planned (``policy.change.manual_requests``), the host, its mounts and the open files are
scanned and the kubelet is queried, because these change without an event. A refused request is removed from
the Ledger; the answer reports the refusal. If a write sleeps in the kernel for too long, the answer reports
it as late, and the loop waits for its end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent import core as cores
from nodeagent.agent.changing import ledger
from nodeagent.agent.changing.step import ChangeRunner
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, NodeagentError
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import host_use
from nodeagent.model import plain
from nodeagent.model.change import Answer, Asked, Outcome, Request, Result, Step, occupied
from nodeagent.model.host import HostUses
from nodeagent.model.ids import PciAddress
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.policy.change import manual_requests
from nodeagent.policy.change.manual_requests import GroupPlan


class ManualRequests:
    """Plans manual requests, has them carried out, and waits for the outcome."""

    name = "requests"  # the name under which it awaits releases

    def __init__(self, core: Core, runner: ChangeRunner, group: TaskGroup | None = None) -> None:
        """``group``: the task group that makes the changes; None: the daemon's loop makes the changes."""
        self._core = core
        self._runner = runner
        self._group = group
        self._snapshots = core.snapshots

    async def reply(self, question: bytes, asker: int) -> dict[str, Any]:
        """Return the answer to a request from root, both as plain data; an unknown field is an error.

        A request waits until the Ledger was read.
        """
        opened = self._runner.ledger.opened
        if not opened.version:
            await opened.newer(0)
        try:
            request = plain.load(Request, json.loads(question))
        except (TypeError, ValueError, RecursionError) as error:
            what = f"the daemon cannot read the request: {error}"
            return plain.dump(
                Answer(
                    error=what,
                    hint="the daemon may have another version than this command; restart the daemon",
                )
            )
        return plain.dump(await self.handle(request, asker))

    async def handle(self, request: Request, asker: int = 0) -> Answer:
        """Return the outcome for each IOMMU group; a write that has not ended in time is reported as late."""
        try:
            groups = await self._plan(request)
            results = {
                each.functions: manual_requests.build_result(each, self._snapshots.now.host)
                for each in groups
            }
            due = [] if request.dry_run else [each for each in groups if each.due]
            _log_accepted(request, due, asker)
            if due:
                results |= await self._carry_out(due, results)
            answer = Answer(tuple(results.values()))
        except NodeagentError as error:
            answer = Answer(error=error.what, hint=error.hint)
        _log_refused(request, answer, asker)
        return answer

    # The plan

    async def _plan(self, request: Request) -> Sequence[GroupPlan]:
        """Plan the request; if a device is in use, wait a moment for its release.

        :raises NodeagentError: if the request names nothing.
        """
        await self._core.usage.request_before_change()
        await self._core.observer.rescan(frozenset((None,)))
        found = await self._host_uses(request)
        try:
            with anyio.move_on_after(self._core.timeouts.host_use_read):
                while awaited := _awaited(self._plan_now(request, found)):
                    seen = self._snapshots.version
                    self._core.releases.wait_for(awaited, by=self.name)
                    await self._snapshots.newer(seen)
        finally:
            self._core.releases.wait_for(frozenset(), by=self.name)
        return self._plan_now(request, found)

    def _plan_now(self, request: Request, found: Mapping[PciAddress, HostUses]) -> Sequence[GroupPlan]:
        now = self._snapshots.now
        return manual_requests.plan(request, replace(now, host=now.host.with_uses(found, now.host)))

    async def _host_uses(self, request: Request) -> Mapping[PciAddress, HostUses]:
        """Read the host's uses of the PCI functions, within a time limit; a write checks them again."""
        wanted = [
            each.address for each in manual_requests.find_members(request, self._snapshots.now) if each.usable
        ]
        with anyio.move_on_after(self._core.timeouts.host_use_read):
            return await threads.call(host_use.find_uses, self._core.root, wanted, closely=True)
        return {}

    # The changes, and their outcome

    async def _carry_out(
        self, due: Sequence[GroupPlan], planned: Mapping[tuple[str, ...], Result]
    ) -> Mapping[tuple[str, ...], Result]:
        """Return the results, keyed by the PCI functions of each.

        :raises KernelRefused: if the request cannot be recorded.
        """
        before = self._snapshots.now.ledger.asked
        for each in due:
            self._request(each.asked)
        try:
            await self._runner.ledger.save()
        except KernelRefused:
            self._take_back(due, before)
            raise
        results = {each.functions: planned[each.functions]._replace(outcome=Outcome.LATE) for each in due}
        with anyio.move_on_after(self._core.timeouts.change_request_answer):
            await self._await_outcome(due, results)
        self._take_back([each for each in due if results[each.functions].outcome is Outcome.REFUSED], before)
        with suppress(KernelRefused):
            await self._runner.ledger.save()
        return results

    async def _await_outcome(self, due: Sequence[GroupPlan], results: dict[tuple[str, ...], Result]) -> None:
        """Add each result when it is known; return after the last one."""
        left = list(due)
        while left:
            seen = self._snapshots.version
            for each in [group for group in left if not self._is_in_progress(group)]:
                plan = manual_requests.plan_now(each, self._snapshots.now)
                refusals = self._failure(each) or manual_requests.find_refusals(plan)
                if plan.steps and not refusals:
                    self._start(plan.steps)
                    continue
                outcome = Outcome.REFUSED if refusals else Outcome.DONE
                results[each.functions] = results[each.functions]._replace(outcome=outcome, refusals=refusals)
                left.remove(each)
            if left:
                await self._snapshots.newer(seen)

    def _is_in_progress(self, group: GroupPlan) -> bool:
        """True while a change of the IOMMU group is in progress, or a write to its devices has not ended."""
        working, busy = self._runner.working, self._runner.busy
        actions = [step.action for step in group.plan.steps]
        return any(each.card in working or not busy.isdisjoint(occupied(each)) for each in actions)

    def _failure(self, group: GroupPlan) -> tuple[Problem, ...]:
        """The first change of the IOMMU group that the kernel refused, as a Problem; () if there is none."""
        failures = self._runner.retries.failures
        for action in (step.action for step in group.plan.steps):
            if (failure := failures.get(action.attempt)) is not None:
                return (wrong(ProblemCode.CHANGE, action.card, failure.error.what, failure.error.hint),)
        return ()

    def _take_back(self, refused: Sequence[GroupPlan], before: Mapping[str, Asked]) -> None:
        """Restore the earlier requests for the refused groups, and start to undo their changes."""
        for each in refused:
            self._request({address: before.get(address) for address in each.asked})
        for each in refused:
            plan = manual_requests.plan_now(each, self._snapshots.now)
            if not manual_requests.find_refusals(plan):
                self._start(plan.steps)

    def _request(self, changes: Mapping[str, Asked | None]) -> None:
        self._runner.ledger.request(manual_requests.with_requests(self._snapshots.now.ledger.asked, changes))

    def _start(self, steps: Sequence[Step]) -> None:
        """Make the steps of one IOMMU group now, unless the daemon's loop makes them."""
        if self._group is not None and steps:
            self._runner.start(steps[0].action.card, steps, self._snapshots.now, self._group)


def _awaited(groups: Collection[GroupPlan]) -> frozenset[str]:
    return frozenset[str]().union(*(each.waits_for for each in groups))


def _log_accepted(request: Request, due: Sequence[GroupPlan], asker: int) -> None:
    """Log an accepted request before its first write. ``asker``: the process that sent the request."""
    for each in due:
        asking = request.asking.value
        log.event(log.REQUEST_ACCEPTED, process=str(asker), operation=asking, device=each.functions)


def _log_refused(request: Request, answer: Answer, asker: int) -> None:
    """Log a refused request with its reason, except for a dry run."""
    refused = [(each.functions, each.refusals) for each in answer.results if each.outcome is Outcome.REFUSED]
    if answer.error:
        refused.append(((), (wrong(ProblemCode.CHANGE, "", answer.error, answer.hint),)))
    for functions, problems in refused if not request.dry_run else ():
        log.event(
            log.REQUEST_REFUSED,
            process=str(asker),
            operation=request.asking.value,
            object=", ".join(functions or request.names),
            error="; ".join(problem.message for problem in problems),
            device=functions,
            hint=next((problem.hint for problem in problems), None),
        )


async def carry_out_alone(root: Root, settings: Settings, timeouts: Timeouts, request: Request) -> Answer:
    """Return the answer when no daemon runs; a dry run takes no lock.

    :raises AlreadyRunning: if a daemon serves this node.
    :raises KernelRefused: if the host cannot be read, or the record not be written.
    """
    core = cores.build(root, Latest(settings), timeouts)
    side = cores.build_kubelet_side(core)
    if request.dry_run:
        return await _answer_alone(core, request)
    side.open()
    try:
        return await _answer_alone(core, request)
    finally:
        side.close()
        core.watcher.close()


async def _answer_alone(core: Core, request: Request) -> Answer:
    async with anyio.create_task_group() as group:
        await cores.first_specs(core)
        await core.observer.scan()
        group.start_soon(core.observer.run)
        await core.usage.first()
        runner = ChangeRunner(core)
        if request.dry_run:
            known = await threads.call(ledger.SECTION.peek, core.root.prefix)
            core.snapshots.publish(replace(core.snapshots.now, ledger=known))
        else:
            await runner.ledger.open()
        answer = await ManualRequests(core, runner, group).handle(request)
        with anyio.move_on_after(core.timeouts.write_late):
            while runner.working:
                await core.snapshots.newer(core.snapshots.version)
        if not request.dry_run:
            await runner.ledger.save()
        group.cancel_scope.cancel()
    return answer
