# SPDX-License-Identifier: Apache-2.0
"""Reserves ids: each id is either allocated to a pod or withdrawn for a change of the host, never both.

``agent.allocate`` and ``agent.changing`` check and mark ids here without an await in between, so one of them
gets the id and the other one finds it marked. An allocated id is pending until the kubelet's checkpoint or
PodResources lists it. If neither the checkpoint nor PodResources lists a pending id in time, the kubelet has
refused the pod.

The pod under admission may be allocated other resources of the same IOMMU groups. The admission of a pod is
over when PodResources shows another new pod, when the kubelet no longer has any device of the pod, or
``foreign_allocate`` seconds after the last Allocate for the pod. If the checkpoint has all devices of the
pod, its container waits for no other plugin, so ``admission_settle`` seconds are enough. ``agent.usage``
passes the kubelet's answers. Times are seconds of the event loop's clock.
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
from nodeagent.policy.offer.allocating import find_owners, is_other_pod


class Admission(NamedTuple):
    """The Allocates of one pod. ``pods``: the answer of PodResources at the last Allocate, if queried."""

    pods: Pods | None = None
    allocated: frozenset[ResourceDevice] = frozenset()

    @property
    def owned(self) -> frozenset[ResourceDevice]:
        """All devices that the pod under admission certainly has."""
        pods = self.pods or {}
        return self.allocated.union(*(pods[each] for each in find_owners(pods, self.allocated)))


class PodsAnswer(NamedTuple):
    """An answer of PodResources: pods with their devices. ``requested_at``: the time at which PodResources
    was queried. ``in_allocate``: PodResources was queried during an Allocate, so the kubelet had read all
    earlier responses.
    """

    pods: Pods
    requested_at: float
    in_allocate: bool = False


class Pending(NamedTuple):
    """One allocated id: its pod (None if PodResources lists it), and the functions of its device nodes."""

    holder: Holder | None
    functions: frozenset[str] = frozenset()
    at: float = 0.0


class ReservationBook:
    """Publishes the reserved ids: ``reservations`` and ``recently_allocated`` of the Snapshot."""

    def __init__(self, snapshots: Snapshots, timeouts: Timeouts) -> None:
        self.began: Latest[None] = Latest(None)  # touched at each Allocate
        self._snapshots = snapshots
        self._timeouts = timeouts
        self._pending: dict[ResourceDevice, Pending] = {}
        self._check_at: float | None = None  # when the kubelet must have the last allocated ids
        self._withdrawn: frozenset[str] = frozenset()  # ids that are about to be removed
        self._moving: frozenset[str] = frozenset()  # functions that are about to be bound to another driver
        self._admission: Admission | None = None  # the current one
        self._last = 0.0  # when its last Allocate was answered
        self._entered = False  # the checkpoint has all devices of the admission

    # Allocated or withdrawn

    def allocate(self, admission: Admission, allocated: Mapping[ResourceDevice, Pending]) -> None:
        """Mark all of the ids as allocated, or none of them.

        :raises AllocationRefused: if an id, or a function behind its device nodes, is withdrawn.
        """
        for (_, device_id), one in allocated.items():
            if one.holder is not None and device_id in self._withdrawn:
                text = f"{device_id} is being removed, or bound to another driver"
                raise AllocationRefused(text, "the list is sent to the kubelet again; try the pod again")
            for each in one.functions & self._moving:
                raise AllocationRefused(
                    f"its PCI function {each} is being bound to another driver", "try the pod again"
                )
        now = anyio.current_time()
        self._pending |= {each: one._replace(at=now) for each, one in allocated.items()}
        self._check_at = now + self._timeouts.pod_resources_after_allocate
        if admission.pods is not None:
            isolated = {each for each, one in allocated.items() if one.holder is not None}
            self._admission = admission._replace(allocated=admission.allocated | isolated)
            self._last, self._entered = now, False
        self._publish()
        self.began.touch()

    def withdraw(self, ids: Collection[str], moving: Collection[str]) -> bool:
        """Mark ``ids`` as about to be removed, and ``moving`` functions as about to be bound to another
        driver.

        Return False and mark nothing if one of these ids was allocated a moment ago.
        """
        now = self._snapshots.now
        pending = now.reservations.pending.keys()
        if not (pending.isdisjoint(ids) and now.recently_allocated.isdisjoint(moving)):
            return False
        self._withdrawn, self._moving = self._withdrawn.union(ids), self._moving.union(moving)
        self._publish()
        return True

    def restore(self, ids: Collection[str], moving: Collection[str]) -> None:
        """Remove the marks of these ids after the change has ended and the Host shows the result."""
        self._withdrawn, self._moving = self._withdrawn.difference(ids), self._moving.difference(moving)
        self._publish()

    # The pod under admission

    @property
    def is_admitting(self) -> bool:
        """True if a pod under admission has allocated devices."""
        return self._admission is not None

    def identify(self, pods: Pods | None) -> Admission:
        """Return the admission of the pod that requests now, from the pods that PodResources lists now.

        ``pods`` is None if the kubelet did not answer; then the requesting pod counts as a new one.
        """
        known = self._admission
        if known is None or pods is None or self._is_other(pods):
            return Admission(pods)
        return known._replace(pods=pods)

    def _is_other(self, pods: Pods) -> bool:
        """True if these pods and devices show that the admission is over."""
        known = self._admission or Admission()
        before = known.pods or {}
        if not pods.keys() >= set(find_owners(before, known.allocated)):
            return True
        return is_other_pod(before, pods, known.allocated)

    def end_admission(self) -> None:
        """End the admission: a restarted kubelet does not continue admissions."""
        self._admission = None
        self._publish()

    # Answers of the kubelet

    def find_missing(self, file: Checkpoint, answer: PodsAnswer) -> frozenset[ResourceDevice]:
        """The pending ids that the kubelet should have by now, but that neither PodResources nor the
        checkpoint has.

        The kubelet stores an id as soon as it has read the response, and before it sends another request.
        """
        known = listed_devices(answer.pods) | file.listed_devices
        delay = 0.0 if answer.in_allocate else self._timeouts.pod_resources_after_allocate
        return frozenset(
            each
            for each, one in self._pending.items()
            if each not in known and answer.requested_at >= one.at + delay
        )

    def update(self, file: Checkpoint, answer: PodsAnswer | None = None) -> None:
        """Update the pending ids from the kubelet's checkpoint, and from PodResources if it has answered."""
        now, written = anyio.current_time(), file.listed_devices
        shown = frozenset[ResourceDevice]() if answer is None else listed_devices(answer.pods)
        missing = frozenset[ResourceDevice]() if answer is None else self.find_missing(file, answer)
        pending: dict[ResourceDevice, Pending] = {}
        for each, one in self._pending.items():
            holder = None if each in shown or each in missing else one.holder
            if each not in written and (holder or (one.functions and now < self._latest_entry(one))):
                pending[each] = one._replace(holder=holder)
        self._pending = pending
        if answer is not None and self._check_at is not None and answer.requested_at >= self._check_at:
            self._check_at = None
        if self._admission is not None:
            self._entered = self._admission.allocated <= written
            remaining = self._admission.allocated & (written | shown | pending.keys())
            self._update_admission(self._admission, answer, is_known=bool(remaining))
        self._publish()

    def _latest_entry(self, one: Pending) -> float:
        """The time until which the checkpoint may lack an id: its container may wait for other plugins."""
        return one.at + self._timeouts.foreign_allocate

    def _update_admission(self, admission: Admission, answer: PodsAnswer | None, *, is_known: bool) -> None:
        """``is_known``: a device of the pod under admission is pending, or the kubelet lists it."""
        newer = answer if answer is not None and answer.requested_at > self._last else None
        over = newer is not None and (self._is_other(newer.pods) or not is_known)
        if over or anyio.current_time() >= self._latest_end:
            self._admission = None
        elif newer is not None:
            self._admission = admission._replace(pods=newer.pods)

    @property
    def _latest_end(self) -> float:
        """The latest time at which the admission ends."""
        timeouts = self._timeouts
        return self._last + (timeouts.admission_settle if self._entered else timeouts.foreign_allocate)

    @property
    def due(self) -> float | None:
        """The time of the next query of the kubelet because of allocated ids; None if no id is pending."""
        soon = self._timeouts.pod_resources_after_allocate
        times = [one.at + soon if one.holder else self._latest_entry(one) for one in self._pending.values()]
        if self._check_at is not None:
            times.append(self._check_at)
        if self._admission is not None:
            times.append(self._latest_end)
        return min(times, default=None)

    # The Snapshot

    def _publish(self) -> None:
        admission = self._admission or Admission()
        reservations = Reservations(
            admitting=frozenset(device_id for _, device_id in admission.allocated),
            withdrawn=self._withdrawn,
            pending={each: one.holder for (_, each), one in self._pending.items() if one.holder is not None},
        )
        functions = frozenset[str]().union(*(one.functions for one in self._pending.values()))
        self._snapshots.publish(
            replace(self._snapshots.now, reservations=reservations, recently_allocated=functions)
        )
