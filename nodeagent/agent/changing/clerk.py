# SPDX-License-Identifier: Apache-2.0
"""Answers requests by hand: what is asked for becomes part of the Ledger, and the plan does the rest.

Nothing is written here. The host is looked at anew before it is judged, mounts and open files too, and the
kubelet is asked, for these come without an event. What was refused is forgotten: somebody stands there who
was told. What the kernel still holds up after a while is left to the loop, and told as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import anyio

from nodeagent.agent.changing.card_run import CardRuns
from nodeagent.agent.changing.ledger import LedgerKeeper
from nodeagent.agent.changing.retries import Retries
from nodeagent.agent.desk import Desk
from nodeagent.agent.observe import Observer
from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import uses
from nodeagent.model.action import Step, occupied
from nodeagent.model.ids import PciAddress
from nodeagent.model.ledger import Asked
from nodeagent.model.request import Answer, Became, Request, Result
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.uses import HostUses
from nodeagent.policy.change import byhand
from nodeagent.policy.change.byhand import Judgement

_NAME = "requests"

Begin = Callable[[Sequence[Step], Snapshot], None]


class Looking(NamedTuple):
    """The host as it is at the moment of a request."""

    root: Root
    snapshots: Snapshots
    observer: Observer
    usage: Usage
    releases: Releases
    timeouts: Timeouts

    async def judged(self, request: Request) -> tuple[Judgement, ...]:
        """What becomes of a request now; where somebody has something, it is looked whether that is old.

        :raises NodeagentError: if it names nothing.
        """
        await self.usage.request_before_change()
        await self.observer.rescan(frozenset((None,)))
        found = await self._uses(request)
        try:
            with anyio.move_on_after(self.timeouts.host_use_read):
                while held := _held(self._judged(request, found)):
                    seen = self.snapshots.version
                    self.releases.wait_for(held, by=_NAME)
                    await self.snapshots.newer(seen)
        finally:
            self.releases.wait_for(frozenset(), by=_NAME)
        return self._judged(request, found)

    def _judged(self, request: Request, found: Mapping[PciAddress, HostUses]) -> tuple[Judgement, ...]:
        now = self.snapshots.now
        return byhand.judged(request, replace(now, host=now.host.with_uses(found, now.host)))

    async def _uses(self, request: Request) -> Mapping[PciAddress, HostUses]:
        """As far as it comes in time: what is not seen closely now is so before the write."""
        wanted = [each.address for each in byhand.concerned(request, self.snapshots.now) if each.usable]
        with anyio.move_on_after(self.timeouts.host_use_read):
            return await threads.call(uses.look, self.root, wanted, closely=True)
        return {}


def _tell_begun(request: Request, due: Sequence[Judgement], asker: int) -> None:
    """Log what is accepted, before anything of it is written."""
    for each in due:
        log.event(
            log.REQUEST_ACCEPTED,
            process=str(asker),
            asking=request.asking.value,
            device=each.result.functions,
        )


def _tell_refused(request: Request, answer: Answer, asker: int) -> None:
    """Log what is refused, by whatever it is; who only wants to know has not been refused anything."""
    refused = [(each.functions, each.refusals) for each in answer.results if each.became is Became.REFUSED]
    if answer.error:
        refused.append(((), {answer.error: answer.hint}))
    for functions, refusals in refused if not request.dry_run else ():
        log.event(
            log.REQUEST_REFUSED,
            process=str(asker),
            asking=request.asking.value,
            what=", ".join(functions or request.names),
            error="; ".join(refusals),
            device=functions,
            hint=next(iter(refusals.values()), None),
        )


def _held(judgements: Sequence[Judgement]) -> frozenset[str]:
    return frozenset(each for judgement in judgements for each in judgement.held)


class Clerk:
    """Judges requests, has them carried out, and waits for what becomes of them."""

    def __init__(
        self, looking: Looking, ledger: LedgerKeeper, runs: CardRuns, retries: Retries, begin: Begin
    ) -> None:
        """``begin`` has steps carried out that a plan has; the daemon's loop does so by itself."""
        self._looking = looking
        self._snapshots = looking.snapshots
        self._ledger = ledger
        self._runs = runs
        self._retries = retries
        self._begin = begin

    async def serve(self, desk: Desk) -> None:
        """Answer what comes to the desk, for ever; not before all on record was read."""
        if not self._ledger.opened.version:
            await self._ledger.opened.newer(0)
        desk.staffed.set(self.handle)
        try:
            await anyio.sleep_forever()
        finally:
            desk.staffed.set(None)

    async def handle(self, request: Request, asker: int = 0) -> Answer:
        """What becomes of a request; where a write does not end, what has become of it by then."""
        try:
            judgements = await self._looking.judged(request)
            due = () if request.dry_run else tuple(each for each in judgements if each.due)
            _tell_begun(request, due, asker)
            results = await self._made(due) if due else {}
            answer = Answer(tuple(results.get(each.result.functions, each.result) for each in judgements))
        except NodeagentError as error:
            answer = Answer(error=error.what, hint=error.hint)
        _tell_refused(request, answer, asker)
        return answer

    async def _made(self, due: Sequence[Judgement]) -> Mapping[tuple[str, ...], Result]:
        """The results of these by their functions. :raises KernelRefused: if it cannot be put on record."""
        before = self._snapshots.now.ledger.asked
        self._ask(due)
        try:
            await self._ledger.save()
        except KernelRefused:
            self._take_back(due, before)
            raise
        results = await self._results(due)
        refused = [each for each in due if results[each.result.functions].became is Became.REFUSED]
        self._take_back(refused, before)
        with suppress(KernelRefused):
            await self._ledger.save()
        return results

    def _ask(self, judgements: Sequence[Judgement]) -> None:
        self._ledger.ask(byhand.asked_after(self._snapshots.now.ledger.asked, judgements))

    def _take_back(self, refused: Sequence[Judgement], before: Mapping[str, Asked]) -> None:
        """Ask again for what was asked before; what was begun of a group is to be undone."""
        self._ask([byhand.taken_back(before, each) for each in refused])
        for each in refused:
            self._begin(byhand.now(each, self._snapshots.now).steps, self._snapshots.now)

    async def _results(self, due: Sequence[Judgement]) -> Mapping[tuple[str, ...], Result]:
        left = {each.result.functions: each for each in due}
        results = {key: each.result._replace(became=Became.LATE) for key, each in left.items()}
        with anyio.move_on_after(self._looking.timeouts.change_request_answer):
            while left:
                seen = self._snapshots.version
                for key, each in tuple(left.items()):
                    if (result := self._result(each)) is not None:
                        results[key] = result
                        del left[key]
                if left:
                    await self._snapshots.newer(seen)
        return results

    def _result(self, judgement: Judgement) -> Result | None:
        """What has become of it; None as long as that is not known."""
        actions = [step.action for step in judgement.steps]
        working, busy = self._runs.working, self._runs.busy
        if any(each.card in working or not busy.isdisjoint(occupied(each)) for each in actions):
            return None
        for each in actions:
            if (failure := self._retries.failures.get(each.attempt)) is not None:
                error = failure.error
                return judgement.result._replace(became=Became.REFUSED, refusals={error.what: error.hint})
        again = byhand.now(judgement, self._snapshots.now)
        if again.due:
            self._begin(again.steps, self._snapshots.now)
            return None
        refused = again.result.became is Became.REFUSED
        return judgement.result._replace(
            became=Became.REFUSED if refused else Became.DONE, refusals=again.result.refusals
        )
