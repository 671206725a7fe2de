# SPDX-License-Identifier: Apache-2.0
"""Who asks, and whether the one that asks may have these: nobody else has them, nor a part of their groups.

A request names no pod. The kubelet is asked inside each of them, and its file where the answer does not show
it. What is refused for what others have is marked, so that the list says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import anyio

from nodeagent.agent.admission import Admission
from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import ReservationBook
from nodeagent.base.errors import Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.resource import Resource
from nodeagent.policy.offer import grants


class Asking:
    """Tells for each request; keeps nothing itself."""

    def __init__(
        self, offering: Offering, reservations: ReservationBook, inquiry: Inquiry, timeouts: Timeouts
    ) -> None:
        self._offering = offering
        self._reservations = reservations
        self._inquiry = inquiry
        self._timeouts = timeouts

    async def again(self) -> bool:
        """True if the pod that is being admitted asks once more, and has got something.

        Who has ended is known by then as well, if the kubelet answers: no event tells of it.
        """
        now = self._offering.decision.snapshot
        if not now.reservations.settling and (self._inquiry.error or not now.allocations.holders):
            return False
        depends = bool(now.reservations.settling) and not self._inquiry.error
        return bool((await self._inquiry.who_asks(self._limit(depends))).given)

    def _limit(self, depends: bool) -> float:
        """Seconds for the kubelet to answer; ``depends``: another pod may have a part of the groups."""
        timeouts = self._timeouts
        return timeouts.pod_resources_in_allocate if depends else timeouts.pod_resources_in_allocate_foreign

    async def who(self, resource: Resource, device_ids: Sequence[str]) -> Admission:
        """Whose request it is. Another plugin may have given something of the group to the pod before.

        :raises Refused: if the kubelet names nobody, and its file says that one of these is held.
        """
        decision = self._offering.decision
        settling = decision.snapshot.reservations.settling  # of a pod that may go on with this one
        depends = bool(settling) and not self._inquiry.error
        depends = depends or grants.contended(resource, device_ids, decision)
        timeouts = self._timeouts
        admission = await self._inquiry.who_asks(self._limit(depends))
        behind = (*device_ids, *grants.behind(resource, device_ids, self._offering.decision))
        given = self._reservations.given
        for others, wait in ((given.beside, 0.0), (given.missed, timeouts.checkpoint_next_write)):
            if admission.pods is None or others(admission).keys().isdisjoint(behind):
                break
            await anyio.sleep(wait)
            await self._inquiry.written_anew(timeouts.checkpoint_write)  # it has plain init containers
            admission = await self._inquiry.who_asks(timeouts.pod_resources_in_allocate)
        doubted = device_ids if admission.pods is None else self._only_entered(resource, device_ids)
        if doubted:
            await self._check_entered(resource, doubted, settling)
        return admission

    def _only_entered(self, resource: Resource, device_ids: Sequence[str]) -> Sequence[str]:
        """Those that by the kubelet's file alone somebody has, who got them of another daemon.

        Nobody shows what only a plain init container has, and this daemon has no record of it.
        """
        hints = self._inquiry.known.hinted - self._reservations.admissions.ours.keys()
        if resource.direct:  # by another name, too: of others the list knows that
            hinted = {each for _, each in grants.own(resource, hints, self._offering.decision)}
            return [each for each in device_ids if each in hinted]
        return [each for each in device_ids if (resource.name, each) in hints]

    async def _check_entered(
        self, resource: Resource, device_ids: Sequence[str], settling: Collection[str]
    ) -> None:
        """Nobody is named: of what somebody has had the kubelet's file has to say that it is free.

        Where the directories of pods cannot be seen, it may have it for what was ``settling`` when this one
        asked: a pod may ask again for what its init container had.
        """
        snapshot = self._offering.one_turn().snapshot
        known = {**snapshot.allocations.holders, **snapshot.reservations.given}
        if known.keys().isdisjoint(device_ids):
            return
        file = await self._inquiry.written_anew(self._timeouts.checkpoint_write)
        entered = {each for _, each in grants.own(resource, file.settled, self._offering.decision)}
        if file.admitted is None:
            entered.difference_update(settling)
        held = {device_id: holder for device_id, holder in known.items() if device_id in entered}
        try:
            grants.check_free(resource, device_ids, {}, frozenset(), held)
        except Refused:
            self._reservations.refuse(device_ids)
            raise
        self._reservations.forgotten.gone(known.keys() & set(device_ids), anyio.current_time())

    def check_free(
        self, resource: Resource, device_ids: Sequence[str], admission: Admission, began: float
    ) -> None:
        """Nobody has them, and nobody was given them since: containers that start ask at any time.

        ``began`` is when the request came, in seconds of the event loop.

        :raises Refused: with whoever has one of them.
        """
        given = self._reservations.given
        others = given.since(began, self._offering.decision.snapshot.allocations.holders)
        if admission.pods is not None:
            others |= given.to_others(admission)
        pods = admission.pods or {}
        if resource.direct:
            decision = self._offering.decision
            pods = {name: grants.own(resource, shown, decision) for name, shown in pods.items()}
        try:
            grants.check_free(resource, device_ids, pods, admission.askers, others)
        except Refused:
            self._reservations.refuse(())
            raise

    def check_alone(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        """Nobody else has a part of their groups. :raises Refused: with whoever has one."""
        try:
            grants.check_alone(resource, device_ids, self._offering.decision, admission.owned(device_ids))
        except Refused:
            self._reservations.refuse(device_ids)
            raise
