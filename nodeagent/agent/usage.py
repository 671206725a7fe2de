# SPDX-License-Identifier: Apache-2.0
"""Which pod uses which device: joins PodResources, the checkpoint, pending allocations and prepared claims.

A device that one of these sources contains is in use. The checkpoint may have entries that PodResources
does not list: of pods that have ended, of plain init containers, or because the kubelet does not know its
pods yet. If the checkpoint has new entries that PodResources does not list, one device list is sent to the
kubelet again. After receiving a device list, the kubelet rewrites the checkpoint, and the devices of all its
entries are in use. While the checkpoint cannot be read, the last known allocations count for 30 s.

Only one query runs at a time. This module writes ``allocations`` and ``claims`` of the Snapshot. Times are
seconds of the event loop's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import anyio

from nodeagent.agent import joining
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.releases import DeviceReader, RecentReleases, Releases
from nodeagent.agent.reservations import PodsAnswer, ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kubelet.checkpoint import Checkpoint, Entry, Stamp
from nodeagent.kubelet.grpc import KubeletAway
from nodeagent.model.allocation import (
    Allocations,
    ByResource,
    Holder,
    Knowledge,
    PodList,
    Pods,
)
from nodeagent.model.claim import Claim

T = TypeVar("T")


class Usage:
    """The table of devices in use, and the component that keeps it current."""

    name = "allocations"

    def __init__(
        self,
        kubelet: KubeletView,
        snapshots: Snapshots,
        reservations: ReservationBook,
        reader: DeviceReader,
        releases: Releases,
        settings: Latest[Settings],
        timeouts: Timeouts,
    ) -> None:
        """``reader`` reads a released device again before its release is published."""
        self.error: str | None = None  # the error of the last query of PodResources
        self.registered: Mapping[str, Sequence[str]] = {}  # resource → healthy ids in the checkpoint
        self.released = RecentReleases(timeouts.forgotten_container_end)
        self._kubelet = kubelet
        self._snapshots = snapshots
        self._reservations = reservations
        self._reader = reader
        self._releases = releases
        self._settings = settings
        self._timeouts = timeouts
        self._lock = anyio.Lock()
        self._wakes: Latest[int] = Latest(0)  # new value: query soon; touched: the due time has changed
        self._failures: Latest[int] = Latest(-1)  # queries since the last answer; -1: no answer yet
        self._requested = -math.inf  # when the last query began
        self._requested_rewritten = -math.inf  # the same, of the last query with a rewritten checkpoint
        self._first_list = 0.0  # how long the first device list waits for an answer
        self._listed: ByResource[Holder] = {}  # the last answer of PodResources
        self._names: frozenset[str] = frozenset()  # the pods in that answer
        self._file = Checkpoint(missing=True)
        self._of_kubelet = Allocations()  # the published allocations without those of claims
        self._unlisted: frozenset[Entry] = frozenset()  # checkpoint entries that PodResources did not list
        self._list_sent = -math.inf  # when a device list was last sent again
        self._outdated: Stamp | None = None  # the stamp of a checkpoint that was not rewritten in time
        self._unreadable: float | None = None  # since when the checkpoint cannot be read
        self._pod_of: dict[str, Holder] = {}  # uid → the pod, as PodResources names it
        self._named: frozenset[str] = frozenset()  # uids of pods that the present kubelet has listed

    # Requests

    async def request(self, *, in_allocate: bool = False) -> Pods | None:
        """Query the kubelet once, and publish the result; return the pods that it lists, or None."""
        async with self._lock:
            return await self._request(in_allocate=in_allocate)

    async def request_before_change(self) -> None:
        """Make a query of the kubelet that starts after this call began; concurrent callers share one answer.

        The answer of PodResources counts only if the kubelet rewrote its checkpoint after that answer.
        """
        wanted = anyio.current_time()
        async with self._lock:
            if not self._kubelet.is_present():
                return
            silent = self._snapshots.now.allocations.knowledge is Knowledge.NO_ANSWER
            if self._requested_rewritten > wanted or (silent and self._requested > wanted):
                return
            spacing = self._requested + self._timeouts.release_check_spacing
            await anyio.sleep(max(spacing - anyio.current_time(), 0.0))
            await self._request(rewritten=True)

    async def request_in_allocate(self) -> Pods | None:
        """Query PodResources during an Allocate, with a short limit."""
        with anyio.move_on_after(self._timeouts.pod_resources_in_allocate):
            while True:
                pods = await self.request(in_allocate=True)
                if pods is not None or self.error is None or not self._kubelet.is_present():
                    return pods
                await anyio.sleep(self._timeouts.pod_resources_repeat)
        await self._request_file()
        return None

    async def _request_file(self) -> None:
        """Use the checkpoint alone, without PodResources: a rewritten checkpoint has all devices in use."""
        async with self._lock:
            before = await self._read()
            file = await self._rewrite_file(before, self._timeouts.checkpoint_write)
            if file is not before and file.readable:
                written = file.listed_devices
                self._listed = {
                    name: {each: holder for each, holder in ids.items() if (name, each) in written}
                    for name, ids in self._listed.items()
                }
            await self._publish(file, self._snapshots.now.allocations.knowledge)

    async def _request(self, *, in_allocate: bool = False, rewritten: bool = False) -> Pods | None:
        """``rewritten``: the checkpoint must have been written after the answer."""
        if self._of_kubelet == Allocations():
            await self._publish(await self._read(), Knowledge.UNKNOWN)
        self._requested = requested_at = anyio.current_time()
        try:
            listed = await self._list_pods()
        except KubeletUnavailable as error:
            await self._publish_without_answer(error)
            return None
        answer = PodsAnswer(listed.pods, requested_at, in_allocate)
        if self.error is not None:
            log.event(log.POD_RESOURCES_AVAILABLE)
        self.error = None
        file = await self._choose_file(listed, answer, rewritten=rewritten)
        self._listed, self._names = self._with_last_known(listed), frozenset(listed.pods)
        known = Knowledge.COMPLETE if self._absence_counts else Knowledge.PARTIAL
        await self._publish(file, known, answer)
        if rewritten:
            self._requested_rewritten = requested_at
        self._failures.set(0)
        return listed.pods or None

    async def _list_pods(self) -> PodList:
        """Query PodResources, and once again after a refusal: the kubelet allows 100 requests a second.

        There is no second query after a timeout, because an Allocate may wait for the lock.
        """
        requested_at, repeat = anyio.current_time(), self._timeouts.pod_resources_repeat
        try:
            return await self._kubelet.list_pods()
        except KubeletUnavailable:
            was_silent = anyio.current_time() > requested_at + repeat
            if was_silent or self._failures.get() or not self._kubelet.is_present():
                raise
        await anyio.sleep(repeat)
        return await self._kubelet.list_pods()

    async def _publish_without_answer(self, error: KubeletUnavailable) -> None:
        """Publish without an answer: devices that were listed last or are in the checkpoint are in use."""
        if self.error is None:
            log.event(log.POD_RESOURCES_UNAVAILABLE, error=error.what)
        self.error = error.what
        away = isinstance(error, KubeletAway)
        await self._publish(await self._read(), Knowledge.UNKNOWN if away else Knowledge.NO_ANSWER)
        self._failures.set(max(self._failures.get(), 0) + 1)

    # The checkpoint

    async def _choose_file(self, listed: PodList, answer: PodsAnswer, *, rewritten: bool) -> Checkpoint:
        """Return the checkpoint; have it rewritten if it differs from PodResources in a new or long-lasting
        way.

        The kubelet frees the devices of ended pods at each List, so a rewritten checkpoint has only live
        pods.
        """
        file, timeouts = await self._read(), self._timeouts
        self._named &= {each.uid for each in file.entries}
        unlisted = joining.find_unlisted(file, listed)
        repeated = unlisted <= self._unlisted and self._names == listed.pods.keys()
        recent = anyio.current_time() < self._list_sent + timeouts.checkpoint_rewrite
        news = bool(unlisted) and not (repeated and recent)
        if rewritten or news or self._reservations.find_missing(file, answer):
            limit = timeouts.checkpoint_write_before_change if rewritten else timeouts.checkpoint_write
            file = await self._rewrite_file(file, limit, listed)
        known, self._unlisted = self._unlisted, joining.find_unlisted(file, listed)
        if not self._unlisted <= known:
            self.request_soon()  # for a pod that was admitted after the kubelet had answered
        return file

    async def _rewrite_file(
        self, before: Checkpoint, limit: float, listed: PodList | None = None
    ) -> Checkpoint:
        """Have the kubelet rewrite the checkpoint and return it; the old one if it is not written in time.

        Without resources there is no device list to send, so a pod that PodResources no longer lists counts
        as ended.
        """
        self._list_sent = anyio.current_time()
        if not self._kubelet.resend_list():
            return before if listed is None else self._without_ended(before, listed)
        with anyio.move_on_after(limit):
            while True:
                await anyio.sleep(self._timeouts.checkpoint_poll)
                file = await self._read()
                if file.stamp != before.stamp:
                    return file
        self._outdated = before.stamp
        return before

    def _without_ended(self, file: Checkpoint, listed: PodList) -> Checkpoint:
        ended = {uid for uid in self._named if str(self._pod_of.get(uid)) not in listed.pods}
        return file._replace(entries=tuple(each for each in file.entries if each.uid not in ended))

    async def _read(self) -> Checkpoint:
        """Read the checkpoint; it may be missing until the kubelet has allocated a device."""
        file = await threads.call(self._kubelet.read_checkpoint)
        self.registered = file.registered
        not_yet = file.missing and self._file.missing and self._unreadable is None
        if file.readable or not_yet:
            self._unreadable = None
        elif self._unreadable is None:
            self._unreadable = anyio.current_time()
        return file

    @property
    def _absence_counts(self) -> bool:
        """True if a device that is in none of the sources counts as free."""
        since = self._unreadable
        return since is None or anyio.current_time() >= since + self._timeouts.unreadable_checkpoint

    def _with_last_known(self, listed: PodList) -> ByResource[Holder]:
        """The listed allocations; while the checkpoint cannot be read, the last known ones are added."""
        if self._absence_counts:
            return listed.table
        return joining.merge(self._of_kubelet.table, listed.table)

    # The table

    async def _publish(
        self, file: Checkpoint, knowledge: Knowledge, answer: PodsAnswer | None = None
    ) -> None:
        """Publish the devices in use, from the last answer of PodResources and this checkpoint."""
        self._file = file
        before = self._of_kubelet
        self._pod_of = joining.find_pods(file, self._listed, self._pod_of)
        if answer is not None:
            self._named |= {uid for uid, pod in self._pod_of.items() if str(pod) in answer.pods}
        table = joining.join(file, self._listed, self._pod_of)
        outdated = file.stamp is not None and file.stamp == self._outdated
        allocations = joining.add_responses(Allocations(table, knowledge), file, before, outdated=outdated)
        released = {each for each, _ in before.held()} - {each for each, _ in allocations.held()}
        if released:
            await self._reader.refresh(released)
        self.released.add(before, allocations, anyio.current_time())
        self._of_kubelet = allocations
        self.set_claims(self._snapshots.now.claims)
        self._reservations.update(file, answer)

    def set_claims(self, claims: Mapping[str, Claim]) -> None:
        """Publish the prepared claims of DRA: their devices are in use from now on, all others are not."""
        now = self._snapshots.now
        allocations = joining.add_claims(self._of_kubelet, claims.values(), now.allocations)
        self._snapshots.publish(replace(now, claims=claims, allocations=allocations))

    # The component

    def request_soon(self) -> None:
        """Query the kubelet soon, because its allocations may have changed."""
        self._wakes.set(self._wakes.get() + 1)

    def kubelet_changed(self) -> None:
        """Forget the former kubelet's answers: a restarted kubelet may not know its pods yet."""
        now = anyio.current_time()
        self._reservations.end_admission()
        self._unreadable = None if self._unreadable is None else now
        self._unlisted = frozenset()
        self._named = frozenset()
        self._failures.set(-1)
        self._first_list = now + self._timeouts.pod_resources_at_start
        self.request_soon()

    async def follow_checkpoint(self, changes: Latest[T]) -> None:
        """Query the kubelet whenever the entries of its checkpoint change, for ever."""
        seen = changes.version
        while True:
            seen, _ = await changes.newer(seen)
            file = await threads.call(self._kubelet.read_checkpoint)
            self.registered = file.registered
            if (file.entries, file.readable) != (self._file.entries, self._file.readable):
                self.request_soon()

    async def first(self) -> None:
        """Query the kubelet with a limit, before the first device list if possible."""
        self._first_list = anyio.current_time() + self._timeouts.pod_resources_at_start
        with anyio.CancelScope(deadline=self._first_list):
            await self.request()

    async def ready(self) -> None:
        """Wait a limited time for the present kubelet's first answer: any device may be in use before."""
        with anyio.CancelScope(deadline=self._first_list):
            while self._failures.get() and self._kubelet.is_expected():
                await self._failures.newer(self._failures.version)

    async def run(self) -> None:
        """Query the kubelet at each wake and whenever a query is due, for ever."""
        async with anyio.create_task_group() as group:
            awaited, pending = self._releases.awaited, self._reservations.began
            group.start_soon(awaited.follow, lambda _: self.request_soon(), awaited.version, name="releases")
            group.start_soon(pending.follow, lambda _: self._wakes.touch(), name="pending")
            group.start_soon(self._failures.follow, lambda _: self._wakes.touch(), name="silence")
            while True:
                wakes, requested_at = self._wakes.get(), anyio.current_time()
                await self.request()
                await anyio.sleep(self._timeouts.pod_resources_spacing)
                await self._wait_until_due(requested_at, wakes)

    async def _wait_until_due(self, requested_at: float, wakes: int) -> None:
        """Wait until this component is woken, or a query is due after the one at ``requested_at``."""
        while self._wakes.get() == wakes:
            seen = self._wakes.version
            remaining = self._next_due(requested_at) - anyio.current_time()
            if remaining <= 0:
                return
            with anyio.move_on_after(remaining):
                await self._wakes.newer(seen)

    def _next_due(self, requested_at: float) -> float:
        """When the next query is due if this component is not woken before."""
        timing, timeouts = self._settings.get().timing, self._timeouts
        times = [requested_at + timing.resync]
        if (failures := self._failures.get()) > 0:
            times.append(requested_at + timeouts.pod_resources_retry.delay(failures - 1))
        elif (due := self._reservations.due) is not None:
            times.append(due)
        if self._releases.awaited.get():
            times.append(requested_at + timing.holders)
        if self._unreadable is not None and not self._absence_counts:
            times.append(self._unreadable + timeouts.unreadable_checkpoint)
        return min(times)
