# SPDX-License-Identifier: Apache-2.0
"""The one owner of the question: may this id be allocated to a pod, or withdrawn for a change? Never both.

Both sides leave their mark here without an await between look and mark, so one of them is first and the other
finds its mark. An id that was allocated is pending until the kubelet's answer or its checkpoint has it, or
until the admission of its pod is over and neither has it: then the pod was refused.

The pod under admission may be allocated more of its groups, of other resources. An admission is over when
PodResources names another new pod, or the pod is not named any more, or the kubelet has begun to start the
pod; after ``foreign_allocate`` seconds at the latest. Times are those of the event loop, in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import (
    Allocations,
    Holder,
    PodList,
    Pods,
    Possession,
    Reservations,
    of_uid,
    possessions,
    unnamed,
)
from nodeagent.model.ids import ResourceName
from nodeagent.policy.offer.admission import Asker, asker, owners_of


class Admission(NamedTuple):
    """The Allocates of one pod; ``pods`` are those that PodResources named at the last one.

    ``candidates`` are the pods that no answer had named before: one of them is the pod, if there are any.
    """

    identity: str
    pods: Pods | None = None
    candidates: frozenset[str] = frozenset()
    allocated: frozenset[Possession] = frozenset()
    uid: str = ""  # of the pod, as soon as the checkpoint has something that it was allocated

    @property
    def owned(self) -> frozenset[Possession]:
        """What the pod has for certain."""
        pods = self.pods or {}
        return self.allocated.union(*(pods[each] for each in owners_of(pods, self.allocated)))

    @property
    def name(self) -> str:
        """The pod, if PodResources shows it with something that it was allocated."""
        owners = owners_of(self.pods or {}, self.allocated)
        return owners[0] if len(owners) == 1 else ""

    def with_pods(self, pods: Pods | None) -> Admission:
        """The same, with the pods of a newer answer; it may tell which of the candidates it is."""
        owners = owners_of(pods or {}, self.allocated)
        candidates = frozenset(owners) if len(owners) == 1 else self.candidates
        return self._replace(pods=pods, candidates=candidates)

    def is_of(self, pod: str) -> bool:
        """True if only that pod can be the one that asks."""
        return (self.candidates or frozenset(self.pods or ())) == {pod}

    def holder(self, resource: ResourceName, numa: int | None) -> Holder:
        """The pod as the holder of a device of this resource."""
        return _named(unnamed(resource, numa, of_uid(self.uid) if self.uid else self.identity), self.name)

    def is_over(self, answer: PodList, asked: float, last: float) -> bool:
        """True if an answer to a question of the time ``asked`` shows so; ``last``: the last Allocate."""
        if self.pods is None or asked <= last:
            return False
        gone = bool(self.candidates) and self.candidates.isdisjoint(answer.pods)
        return gone or asker(self.pods, answer.pods, self.allocated) is Asker.OTHER


class _Pending(NamedTuple):
    """An id that was allocated, by which admission and when."""

    holder: Holder
    at: float
    admission: str

    def possession(self, device_id: str) -> Possession:
        """What the kubelet has it as: a part of a bundle goes with the id of that."""
        return self.holder.resource, self.holder.got(device_id)


class _Behind(NamedTuple):
    """Functions behind something that was allocated, and when."""

    functions: frozenset[str]
    at: float


_EntryKey = tuple[str, Possession]
"""The uid of a pod, and what it has by the checkpoint."""


class ReservationBook:
    """Writes ``reservations`` and ``behind`` of the Snapshot."""

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.began: Latest[None] = Latest(None)  # touched when there is something to wait for
        self._snapshots = snapshots
        self._timeouts = timeouts
        self._admission = Admission("")
        self._last = 0.0  # when the last Allocate of the admission was answered
        self._under_way = False
        self._look_at: float | None = None  # when to ask the kubelet after the last Allocate
        self._pending: dict[str, _Pending] = {}
        self._allocated: dict[Possession, float] = {}  # until when its pod may be under admission
        self._former: frozenset[_EntryKey] = frozenset()  # of pods before, when an id was allocated again
        self._behind: dict[Possession, _Behind] = {}
        self._moving: frozenset[str] = frozenset()  # functions that are about to get another driver
        self._file = Checkpoint()
        self._names: frozenset[str] = frozenset()  # of all pods in the last answer
        self._came: frozenset[str] = frozenset()  # those that were not there at the last Allocate
        self._before: frozenset[str] = frozenset()  # those that were there in the last admission
        self._numbers = count(1)

    # The pod under admission

    def identify(self, pods: Pods | None) -> Admission:
        """The admission to which an Allocate belongs at which PodResources names these pods.

        ``pods`` None: there was no answer, so it counts as another pod's.
        """
        known = self._admission
        comparable = self._under_way and known.pods is not None and pods is not None
        if comparable and asker(known.pods or {}, pods or {}, known.allocated) is not Asker.OTHER:
            return known.with_pods(pods)
        names = frozenset(pods or ())
        candidates = names & self._came or names - self._before
        return Admission(f"admission {next(self._numbers)}", pods, candidates)

    def begin(self, admission: Admission, asked: float) -> None:
        """The pod of this admission asks, and the answer to a question of the time ``asked`` is known.

        If it is another pod than before, the admission of that one is over.
        """
        if admission.pods is None or admission.identity == self._admission.identity:
            return
        self._end_admission()
        self._pending = {
            each: one
            for each, one in self._pending.items()
            if one.at >= asked or one.admission == admission.identity
        }
        self._publish()

    def new_kubelet(self) -> None:
        """A kubelet was started: it admits no pod that the one before was admitting."""
        self._end_admission()
        self._publish()

    def _end_admission(self) -> None:
        self._under_way = False
        self._before = frozenset(self._admission.pods or self._before)

    # Allocated or withdrawn

    def allocate(
        self,
        admission: Admission,
        holders: Mapping[str, Holder],
        functions: Mapping[Possession, frozenset[str]],
    ) -> None:
        """Mark the ids as allocated: all of them, or none; ``functions`` are behind what was allocated.

        :raises Refused: if one of them is withdrawn.
        """
        for each in holders.keys() & self._marks.withdrawn:
            what = f"{each} is being removed, or is getting another driver"
            raise Refused(what, "the kubelet's list is renewed; try the pod again")
        for each in self._moving.intersection(*functions.values()) if functions else ():
            raise Refused(f"{each}, which is behind it, is getting another driver", "try the pod again")
        now = anyio.current_time()
        pending = {each: _Pending(one, now, admission.identity) for each, one in holders.items()}
        got = {one.possession(each) for each, one in pending.items()}
        self._former |= self._entries(got - admission.allocated)
        self._pending |= pending
        self._allocated |= dict.fromkeys(got, now + self._timeouts.foreign_allocate)
        self._behind |= {each: _Behind(behind, now) for each, behind in functions.items() if behind}
        if admission.pods is not None:
            own = {(one.resource, each) for each, one in holders.items() if not one.brought}
            self._admission = admission._replace(allocated=admission.allocated | own)
            self._under_way, self._last = True, now
        self._came = frozenset()
        self._look_at = now + self._timeouts.pod_resources_after_allocate
        self._publish()
        self.began.touch()

    def withdraw(self, ids: Collection[str], moving: Collection[str]) -> bool:
        """Mark the ids as about to be removed, and ``moving`` as functions about to get another driver.

        False, and no mark, if one of them was allocated a moment ago.
        """
        if not self._pending.keys().isdisjoint(ids) or not self._snapshots.now.behind.isdisjoint(moving):
            return False
        self._moving = self._moving.union(moving)
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.union(ids)))
        return True

    def restore(self, ids: Collection[str], moving: Collection[str]) -> None:
        """Nothing is done to these any more, and the Host shows what became of them."""
        self._moving = self._moving.difference(moving)
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.difference(ids)))

    # What the kubelet knows

    def observe(
        self, file: Checkpoint, allocations: Allocations, answer: PodList | None = None, asked: float = 0.0
    ) -> None:
        """Take what the kubelet knows: its checkpoint, and its answer to a question of the time ``asked``."""
        self._file = file
        known = self._entries({one.possession(each) for each, one in self._pending.items()})
        if self._under_way:
            self._identify_by_checkpoint()
            if self._is_over(answer, asked):
                self._end_admission()
            elif answer is not None and asked > self._last and self._admission.pods is not None:
                self._admission = self._admission.with_pods(answer.pods)
        if answer is not None:
            self._look_at = None if self._look_at is None or asked >= self._look_at else self._look_at
            self._came |= answer.pods.keys() - self._names
            self._names = frozenset(answer.pods)
            self._adopt_name(answer.pods)
        shown = possessions({} if answer is None else answer.pods).union(each for _, each in known)
        self._pending = {
            each: one
            for each, one in self._pending.items()
            if one.possession(each) not in shown
            and not (answer is not None and self._is_refused(one, answer, asked))
        }
        self._behind = {each: one for each, one in self._behind.items() if not _is_known(each, allocations)}
        self._publish()

    def admitted_pod(self, file: Checkpoint, pods: Pods) -> tuple[str, Holder] | None:
        """The pod under admission by its uid, if the checkpoint tells that and PodResources its name."""
        allocated = self._admission.allocated
        owners = owners_of(pods, allocated)
        uids = {each.uid for each in file.entries if (each.resource, each.device_id) in allocated}
        if not self._under_way or len(owners) != 1 or len(uids) != 1:
            return None
        return uids.pop(), _named(unnamed(ResourceName(""), None), owners[0])

    def is_admitted(self, possession: Possession) -> bool:
        """True if the pod that has this has not been started yet: it may ask for it again."""
        uids = {uid for uid, _ in self._entries({possession})}
        if not uids:
            return True  # its container has not got all that it asks for
        if self._file.started is None:
            return anyio.current_time() < self._allocated.get(possession, -math.inf)
        return uids.isdisjoint(self._file.started)

    @property
    def due(self) -> float | None:
        """When the kubelet should know what is pending; None if nothing is."""
        limit = self._timeouts.foreign_allocate
        soon = self._timeouts.pod_resources_after_allocate
        times = [] if self._look_at is None else [self._look_at]
        times += [one.at + soon for one in self._pending.values() if not self._is_admitted_now(one)]
        times += [one.at + limit for one in self._behind.values()]
        if self._under_way:
            times.append(self._last + limit)
        return min(times, default=None)

    @property
    def is_admitting(self) -> bool:
        """True if a pod is under admission that was allocated something."""
        return self._under_way

    def expire(self) -> None:
        """End what has lasted too long."""
        now, limit = anyio.current_time(), self._timeouts.foreign_allocate
        self._allocated = {each: until for each, until in self._allocated.items() if now < until}
        self._former &= {(each.uid, (each.resource, each.device_id)) for each in self._file.entries}
        if self._under_way and now >= self._last + limit:
            self._end_admission()
        self._behind = {each: one for each, one in self._behind.items() if now < one.at + limit}
        self._publish()

    def _is_over(self, answer: PodList | None, asked: float) -> bool:
        """True if the admission under way is over."""
        by_answer = answer is not None and self._admission.is_over(answer, asked, self._last)
        return by_answer or self._is_started()

    def _is_admitted_now(self, one: _Pending) -> bool:
        return self._under_way and one.admission == self._admission.identity

    def _is_refused(self, one: _Pending, answer: PodList, asked: float) -> bool:
        """True if its pod has ended, or was refused: its admission is over, and no source has it."""
        if asked <= one.at or self._is_admitted_now(one):
            return False
        if one.holder.named and str(one.holder) not in answer.pods:
            return True
        soon = self._timeouts.pod_resources_after_allocate
        return one.admission == self._admission.identity or asked >= one.at + soon

    def _is_started(self) -> bool:
        """True if the kubelet has begun to start the pod that has what was allocated."""
        return self._admission.uid in (self._file.started or ())

    def _identify_by_checkpoint(self) -> None:
        """The checkpoint may tell the uid of the pod under admission: so far it stood for itself."""
        uids = {uid for uid, _ in self._entries(self._admission.allocated)}
        if len(uids) != 1 or self._admission.uid:
            return
        self._admission = self._admission._replace(uid=min(uids))
        for each, one in self._pending.items():
            if one.admission == self._admission.identity and not one.holder.named:
                identity = of_uid(self._admission.uid)
                self._pending[each] = one._replace(holder=replace(one.holder, identity=identity))

    def _adopt_name(self, pods: Pods) -> None:
        """Give what is pending the name of its pod as soon as PodResources shows that with another device."""
        owners = owners_of(pods, self._admission.allocated)
        for each, one in self._pending.items() if len(owners) == 1 else ():
            if one.admission == self._admission.identity:
                self._pending[each] = one._replace(holder=_named(one.holder, owners[0]))

    def _entries(self, wanted: Collection[Possession]) -> frozenset[_EntryKey]:
        """The entries of the checkpoint with one of these, but for those of pods before."""
        if not wanted:
            return frozenset()
        entries = ((each.uid, (each.resource, each.device_id)) for each in self._file.entries)
        return frozenset(each for each in entries if each[1] in wanted) - self._former

    @property
    def _marks(self) -> Reservations:
        return self._snapshots.now.reservations

    def _publish(self) -> None:
        allocated = self._admission.allocated if self._under_way else ()
        pending = {each: one.holder for each, one in self._pending.items()}
        self._mark(replace(self._marks, pending=pending, admitting=frozenset(each for _, each in allocated)))

    def _mark(self, marks: Reservations) -> None:
        behind = frozenset[str]().union(*(one.functions for one in self._behind.values()))
        self._snapshots.publish(replace(self._snapshots.now, reservations=marks, behind=behind))


def _named(holder: Holder, pod: str) -> Holder:
    if not pod:
        return holder
    namespace, name = pod.split("/", 1)
    return replace(holder, namespace=namespace, pod=name, identity="")


def _is_known(possession: Possession, allocations: Allocations) -> bool:
    """True if the kubelet names a pod with it, and its checkpoint has the answer to its Allocate."""
    return allocations.holder_of(*possession) is not None and bool(allocations.answer(*possession))
