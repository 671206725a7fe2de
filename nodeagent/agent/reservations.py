# SPDX-License-Identifier: Apache-2.0
"""The one owner of the question: may this id be allocated to a pod, or withdrawn for a change? Never both.

``agent.allocate`` and ``agent.changing`` leave their marks here without an await between look and mark, so
one of them is first and the other finds its mark. An allocated id is pending until the kubelet's checkpoint
or PodResources has it, or until both lack it although they should have it by then: its pod was refused.

The pod under admission may be allocated more of its groups, of other resources. Its admission is over when
PodResources shows another new pod, when the kubelet has nothing any more of what the pod was allocated, or
``foreign_allocate`` seconds after its last Allocate; where the checkpoint has all of it, its container waits
for no other plugin, so ``admission_settle`` seconds do. ``agent.usage`` brings what the kubelet shows. Times
are those of the event loop, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

import anyio

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import AllocationRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import Checkpoint
from nodeagent.model.allocation import Holder, Pods, Reservations, ResourceDevice, listed_devices
from nodeagent.policy.offer.allocating import is_other_pod, owners_of


class Admission(NamedTuple):
    """The Allocates of one pod; ``pods`` were named by PodResources at the last one, if it was asked."""

    pods: Pods | None = None
    allocated: frozenset[ResourceDevice] = frozenset()

    @property
    def owned(self) -> frozenset[ResourceDevice]:
        """All that the pod has for certain."""
        pods = self.pods or {}
        return self.allocated.union(*(pods[each] for each in owners_of(pods, self.allocated)))


class PodsAnswer(NamedTuple):
    """The pods that PodResources named, and what they had, when it was asked at the time ``asked``.

    ``in_allocate``: it was asked inside an Allocate, so the kubelet had read all our answers before.
    """

    pods: Pods
    asked: float
    in_allocate: bool = False


class Pending(NamedTuple):
    """One allocated id: the host devices that are in use by it, and the functions behind its nodes."""

    holders: Mapping[str, Holder]
    functions: frozenset[str] = frozenset()
    at: float = 0.0


class ReservationBook:
    """Writes ``reservations`` and ``behind`` of the Snapshot."""

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.began: Latest[None] = Latest(None)  # touched when there is something to wait for
        self._snapshots = snapshots
        self._timeouts = timeouts
        self._pending: dict[ResourceDevice, Pending] = {}
        self._check_at: float | None = None  # when to ask whether the kubelet has what was allocated last
        self._moving: frozenset[str] = frozenset()  # functions that are about to get another driver
        self._admission: Admission | None = None  # the one that is not over
        self._last = 0.0  # when its last Allocate was answered
        self._entered = False  # the checkpoint has all that it was allocated

    # Allocated or withdrawn

    def allocate(self, admission: Admission, allocated: Mapping[ResourceDevice, Pending]) -> None:
        """Mark the ids as allocated: all of them, or none.

        :raises AllocationRefused: if one of them, or a function behind one, is withdrawn.
        """
        for one in allocated.values():
            for each in one.holders.keys() & self._marks.withdrawn:
                what = f"{each} is being removed, or is getting another driver"
                raise AllocationRefused(what, "the kubelet's list is renewed; try the pod again")
            for each in one.functions & self._moving:
                raise AllocationRefused(
                    f"{each}, which is behind it, is getting another driver", "try the pod again"
                )
        now = anyio.current_time()
        self._pending |= {each: one._replace(at=now) for each, one in allocated.items()}
        self._check_at = now + self._timeouts.pod_resources_after_allocate
        if admission.pods is not None:
            isolated = {each for each, one in allocated.items() if one.holders}
            self._admission = admission._replace(allocated=admission.allocated | isolated)
            self._last, self._entered = now, False
        self._publish()
        self.began.touch()

    def withdraw(self, ids: Collection[str], moving: Collection[str]) -> bool:
        """Mark the ids as about to be removed, and ``moving`` as functions about to get another driver.

        False, and no mark, if one of them was allocated a moment ago.
        """
        if not self._marks.pending.keys().isdisjoint(ids) or not self._behind.isdisjoint(moving):
            return False
        self._moving = self._moving.union(moving)
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.union(ids)))
        return True

    def restore(self, ids: Collection[str], moving: Collection[str]) -> None:
        """Nothing is done to these any more, and the Host shows what became of them."""
        self._moving = self._moving.difference(moving)
        self._mark(replace(self._marks, withdrawn=self._marks.withdrawn.difference(ids)))

    # The pod under admission

    @property
    def is_admitting(self) -> bool:
        """True if a pod is under admission that was allocated something."""
        return self._admission is not None

    def identify(self, pods: Pods | None) -> Admission:
        """The admission to which an Allocate belongs at which PodResources names these pods.

        ``pods`` None: there was no answer, so it counts as another pod's.
        """
        known = self._admission
        if known is None or pods is None or self._is_other(pods):
            return Admission(pods)
        return known._replace(pods=pods)

    def _is_other(self, pods: Pods) -> bool:
        """True if these names and devices show that the admission is over."""
        known = self._admission or Admission()
        before = known.pods or {}
        if not pods.keys() >= set(owners_of(before, known.allocated)):
            return True
        return is_other_pod(before, pods, known.allocated)

    def end_admission(self) -> None:
        """A kubelet was started: it admits no pod that the one before was admitting."""
        self._admission = None
        self._publish()

    # What the kubelet shows

    def missing(self, file: Checkpoint, answer: PodsAnswer) -> frozenset[ResourceDevice]:
        """The pending ids that the kubelet must know of by now, and that neither the answer nor the file has.

        The kubelet has an id as soon as it has read our answer, and before it asks for anything else.
        """
        known = listed_devices(answer.pods) | file.listed_devices
        delay = 0.0 if answer.in_allocate else self._timeouts.pod_resources_after_allocate
        return frozenset(
            each
            for each, one in self._pending.items()
            if each not in known and answer.asked >= one.at + delay
        )

    def observe(self, file: Checkpoint, answer: PodsAnswer | None = None) -> None:
        """Take the kubelet's checkpoint, and its answer, if there is one."""
        now, written = anyio.current_time(), file.listed_devices
        shown = frozenset[ResourceDevice]() if answer is None else listed_devices(answer.pods)
        missing = frozenset[ResourceDevice]() if answer is None else self.missing(file, answer)
        pending: dict[ResourceDevice, Pending] = {}
        for each, one in self._pending.items():
            holders = {} if each in shown or each in missing else one.holders
            if each not in written and (holders or (one.functions and now < self._latest_entry(one))):
                pending[each] = one._replace(holders=holders)
        self._pending = pending
        if answer is not None and self._check_at is not None and answer.asked >= self._check_at:
            self._check_at = None
        if self._admission is not None:
            self._entered = self._admission.allocated <= written
            left = self._admission.allocated & (written | shown | pending.keys())
            self._observe_admission(self._admission, answer, is_known=bool(left))
        self._publish()

    def _latest_entry(self, one: Pending) -> float:
        """Until when the checkpoint may lack a node that a container has: its container asks for more."""
        return one.at + self._timeouts.foreign_allocate

    def _observe_admission(self, admission: Admission, answer: PodsAnswer | None, *, is_known: bool) -> None:
        """``is_known``: something of what it was allocated is pending, or the kubelet has it."""
        newer = answer if answer is not None and answer.asked > self._last else None
        over = newer is not None and (self._is_other(newer.pods) or not is_known)
        if over or anyio.current_time() >= self._latest_end:
            self._admission = None
        elif newer is not None:
            self._admission = admission._replace(pods=newer.pods)

    @property
    def _latest_end(self) -> float:
        """When the admission is over at the latest."""
        timeouts = self._timeouts
        return self._last + (timeouts.admission_settle if self._entered else timeouts.foreign_allocate)

    @property
    def due(self) -> float | None:
        """When the kubelet should be asked next because of what was allocated; None if nothing is open."""
        soon = self._timeouts.pod_resources_after_allocate
        times = [one.at + soon if one.holders else self._latest_entry(one) for one in self._pending.values()]
        if self._check_at is not None:
            times.append(self._check_at)
        if self.is_admitting:
            times.append(self._latest_end)
        return min(times, default=None)

    # The Snapshot

    @property
    def _marks(self) -> Reservations:
        return self._snapshots.now.reservations

    @property
    def _behind(self) -> frozenset[str]:
        return frozenset[str]().union(*(one.functions for one in self._pending.values()))

    def _publish(self) -> None:
        admission = self._admission or Admission()
        holders = (one.holders.items() for one in self._pending.values())
        pending = {each: holder for several in holders for each, holder in several}
        admitting = frozenset(each for _, each in admission.allocated)
        self._mark(replace(self._marks, pending=pending, admitting=admitting))

    def _mark(self, marks: Reservations) -> None:
        self._snapshots.publish(
            replace(self._snapshots.now, reservations=marks, recently_allocated=self._behind)
        )
