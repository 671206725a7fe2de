# SPDX-License-Identifier: Apache-2.0
"""One question to the kubelet: who holds what, and what its answer is worth. Writes ``allocations``.

Questions may overlap, for an Allocate asks by itself: an answer to an older one than was answered is dropped.
No answer is no news: what was held stays held. Right after a kubelet's start even an answer proves only
presence; it is told as partial if there was no better one before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import anyio

from nodeagent.agent.admission import Admission
from nodeagent.agent.doubt import Doubt
from nodeagent.agent.known import Known
from nodeagent.agent.overlap import Overlap
from nodeagent.agent.releases import Rescans
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint, Stamp
from nodeagent.kubelet.grpc.channel import KubeletAway
from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Allocations, Knowledge, PodList

Life = tuple[int, tuple[int, int] | None]
"""One life of the kubelet: which of those that were seen to come, and its socket."""


class PodResources(Protocol):
    """What the kubelet tells of holders."""

    async def pods(self) -> PodList:
        """Who holds what.

        :raises KubeletUnavailable: if there is no answer in time.
        :raises KubeletAway: if nobody listens.
        """
        ...

    def checkpoint(self) -> Checkpoint:
        """What its checkpoint says. Blocks on a file."""
        ...

    def write_anew(self) -> bool:
        """Have the kubelet write it, by a list of ours; False if it has none."""
        ...

    def birth(self) -> Birth | None:
        """When the kubelet that answers was started; None if there is none."""
        ...

    def expected(self) -> bool:
        """True if one that is starting can be expected to answer: there is a place for its socket."""
        ...


class Inquiry:
    """Asks, and takes the answers for what they are worth."""

    def __init__(
        self,
        kubelet: PodResources,
        snapshots: Snapshots,
        reservations: ReservationBook,
        rescans: Rescans,
        timeouts: Timeouts,
    ) -> None:
        """``rescans`` is asked for ids that nobody holds any more, before this is told.

        Closing a device has no event: who was told of the release first would find it still open.
        """
        self.error: str | None = None  # why there was no answer last, but for questions of Allocates
        self.doubt = Doubt(timeouts.young_kubelet)
        self.failures: Latest[int] = Latest(-1)  # questions since the last one with an answer; -1: none yet
        self.kubelet = kubelet
        self._snapshots = snapshots
        self._reservations = reservations
        self._rescans = rescans
        self._timeouts = timeouts
        self.known = Known()
        self._overlap = Overlap()
        self._overdue: Stamp | None = None  # the file that was not written anew when it was to be

    @property
    def possible(self) -> bool:
        """True if there is a kubelet that could answer."""
        return self.kubelet.birth() is not None

    def kubelet_changed(self) -> None:
        """A new kubelet is there: for a while it may not name all holders."""
        self.doubt.kubelet_changed(anyio.current_time())
        self.known.new_kubelet()
        self._reservations.admissions.new_kubelet()
        self._reservations.settle(anyio.current_time())
        self.failures.set(-1)

    async def ask(self, *, anew: bool = False) -> None:
        """Ask once; ``anew``: and have the file written after the answer, without what is over.

        Until there is a first answer, what the kubelet's file says is all that is known.
        """
        if self._snapshots.now.allocations == Allocations():
            checkpoint = await threads.call(self.kubelet.checkpoint)
            if self._snapshots.now.allocations == Allocations():  # an Allocate may have asked, too
                self._take(Allocations(self.known.silent({}, checkpoint)), anyio.current_time(), checkpoint)
        async with anyio.create_task_group() as group:
            group.start_soon(
                _now_and_then,
                self.kubelet,
                lambda file: self._take(self._snapshots.now.allocations, anyio.current_time(), file),
                self._timeouts.pod_resources_slow,
                name="what settles meanwhile",
            )
            await self._ask(anyio.current_time(), once_more=not self.failures.get())
            group.cancel_scope.cancel()
        if anew and self._snapshots.now.allocations.answered:
            file = await self.written_anew(self._timeouts.checkpoint_write_before_change)
            self._take(self._snapshots.now.allocations, anyio.current_time(), file)

    async def who_asks(self, limit: float) -> Admission:
        """Ask inside an Allocate: whose it is. Without an answer in time it is nobody's that is known.

        One that names nobody is none: whoever is being admitted is always named. Then the kubelet's file
        tells what pods got before, also from other plugins: it is written before the next pod is admitted.
        """
        with anyio.move_on_after(limit):
            while self.possible:
                asked, life = anyio.current_time(), self._life
                try:
                    answer = await self.kubelet.pods()
                except KubeletUnavailable:  # others may ask so often that the kubelet refuses
                    await anyio.sleep(self._timeouts.pod_resources_repeat)
                else:
                    if not answer.pods:
                        break
                    return await self._answered(answer, asked, life, inside=True)
        checkpoint = await threads.call(self.kubelet.checkpoint)
        known = self._snapshots.now.allocations  # only now: others may have been answered meanwhile
        holders = self.known.silent(known.holders, checkpoint)
        self._take(replace(known, holders=holders), anyio.current_time(), checkpoint)
        return self._reservations.admissions.asker(None)

    async def written_anew(self, limit: float) -> Checkpoint:
        """The kubelet's file after it was written, or as it is if that takes too long.

        It has what pods have, as the kubelet knows it at that moment, and nothing of pods that have ended.
        What is not written although it was to be says nothing of what came with an id, until it is.
        """
        before = now = await threads.call(self.kubelet.checkpoint)
        if before.written is None or not self.kubelet.write_anew():
            return before
        with anyio.move_on_after(limit):
            while now.written == before.written:
                await anyio.sleep(self._timeouts.checkpoint_poll)
                now = await threads.call(self.kubelet.checkpoint)
        self._overdue = before.written if now.written == before.written else None
        return now

    async def _ask(self, asked: float, *, once_more: bool) -> None:
        """Ask at this time. Who answered last is asked ``once_more``.

        Allocates ask as well, and the kubelet refuses what is beyond 100 questions a second, with 10 at once
        (``DefaultQPS`` in pkg/kubelet/apis/podresources/constants.go).
        """
        life = self._life
        try:
            answer = await self.kubelet.pods()
        except KubeletUnavailable as error:
            if once_more and self.possible:
                await anyio.sleep(self._timeouts.pod_resources_repeat)
                await self._ask(anyio.current_time(), once_more=False)
            else:
                await self._silent(error, asked)
        else:
            if self.error is not None:
                log.event(log.HOLDERS_KNOWN)
            self.error = None
            await self._answered(answer, asked, life, inside=False)
            self.failures.set(0)

    async def _silent(self, error: KubeletUnavailable, asked: float) -> None:
        if self.error is None:
            log.event(log.HOLDERS_UNKNOWN, error=error.what)
        self.error = error.what
        checkpoint = await threads.call(self.kubelet.checkpoint)
        holders = self.known.silent(self._snapshots.now.allocations.holders, checkpoint)
        knowledge = Knowledge.UNKNOWN if isinstance(error, KubeletAway) else Knowledge.SILENT
        self._take(Allocations(holders, knowledge), asked, checkpoint)
        self.failures.set(max(self.failures.get(), 0) + 1)

    @property
    def _life(self) -> Life:
        """Which kubelet answers: an answer that spans two lives is none of the new one's."""
        birth = self.kubelet.birth()
        return self.doubt.kubelets, None if birth is None else birth.socket

    async def _answered(self, answer: PodList, asked: float, life: Life, *, inside: bool) -> Admission:
        checkpoint = await threads.call(self.kubelet.checkpoint)
        if life != self._life:
            return self._reservations.admissions.asker(None)
        if self.doubt.answered_by(self.kubelet.birth(), anyio.current_time()):
            self.known.new_kubelet()
            if self.doubt.early:
                self._reservations.admissions.new_kubelet()
        asker = None
        if self._overlap.is_newest(asked):
            with self._overlap.taking():
                asker = await self._learn(answer, asked, checkpoint, inside=inside)
        else:
            await self._overlap.newer_stands(asked)
        return asker or self._reservations.admissions.asker(answer.pods if inside else None, checkpoint)

    async def _learn(
        self, answer: PodList, asked: float, checkpoint: Checkpoint, *, inside: bool
    ) -> Admission | None:
        """Take the answer; whose Allocate it is, if it was asked ``inside`` one and is not late."""
        doubtful = self.doubt.covers(asked)
        before = self._snapshots.now.allocations.holders
        ours = self._reservations.admissions.ours
        holders = self.known.answered(
            answer.holders, before, checkpoint, doubtful=doubtful, ours=ours, namesakes=answer.namesakes
        )
        released = set() if holders is before else before.keys() - holders.keys()
        if released:
            await self._rescans.refresh(released)
        if not self._overlap.take(asked):
            return None
        asker = self._reservations.admissions.asker(answer.pods, checkpoint) if inside else None
        since = self.doubt.began if doubtful else 0.0
        self._reservations.named(answer, asked, since, asker, checkpoint)
        self._take(Allocations(holders, self.doubt.knowledge(asked)), asked, checkpoint)
        return asker

    def _take(self, allocations: Allocations, now: float, checkpoint: Checkpoint) -> None:
        """Publish these; what has settled by then is held, also where no pod is named."""
        entered = self._reservations.admissions.now.entered(checkpoint) if checkpoint.written else None
        self._reservations.settle(now, entered)
        if presumed := self._reservations.presumed:
            allocations = replace(allocations, holders={**allocations.holders, **presumed})
        allocations = self.known.with_answers(allocations, checkpoint)
        if checkpoint.written is not None and checkpoint.written == self._overdue:
            allocations = replace(allocations, written=frozenset())
        self._reservations.forgotten.note(self._snapshots.now.allocations, allocations, anyio.current_time())
        self._reservations.behind.named(allocations)
        self._snapshots.publish(replace(self._snapshots.now, allocations=allocations))


async def _now_and_then(kubelet: PodResources, take: Callable[[Checkpoint], None], pause: float) -> None:
    """While the kubelet takes its time, what has settled by its file is held all the same."""
    while True:
        await anyio.sleep(pause)
        take(await threads.call(kubelet.checkpoint))
