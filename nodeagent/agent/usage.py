# SPDX-License-Identifier: Apache-2.0
"""Which pod uses which device: PodResources, the kubelet's checkpoint and pending allocations as one table.

A device that one of the three has is in use. The checkpoint may have entries that PodResources does not list:
of pods that have ended, of plain init containers, or because the kubelet does not know its pods yet. When
that is news, one list is sent again; the kubelet writes the checkpoint then, and what is in it is in use.
Where the checkpoint cannot be read, the last known allocations count for a while.

One question at a time. Writes ``allocations`` of the Snapshot. Times are those of the event loop, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

import anyio

from nodeagent.agent.releases import Releases, Rescans
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.progress import Debt
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kubelet.checkpoint import Checkpoint, Entry, Stamp
from nodeagent.kubelet.grpc import KubeletAway
from nodeagent.model.allocation import (
    Allocations,
    ByPossession,
    Holder,
    Knowledge,
    PodList,
    Pods,
    by_possession,
    of_uid,
    unnamed,
)
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.shares import HoldersShare

T = TypeVar("T")


class Kubelet(Protocol):
    """The sources of one kubelet."""

    async def list_pods(self) -> PodList:
        """The answer of PodResources.

        :raises KubeletUnavailable: if there is none in time.
        :raises KubeletAway: if nobody listens.
        """
        ...

    def read_checkpoint(self) -> Checkpoint:
        """The checkpoint. Blocks on a file."""
        ...

    def resend_list(self) -> bool:
        """Send one list again, so that the checkpoint is written; False if the kubelet reads none."""
        ...

    def is_present(self) -> bool:
        """True if there is a socket of PodResources."""
        ...

    def is_expected(self) -> bool:
        """True if there is a directory for that socket."""
        ...


class RecentReleases:
    """When a pod was last known to have a device that no pod has now."""

    def __init__(self, container_end: float) -> None:
        """``container_end``: seconds for a container to end whose pod the kubelet has forgotten."""
        self._container_end = container_end
        self._since: dict[str, float] = {}

    def note(self, before: Allocations, now: Allocations, at: float) -> None:
        """What was allocated ``before`` and is not any more, with the groups and nodes that came with it."""
        ids = {each for each, _ in before.held()} - {each for each, _ in now.held()}
        ids |= before.brought.keys() - now.brought.keys()
        groups = {str(group) for each in ids for group in before.groups.get(each, ())}
        nodes = set(_answers_gone(before, now))
        self._since = {each: self._since[each] for each in self.at(at)}
        self._since |= dict.fromkeys((*ids, *groups, *nodes), at)

    def renew(self, device_id: str, at: float) -> None:
        """The device was seen open: it may be so for as long again."""
        self._since[device_id] = at

    def at(self, now: float) -> frozenset[str]:
        """The ids, numbers of groups and nodes that a container may still have open."""
        return frozenset(each for each, since in self._since.items() if now < since + self._container_end)

    def has(self, host_device: HostDevice, now: float) -> bool:
        """True if a pod had the device, or its whole group, until a moment ago."""
        return not self.at(now).isdisjoint((host_device.id, str(host_device.group)))


class Usage:
    """The table, and the component that keeps it current."""

    name = "allocations"

    def __init__(
        self,
        kubelet: Kubelet,
        snapshots: Snapshots,
        reservations: ReservationBook,
        rescans: Rescans,
        releases: Releases,
        settings: Latest[Settings],
        timeouts: Timeouts,
    ) -> None:
        """``rescans``: a released device is read again before the release is published."""
        self.error: str | None = None  # why there was no answer last
        self.released = RecentReleases(timeouts.forgotten_container_end)
        self._kubelet = kubelet
        self._snapshots = snapshots
        self._reservations = reservations
        self._rescans = rescans
        self._releases = releases
        self._settings = settings
        self._timeouts = timeouts
        self._lock = anyio.Lock()
        self._hints: Latest[int] = Latest(0)  # a new value: ask soon; touched: the next time is another one
        self._failures: Latest[int] = Latest(-1)  # requests since the last answer; -1: none yet
        self._asked: tuple[float, int] | None = None  # when the loop asked last, and the hints by then
        self._requested = -math.inf  # when the last request began
        self._first_list = 0.0  # until when the first list for the present kubelet waits for an answer
        self._listed: ByPossession[Holder] = {}  # by the last answer of PodResources
        self._pods: frozenset[str] = frozenset()  # named in it
        self._started: frozenset[str] = frozenset()  # uids of started pods with entries that it lacked
        self._file = Checkpoint()
        self._confirmed: frozenset[Entry] = frozenset()  # not listed, and in a file that was written since
        self._confirm_at: float | None = None  # when such entries are to be confirmed again
        self._confirmations = 0  # how often they were since the last news
        self._overdue = False  # the kubelet has not written the file after the last list
        self._not_rewritten: Stamp | None = None  # the file that the kubelet did not write again in time
        self._had_file = False  # a kubelet without allocations may have no file yet
        self._unreadable: float | None = None  # since when absence from the file proves nothing
        self._pod_of: dict[str, Holder] = {}  # uid → its pod, as an answer has named it
        self._named: set[str] = set()  # uids of pods that this kubelet has named with a device

    # Requests

    async def request(self, *, rewritten: bool = False) -> PodList | None:
        """Ask the kubelet once, and publish; None if there is no answer with pods.

        ``rewritten``: the checkpoint must have been written after the answer, as before a change of the host.
        """
        async with self._lock:
            return await self._request(rewritten=rewritten)

    async def request_before_change(self) -> None:
        """Ask once, after this call began; callers that wait at the same time share an answer."""
        wanted = anyio.current_time()
        async with self._lock:
            if not self._kubelet.is_present() or self._requested > wanted:
                return
            spacing = self._requested + self._timeouts.release_check_spacing
            await anyio.sleep(max(spacing - anyio.current_time(), 0.0))
            await self._request(rewritten=True)

    async def request_in_allocate(self) -> tuple[PodList | None, float]:
        """Ask inside an Allocate, which does not wait long; the answer, and when it was asked for."""
        answer, asked = None, anyio.current_time()
        with anyio.move_on_after(self._timeouts.pod_resources_in_allocate):
            while True:
                asked = anyio.current_time()
                answer = await self.request()
                if answer is not None or self.error is None or not self._kubelet.is_present():
                    break
                await anyio.sleep(self._timeouts.pod_resources_repeat)
        if answer is None and self._kubelet.is_present():
            await self._request_checkpoint()
        return answer, asked

    async def _request_checkpoint(self) -> None:
        """PodResources is silent: a checkpoint that the kubelet writes now has all that pods have."""
        async with self._lock:
            before = await self._read()
            file = await self._rewritten(before, self._timeouts.checkpoint_write)
            if file is not before and file.readable:
                had = file.possessions
                held = ((name, ids.items()) for name, ids in self._listed.items())
                self._listed = {
                    name: {each: one for each, one in items if (name, each) in had} for name, items in held
                }
            await self._publish(file, self._snapshots.now.allocations.knowledge)

    async def _request(self, *, rewritten: bool) -> PodList | None:
        if self._snapshots.now.allocations == Allocations():
            await self._publish(await self._read(), Knowledge.UNKNOWN)
        self._requested = asked = anyio.current_time()
        try:
            answer = await self._answer()
        except KubeletUnavailable as error:
            await self._note_silence(error)
            return None
        if self.error is not None:
            log.event(log.HOLDERS_KNOWN)
        self.error = None
        file = await self._confirmed_file(answer, rewritten=rewritten)
        self._listed = self._with_last_known(answer)
        known = Knowledge.COMPLETE if self._absence_counts else Knowledge.PARTIAL
        await self._publish(file, known, answer, asked)
        self._failures.set(0)
        return answer if answer.pods else None

    async def _answer(self) -> PodList:
        """The kubelet refuses what is beyond 100 requests a second: a client that had answers asks again."""
        try:
            return await self._kubelet.list_pods()
        except KubeletUnavailable:
            if self._failures.get() or not self._kubelet.is_present():
                raise
        await anyio.sleep(self._timeouts.pod_resources_repeat)
        return await self._kubelet.list_pods()

    async def _note_silence(self, error: KubeletUnavailable) -> None:
        if self.error is None:
            log.event(log.HOLDERS_UNKNOWN, error=error.what)
        self.error = error.what
        away = isinstance(error, KubeletAway)
        await self._publish(await self._read(), Knowledge.UNKNOWN if away else Knowledge.SILENT)
        self._failures.set(max(self._failures.get(), 0) + 1)

    # The checkpoint

    async def _read(self) -> Checkpoint:
        file = await threads.call(self._kubelet.read_checkpoint)
        self._had_file = self._had_file or not file.missing
        if file.readable or not self._had_file:
            self._unreadable = None
        elif self._unreadable is None:
            self._unreadable = anyio.current_time()
        return file

    async def _confirmed_file(self, answer: PodList, *, rewritten: bool) -> Checkpoint:
        """The file; written after the answer, if it has entries that the answer lacks and that is news."""
        file, now = await self._read(), anyio.current_time()
        unlisted = _unlisted(file, answer)
        started = frozenset(each.uid for each in unlisted) & (file.started or frozenset())
        ended = not self._pods <= answer.pods.keys() or not self._started <= started
        self._pods, self._started = frozenset(answer.pods), started
        due = self._confirm_at is not None and now >= self._confirm_at
        fresh = not unlisted <= self._confirmed and not self._overdue
        if not rewritten and not (unlisted and (ended or due or fresh)):
            if not unlisted:
                self._confirmed, self._confirm_at, self._confirmations = frozenset(), None, 0
            return file
        timeouts = self._timeouts
        limit = timeouts.checkpoint_write_before_change if rewritten else timeouts.checkpoint_write
        after = await self._rewritten(file, limit)
        if after is file and not self._overdue:
            after = self._without_ended(file, answer)
        if ended or fresh:
            self._confirmations = 0
        unlisted = _unlisted(after, answer)
        if after.stamp != file.stamp:
            self._confirmed = unlisted
        delay = timeouts.checkpoint_rewrite.delay(self._confirmations)
        self._confirmations += 1
        self._confirm_at = anyio.current_time() + delay if unlisted else None
        return after

    async def _rewritten(self, before: Checkpoint, limit: float) -> Checkpoint:
        """The file after the kubelet has written it; the same as before if it does not in time."""
        if not self._kubelet.resend_list():
            return before
        with anyio.move_on_after(limit):
            while True:
                await anyio.sleep(self._timeouts.checkpoint_poll)
                now = await self._read()
                if now.stamp != before.stamp:
                    self._overdue = False
                    return now
        self._overdue = True
        self._not_rewritten = before.stamp
        return before

    def _without_ended(self, file: Checkpoint, answer: PodList) -> Checkpoint:
        """The file of a kubelet that reads no list of ours, without pods that it does not name any more."""
        ended = {uid for uid in self._named if str(self._pod_of.get(uid)) not in answer.pods}
        return file._replace(entries=tuple(each for each in file.entries if each.uid not in ended))

    @property
    def _absence_counts(self) -> bool:
        """True if a device that no source has is not in use."""
        since = self._unreadable
        return since is None or anyio.current_time() >= since + self._timeouts.unreadable_checkpoint

    def _with_last_known(self, answer: PodList) -> ByPossession[Holder]:
        """What the answer lists; without a readable file also what was known before."""
        if self._absence_counts:
            return answer.table
        before = self._snapshots.now.allocations.table
        if all(ids.keys() <= answer.table.get(name, {}).keys() for name, ids in before.items()):
            return answer.table
        names = dict.fromkeys((*before, *answer.table))
        return {name: {**before.get(name, {}), **answer.table.get(name, {})} for name in names}

    # The table

    async def _publish(
        self, file: Checkpoint, knowledge: Knowledge, answer: PodList | None = None, asked: float = 0.0
    ) -> None:
        """Publish what the last answer and this file have."""
        self._file = file
        before = self._snapshots.now.allocations
        pods = {} if answer is None else answer.pods
        allocations = _with_answers(Allocations(self._joined(file, pods), knowledge), file, before)
        if file.stamp is not None and file.stamp == self._not_rewritten:
            allocations = replace(allocations, written=frozenset())
        released = {each for each, _ in before.held()} - {each for each, _ in allocations.held()}
        if released:
            await self._rescans.refresh(released)
        self.released.note(before, allocations, anyio.current_time())
        self._snapshots.publish(replace(self._snapshots.now, allocations=allocations))
        self._reservations.observe(file, allocations, answer, asked)

    def _joined(self, file: Checkpoint, pods: Pods) -> ByPossession[Holder]:
        """PodResources and the checkpoint as one table."""
        uids = {each.uid for each in file.entries}
        self._pod_of = {uid: pod for uid, pod in self._pod_of.items() if uid in uids}
        self._named &= uids
        unlisted = []
        for entry in file.entries:
            holder = self._listed.get(entry.resource, {}).get(entry.device_id)
            if holder is None:
                unlisted.append(entry)
            elif holder.named:
                self._pod_of[entry.uid] = holder
                self._named.add(entry.uid)
        if not unlisted:
            return self._listed
        if (admitted := self._reservations.admitted_pod(file, pods)) is not None:
            uid, pod = admitted
            self._pod_of.setdefault(uid, pod)
        added = by_possession((each.device_id, self._holder_of(each)) for each in unlisted)
        names = dict.fromkeys((*self._listed, *added))
        return {name: {**self._listed.get(name, {}), **added.get(name, {})} for name in names}

    def _holder_of(self, entry: Entry) -> Holder:
        known = self._pod_of.get(entry.uid)
        if known is None:
            return unnamed(entry.resource, entry.numa, of_uid(entry.uid))
        return replace(known, resource=entry.resource, numa=entry.numa)

    # The component

    def status(self) -> HoldersShare:
        """The table, and what is wrong with the answer."""
        return HoldersShare(self._snapshots.now.allocations, self.error)

    def owed(self) -> Mapping[str, Debt]:
        """A request, if there was a hint or its time has come."""
        if self._asked is None:
            return {}
        asked, hints = self._asked
        if self._hints.get() == hints and anyio.current_time() < self._due(asked):
            return {}
        return {self.name: Debt(asked, "the kubelet is not asked which pod uses which device")}

    def request_soon(self) -> None:
        """Something has changed that the kubelet may know of."""
        self._hints.set(self._hints.get() + 1)

    def kubelet_changed(self) -> None:
        """A new kubelet is there, which may not know its pods yet."""
        now = anyio.current_time()
        self._reservations.new_kubelet()
        self._unreadable = None if self._unreadable is None else now
        self._confirm_at, self._confirmed, self._confirmations = None, frozenset(), 0
        self._overdue = False
        self._named.clear()
        self._failures.set(-1)
        self._first_list = now + self._timeouts.pod_resources_at_start
        self.request_soon()

    async def follow_checkpoint(self, changes: Latest[T]) -> None:
        """Ask the kubelet when its checkpoint has other entries, for ever."""
        seen = changes.version
        while True:
            seen, _ = await changes.newer(seen)
            file = await threads.call(self._kubelet.read_checkpoint)
            if (file.entries, file.readable) != (self._file.entries, self._file.readable):
                self.request_soon()

    async def first(self) -> None:
        """The first answer, before anything is listed, if it does not take too long."""
        self._first_list = anyio.current_time() + self._timeouts.pod_resources_at_start
        with anyio.CancelScope(deadline=self._first_list):
            await self.request()
            while self._failures.get() and self._kubelet.is_present():
                await anyio.sleep(self._timeouts.pod_resources_spacing)
                await self.request()

    async def ready(self) -> None:
        """Wait for the first answer of the present kubelet, but not long: any device may be in use."""
        with anyio.CancelScope(deadline=self._first_list):
            while self._failures.get() and self._kubelet.is_expected():
                await self._failures.newer(self._failures.version)

    async def run(self) -> None:
        """Ask whenever there is a hint or the time has come, for ever."""
        async with anyio.create_task_group() as group:
            began, pending = self._releases.began, self._reservations.began
            group.start_soon(began.follow, lambda _: self.request_soon(), began.version, name="releases")
            group.start_soon(pending.follow, lambda _: self._hints.touch(), name="pending")
            group.start_soon(self._failures.follow, lambda _: self._hints.touch(), name="silence")
            while True:
                hints, asked = self._hints.get(), anyio.current_time()
                self._asked = asked, hints
                await self.request()
                self._reservations.expire()
                await anyio.sleep(self._timeouts.pod_resources_spacing)
                await self._until_due(asked, hints)

    async def _until_due(self, asked: float, hints: int) -> None:
        """Wait for a hint, or for the time of the next request after one at ``asked``."""
        while self._hints.get() == hints:
            seen = self._hints.version
            left = self._due(asked) - anyio.current_time()
            if left <= 0:
                return
            look = self._timeouts.admission_end_poll if self._reservations.is_admitting else left
            with anyio.move_on_after(min(left, look)):
                await self._hints.newer(seen)
                continue
            if self._reservations.is_admitting:
                file = await self._read()
                if file.entries != self._file.entries:
                    return
                self._reservations.observe(file, self._snapshots.now.allocations)

    def _due(self, asked: float) -> float:
        """When to ask next without a hint."""
        timing, timeouts = self._settings.get().timing, self._timeouts
        times = [asked + timing.resync]
        if (failures := self._failures.get()) > 0:
            times.append(asked + timeouts.pod_resources_retry.delay(failures - 1))
        elif (due := self._reservations.due) is not None:
            times.append(due)
        if self._confirm_at is not None:
            times.append(self._confirm_at)
        if self._releases.awaited.get():
            times.append(asked + timing.holders)
        if not self._absence_counts and self._unreadable is not None:
            times.append(self._unreadable + timeouts.unreadable_checkpoint)
        return min(times)


def _unlisted(file: Checkpoint, answer: PodList) -> frozenset[Entry]:
    """The entries of the file that the answer lacks."""
    return frozenset(
        each for each in file.entries if each.device_id not in answer.table.get(each.resource, {})
    )


def _with_answers(allocations: Allocations, file: Checkpoint, before: Allocations) -> Allocations:
    """With what came with the ids by the file; parts that did not change are the same objects."""
    brought: dict[str, Holder] = {}
    groups: dict[str, frozenset[GroupNumber]] = {}
    nodes: dict[ResourceName, dict[str, tuple[str, ...]]] = {}
    cdi: dict[ResourceName, dict[str, tuple[str, ...]]] = {}
    for entry in file.entries:
        holder = allocations.holder_of(entry.resource, entry.device_id)
        if holder is None:
            continue
        device_id, answer = entry.device_id, entry.answer
        groups[device_id] = groups.get(device_id, frozenset()) | answer.groups
        for table, given in ((nodes, answer.nodes), (cdi, answer.cdi)):
            if given:
                ids = table.setdefault(entry.resource, {})
                ids[device_id] = (*ids.get(device_id, ()), *given)
        for each in answer.host_devices:
            if each not in allocations.holders:
                brought[each] = replace(holder, brought=device_id)
    return replace(
        allocations,
        table=_same(before.table, allocations.table),
        brought=_same(before.brought, brought),
        groups=_same(before.groups, groups),
        nodes=_same(before.nodes, nodes),
        cdi=_same(before.cdi, cdi),
        written=file.possessions if file.stamp is not None else None,
    )


def _answers_gone(before: Allocations, now: Allocations) -> Iterator[str]:
    """The nodes and CDI names that came with ids which no pod has any more."""
    for old in (before.nodes, before.cdi):
        for name, ids in old.items():
            for each, given in ids.items():
                if now.holder_of(name, each) is None:
                    yield each
                    yield from given


def _same(before: T, now: T) -> T:
    """The known object where it is equal: readers find by identity what has changed."""
    return before if before == now else now
