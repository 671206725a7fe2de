# SPDX-License-Identifier: Apache-2.0
"""Who holds what, kept fresh: asks the kubelet's PodResources after each hint that something has changed.

Hints: an Allocate (after its settle time), the kubelet's checkpoint file, a new kubelet, the slow timer, and
a quicker one while a release is awaited, for a release has no event of its own. No answer is no news: what
was held stays held, and what an Allocate gave away is held by somebody. Right after a kubelet's start even an
answer proves only presence; it is told as partial if there was no better one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import anyio

from nodeagent.agent.doubt import Doubt
from nodeagent.agent.releases import Releases, Rescans
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Backoff
from nodeagent.config import Settings, Timing
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.shares import HoldersShare

SPACING = 0.1  # seconds between two questions: the kubelet's limit is 100 a second
AT_START = 1.0  # seconds that the first list waits for the kubelet to say what is held
SLOW = 0.5  # seconds that an answer may take before what has settled counts as held without it

_RETRY = Backoff(first=0.5, limit=10.0)


class PodResources(Protocol):
    """The kubelet's answer to who holds what."""

    async def holders(self) -> Mapping[str, Holder]:
        """Device id → holder. :raises KubeletUnavailable: if there is no answer in time."""
        ...

    def born(self) -> float | None:
        """When the kubelet that answers was started, by the clock of then; None if that is not known."""
        ...


@dataclass(frozen=True, slots=True)
class Waits:
    """What the time of the next question depends on; times are those of the event loop, in seconds."""

    asked: float  # the last question
    failures: int = 0  # questions without an answer since the last one that had one
    settled: float | None = None  # when the first id has settled
    released: bool = False  # somebody waits for a release
    doubted: float = 0.0  # until when an answer proves presence only

    def due(self, timing: Timing) -> float:
        """When to ask next without a hint."""
        times = [self.asked + timing.resync]
        if self.failures:
            times.append(self.asked + _RETRY.delay(self.failures - 1))
        if self.settled is not None:
            times.append(self.settled)
        if self.released:
            times.append(self.asked + timing.holders)
        if self.asked < self.doubted:
            times.append(max(self.doubted, self.asked + 1.0))
        return min(times)


class Holders:
    """Writes ``allocations`` of the Snapshot; says when an id whose Allocate was a moment ago has settled."""

    name = "allocations"

    def __init__(
        self,
        kubelet: PodResources,
        snapshots: Snapshots,
        reservations: ReservationBook,
        settings: Latest[Settings],
        releases: Releases,
        rescans: Rescans,
    ) -> None:
        """``rescans`` is asked for ids that nobody holds any more, before this is told.

        Closing a device has no event: who was told of the release first would find it still open.
        """
        self.error: str | None = None
        self.hints: Latest[int] = Latest(
            0
        )  # a new value: ask soon; touched: the time of the next question changed
        self.doubt = Doubt()
        self._kubelet = kubelet
        self._snapshots = snapshots
        self._reservations = reservations
        self._settings = settings
        self._releases = releases
        self._rescans = rescans
        self._failures = 0

    def status(self) -> HoldersShare:
        """Who holds what, and what is wrong with the answer."""
        return HoldersShare(self._snapshots.now.allocations, self.error)

    def ask_soon(self) -> None:
        """Something has changed that the kubelet may know of."""
        self.hints.set(self.hints.get() + 1)

    def kubelet_changed(self) -> None:
        """A new kubelet is there: for a while it may not name all holders."""
        self.doubt.kubelet_changed(anyio.current_time())
        self.ask_soon()

    async def first(self) -> None:
        """The first answer, before anything is offered, if it does not take too long."""
        with anyio.move_on_after(AT_START):
            await self.one_turn()

    async def run(self) -> None:
        """Ask whenever there is a hint or the time has come, for ever."""
        async with anyio.create_task_group() as group:
            began, settles = self._releases.began, self._reservations.began
            group.start_soon(began.follow, lambda _: self.ask_soon(), began.version, name="awaited releases")
            # an end to wait for; the kubelet has no news before it
            group.start_soon(settles.follow, lambda _: self.hints.touch(), name="first reservation")
            while True:
                hints, asked = self.hints.get(), anyio.current_time()
                await self.one_turn()
                await anyio.sleep(SPACING)
                await self._until_due(asked, hints)

    async def one_turn(self) -> None:
        """Ask once, and take the answer for what it is worth."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._presume, name="what settles meanwhile")
            await self._ask(anyio.current_time())
            group.cancel_scope.cancel()

    async def _until_due(self, asked: float, hints: int) -> None:
        """Wait for a hint, or for the time of the next question after one at ``asked``."""
        while self.hints.get() == hints:
            seen = self.hints.version
            waits = Waits(
                asked,
                self._failures,
                self._reservations.next_settled(),
                bool(self._releases.awaited.get()),
                self.doubt.until,
            )
            left = waits.due(self._settings.get().timing) - anyio.current_time()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await self.hints.newer(seen)

    async def _presume(self) -> None:
        """While the kubelet takes its time, what has settled is held all the same."""
        while True:
            await anyio.sleep(SLOW)
            self._take(self._snapshots.now.allocations, anyio.current_time())

    async def _ask(self, asked: float) -> None:
        try:
            answer = await self._kubelet.holders()
        except KubeletUnavailable as error:
            if self.error is None:
                log.event(log.HOLDERS_UNKNOWN, error=error.what)
            self.error = error.what
            self._failures += 1
            self._take(replace(self._snapshots.now.allocations, knowledge=Knowledge.UNKNOWN), asked)
        else:
            if self.error is not None:
                log.event(log.HOLDERS_KNOWN)
            self.error, self._failures = None, 0
            await self._answered(answer, asked)

    async def _answered(self, answer: Mapping[str, Holder], asked: float) -> None:
        before = self._snapshots.now.allocations.holders
        self.doubt.answered_by(self._kubelet.born(), anyio.current_time())
        doubtful = self.doubt.covers(asked)
        holders = {device_id: _same(before.get(device_id), holder) for device_id, holder in answer.items()}
        if doubtful:
            holders = {**before, **holders}
        released = before.keys() - holders.keys()
        if released:
            await self._rescans.refresh(released)
        if not doubtful:
            self._reservations.named(asked)
        self._take(Allocations(holders, self.doubt.knowledge(asked)), asked)

    def _take(self, allocations: Allocations, now: float) -> None:
        """Publish these; what has settled by then is held, also where no pod is named."""
        self._reservations.settle(now)
        holders = allocations.holders
        presumed = {
            device_id: holder
            for device_id, holder in self._reservations.presumed.items()
            if device_id not in holders or holders[device_id].resource != holder.resource
        }
        if presumed:
            allocations = replace(allocations, holders={**holders, **presumed})
        self._snapshots.publish(replace(self._snapshots.now, allocations=allocations))


def _same(before: Holder | None, now: Holder) -> Holder:
    """The known object where it says the same: readers find by identity what has changed."""
    return before if before is not None and before == now else now
