# SPDX-License-Identifier: Apache-2.0
"""Who holds what, kept fresh: asks the kubelet's PodResources after each hint that something has changed.

Hints: an Allocate (after its settle time), the kubelet's checkpoint file, a new kubelet, the slow timer, and
a quicker one while a device waits for its release, for a release has no event of its own. No answer is no
news: what was held stays held, and what an Allocate gave away is held by somebody. Right after a kubelet's
start even an answer proves only presence; it is told as partial if there was no better one before.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

import anyio

from nodeagent.agent.reservations import Reservations
from nodeagent.base import log
from nodeagent.base.backoff import Backoff
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.config import Timing
from nodeagent.model.allocation import Allocations, Holder, Knowledge

FRESH_KUBELET = 30.0  # seconds in which a new kubelet may not know its pods yet
SPACING = 0.1  # seconds between two questions: the kubelet's limit is 100 a second
SLOW = 0.5  # seconds that an answer may take before what has settled counts as held without it

_RETRY = Backoff(first=0.5, limit=10.0)

AskHolders = Callable[[], Awaitable[Mapping[str, Holder]]]


class HoldersLoop:
    """Owns the cell of allocations; says when an id whose Allocate was a moment ago has settled."""

    def __init__(
        self,
        ask: AskHolders,
        born: Callable[[], float | None],
        reservations: Reservations,
        *,
        timing: Callable[[], Timing],
        on_change: Callable[[], None] = lambda: None,
        before_release: Callable[[Collection[str]], Awaitable[None]] | None = None,
    ) -> None:
        """``born``: when the kubelet that answers was started, by the clock of then; None if unknown.

        ``before_release`` is awaited with ids that nobody holds any more, before this is told.

        Closing a device has no event: who was told of the release first would find it still open.
        """
        self.cell: Latest[Allocations] = Latest(Allocations(), on_change)
        self.error: str | None = None
        self._ask = ask
        self._born = born
        self._known_as: float | None = None
        self._reservations = reservations
        self._before_release = before_release
        self._timing = timing
        self._wake: Latest[None] = Latest(None)
        self._doubt_until = 0.0
        self._complete = False  # an answer without doubt has come
        self._failures = 0
        self._hinted = False
        self._awaiting: frozenset[str] = frozenset()

    def wake(self) -> None:
        """Ask again soon."""
        self._hinted = True
        self._wake.touch()

    def give(self, holders: Mapping[str, Holder]) -> None:
        """An Allocate gives these ids away: their pod may take more of the group for a moment.

        Raises Refused if one of them is being removed.
        """
        first = self._reservations.next_settled() is None
        self._reservations.give(holders, time.monotonic() + self._timing().settle)
        if first:
            self._wake.touch()  # there is an end to wait for now; the kubelet has no news before it

    def kubelet_changed(self) -> None:
        """A new kubelet is there: for a while it may not name all holders."""
        self._doubt(FRESH_KUBELET)
        self.wake()

    def _doubt(self, seconds: float) -> None:
        self._doubt_until = max(self._doubt_until, time.monotonic() + seconds)

    def await_releases(self, awaited: bool, by: str = "") -> None:
        """Say whether something (``by``) waits for a release: then the kubelet is asked more often."""
        if awaited and by not in self._awaiting:
            self.wake()
        self._awaiting = self._awaiting | {by} if awaited else self._awaiting - {by}

    async def run(self) -> None:
        """Ask whenever there is a hint or the time has come, for ever."""
        while True:
            self._hinted = False
            asked = time.monotonic()
            await self.one_turn()
            await anyio.sleep(SPACING)
            await self._until_due(asked)

    async def _until_due(self, asked: float) -> None:
        """Wait for a hint, or for the time of the next question after one at ``asked``."""
        while not self._hinted:
            seen = self._wake.version
            left = self._due(asked) - time.monotonic()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await self._wake.newer(seen)

    async def one_turn(self) -> None:
        """Ask once, and take the answer for what it is worth."""
        async with anyio.create_task_group() as asking:
            asking.start_soon(self._presume, name="what settles meanwhile")
            await self._one_question(time.monotonic())
            asking.cancel_scope.cancel()

    async def _presume(self) -> None:
        """While the kubelet takes its time, what has settled is held all the same."""
        while True:
            await anyio.sleep(SLOW)
            self._take(self.cell.get(), time.monotonic())

    async def _one_question(self, asked: float) -> None:
        try:
            found = await self._ask()
        except KubeletUnavailable as error:
            self._unanswered(error)
            self._take(replace(self.cell.get(), knowledge=Knowledge.UNKNOWN), asked)
        else:
            await self._answered(found, asked)

    async def _answered(self, found: Mapping[str, Holder], asked: float) -> None:
        if self.error is not None:
            log.event(log.HOLDERS_KNOWN)
        self.error, self._failures = None, 0
        born = self._born()
        if born is not None and born != self._known_as:  # once: the clock may have been set back since
            self._doubt(FRESH_KUBELET - max(time.time() - born, 0.0))
        self._known_as = born
        doubtful = asked < self._doubt_until
        if doubtful:
            found = {**self.cell.get().holders, **found}
        released = self.cell.get().holders.keys() - found.keys()
        if released and self._before_release is not None:
            await self._before_release(released)
        if not doubtful:
            self._reservations.named(asked)
            self._complete = True
        knowledge = Knowledge.COMPLETE if self._complete else Knowledge.PARTIAL
        self._take(Allocations(found, knowledge), asked)

    def _take(self, allocations: Allocations, now: float) -> None:
        """Make this the newest; what has settled by then is held, also where no pod is named."""
        self._reservations.settle(now)
        holders = allocations.holders
        presumed = {
            device_id: holder
            for device_id, holder in self._reservations.presumed.items()
            if device_id not in holders or holders[device_id].resource != holder.resource
        }
        self.cell.set(replace(allocations, holders={**holders, **presumed}) if presumed else allocations)

    def _unanswered(self, error: KubeletUnavailable) -> None:
        if self.error is None:
            log.event(log.HOLDERS_UNKNOWN, error=error.what)
        self.error = error.what
        self._failures += 1

    def _due(self, asked: float) -> float:
        """When to ask next without a hint, after a question at ``asked``."""
        times, settled = [asked + self._timing().resync], self._reservations.next_settled()
        if self._failures:
            times.append(asked + _RETRY.delay(self._failures - 1))
        if settled is not None:
            times.append(settled)
        if self._awaiting:
            times.append(asked + self._timing().holders)
        if asked < self._doubt_until:
            times.append(max(self._doubt_until, asked + 1.0))
        return min(times)
