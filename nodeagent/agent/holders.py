# SPDX-License-Identifier: Apache-2.0
"""Who holds what, kept fresh: asks the kubelet's PodResources after each hint that something has changed.

Hints: an Allocate (after its settle time), the kubelet's checkpoint file, a new kubelet, the slow timer, and
a quicker one while a release is awaited, for a release has no event of its own. What an answer is worth is
judged by ``agent.inquiry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import anyio

from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.base.progress import Debt
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.config import Settings, Timing
from nodeagent.model.allocation import Possession
from nodeagent.model.shares import HoldersShare


@dataclass(frozen=True, slots=True)
class Waits:
    """What the time of the next question depends on; times are those of the event loop, in seconds."""

    asked: float  # the last question
    failures: int = 0  # questions without an answer since the last one that had one
    settled: float | None = None  # when the first id has settled
    released: bool = False  # somebody waits for a release
    doubted: float = 0.0  # until when an answer proves presence only
    rewrite: float | None = None  # when the kubelet is to write its file again

    def due(self, timing: Timing, timeouts: Timeouts) -> float:
        """When to ask next without a hint."""
        times = [self.asked + timing.resync]
        if self.failures:
            times.append(self.asked + timeouts.pod_resources_retry.delay(self.failures - 1))
        if self.settled is not None:
            times.append(self.settled)
        if self.rewrite is not None:
            times.append(self.rewrite)
        if self.released:
            times.append(self.asked + timing.holders)
        if self.asked < self.doubted:
            times.append(max(self.doubted, self.asked + timeouts.young_kubelet_spacing))
        return min(times)


class Rewrites:
    """When the kubelet should write its file anew: what the file alone says may be long over.

    The kubelet writes it at each list, and not when a pod ends. What only a plain init container has stays in
    doubt for as long as its pod is there: the pauses grow, and are short again for what is new, and after a
    pod has gone. One that comes again under its name is another one by its uid.
    """

    def __init__(self, rewrite: Backoff) -> None:
        self._rewrite = rewrite
        self.due: float | None = None
        self.wanted: Latest[None] = Latest(None)  # touched when a list should be sent again
        self._number = 0
        self._doubts: frozenset[Possession] = frozenset()
        self._pods: frozenset[str] = frozenset()

    def asked(self, now: float, doubts: frozenset[Possession], pods: frozenset[str] = frozenset()) -> None:
        """The kubelet was asked, and has these ``pods``; of the ``doubts`` its file alone tells."""
        if not (doubts and doubts <= self._doubts and self._pods <= pods):
            self.due, self._number = None, 0
        self._doubts, self._pods = doubts, pods
        if doubts and (self.due is None or now >= self.due):
            self.due = now + self._rewrite.delay(self._number)
            self._number += 1
            self.wanted.touch()


class Holders:
    """Says when to ask, also when an id whose Allocate was a moment ago has settled."""

    name = "allocations"

    def __init__(
        self,
        inquiry: Inquiry,
        snapshots: Snapshots,
        reservations: ReservationBook,
        settings: Latest[Settings],
        releases: Releases,
        timeouts: Timeouts,
    ) -> None:
        # a new value: ask soon; touched: the time of the next question changed
        self.hints: Latest[int] = Latest(0)
        self.rewrites = Rewrites(timeouts.checkpoint_rewrite)
        self._inquiry = inquiry
        self._snapshots = snapshots
        self._reservations = reservations
        self._settings = settings
        self._timeouts = timeouts
        self._releases = releases
        self._asked: tuple[float, int] | None = None  # when the loop asked last, and the hints by then
        self._awaited = 0.0  # until when the first list of the present kubelet waits for an answer

    def status(self) -> HoldersShare:
        """Who holds what, and what is wrong with the answer."""
        return HoldersShare(self._snapshots.now.allocations, self._inquiry.error)

    def owed(self) -> Mapping[str, Debt]:
        """A question, if there was a hint or its time has come."""
        if self._asked is None:
            return {}
        asked, hints = self._asked
        if self.hints.get() == hints and anyio.current_time() < self._due(asked):
            return {}
        return {self.name: Debt(asked, "the kubelet is not asked who holds what")}

    def ask_soon(self) -> None:
        """Something has changed that the kubelet may know of."""
        self.hints.set(self.hints.get() + 1)

    def kubelet_changed(self) -> None:
        """A new kubelet is there: for a while it may not name all holders."""
        self._inquiry.kubelet_changed()
        self._awaited = anyio.current_time() + self._timeouts.pod_resources_at_start
        self.ask_soon()

    async def first(self) -> None:
        """The first answer, before anything is offered, if it does not take too long."""
        self._awaited = anyio.current_time() + self._timeouts.pod_resources_at_start
        with anyio.CancelScope(deadline=self._awaited):
            await self._inquiry.ask()
            while self._inquiry.failures.get() and self._inquiry.possible:
                await anyio.sleep(self._timeouts.pod_resources_spacing)
                await self._inquiry.ask()

    async def ready(self) -> None:
        """Wait for the first answer of the present kubelet, but not long: before that any id may be held.

        Its socket for questions may come later than the one for plugins.
        """
        failures = self._inquiry.failures
        with anyio.CancelScope(deadline=self._awaited):
            while failures.get() and self._inquiry.kubelet.expected():
                await failures.newer(failures.version)

    async def run(self) -> None:
        """Ask whenever there is a hint or the time has come, for ever."""
        async with anyio.create_task_group() as group:
            began, settles, failures = self._releases.began, self._reservations.began, self._inquiry.failures
            group.start_soon(began.follow, lambda _: self.ask_soon(), began.version, name="awaited releases")
            # an end to wait for; the kubelet has no news before it
            group.start_soon(settles.follow, lambda _: self.hints.touch(), name="first reservation")
            # whoever takes something away asks, too, and may be the first to hear nothing
            group.start_soon(failures.follow, lambda _: self.hints.touch(), name="silence")
            while True:
                hints, asked = self.hints.get(), anyio.current_time()
                self._asked = asked, hints
                await self._inquiry.ask()
                self.rewrites.asked(asked, self._doubts, self._pods)
                await anyio.sleep(self._timeouts.pod_resources_spacing)
                await self._until_due(asked, hints)

    @property
    def _doubts(self) -> frozenset[Possession]:
        """Where the kubelet's file alone says who has something, or that nobody has.

        And what somebody waits for that it does not have, or not yet of whom it names.
        """
        doubts = self._inquiry.known.hinted | self._reservations.given.overdue
        unwritten = self._snapshots.now.unwritten if self._releases.awaited.get() else None
        return doubts if unwritten is None else doubts | {unwritten}

    @property
    def _pods(self) -> frozenset[str]:
        """The names that the kubelet told last, and the uids of which it has directories."""
        return self._reservations.admissions.pods | self._inquiry.known.begun

    def _due(self, asked: float) -> float:
        """When to ask next without a hint."""
        waits = Waits(
            asked,
            max(self._inquiry.failures.get(), 0),
            self._reservations.admissions.settles,
            bool(self._releases.awaited.get()),
            self._inquiry.doubt.until,
            self.rewrites.due,
        )
        return waits.due(self._settings.get().timing, self._timeouts)

    async def _until_due(self, asked: float, hints: int) -> None:
        """Wait for a hint, or for the time of the next question after one at ``asked``."""
        while self.hints.get() == hints:
            seen = self.hints.version
            left = self._due(asked) - anyio.current_time()
            if left <= 0:
                return
            with anyio.move_on_after(left):
                await self.hints.newer(seen)
