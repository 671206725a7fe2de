# SPDX-License-Identifier: Apache-2.0
"""Handing out: recheck, see who asks, decide, CDI, grant, reserve. The one way to a container's devices.

Knows no protocol of the kubelet: whoever speaks one asks here, and sends what comes back. Whether the pod
that asks may take more of a group is known from the kubelet's PodResources, asked inside the request wherever
the answer depends on it, and never from a clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from nodeagent.agent.admission import Admission
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.closing import Closing
from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.tally import AllocateTally
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.config import Settings
from nodeagent.model.allocation import Grant, Possession
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.policy.offer import grants, prefer

PATIENCE = 9.0  # seconds for an old holder to let go; an Allocate may take ten


class Granting:
    """Answers for all resources of the node."""

    def __init__(
        self,
        offering: Offering,
        reservations: ReservationBook,
        inquiry: Inquiry,
        closing: Closing,
        cdi: CdiFiles,
        settings: Latest[Settings],
    ) -> None:
        self._offering = offering
        self._reservations = reservations
        self._inquiry = inquiry
        self._closing = closing
        self._cdi = cdi
        self._settings = settings
        self.tally = AllocateTally()

    def resource(self, name: ResourceName) -> Resource:
        """The resource as it was decided last; one without devices if nobody offers it any more."""
        return self._offering.decision.resources.get(name) or Resource(name, Kind.PCI)

    async def grant(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """What one container gets for these devices, which are its pod's from now on.

        :raises Refused: if one of them cannot be given, with the Reason.
        :raises KernelRefused: if what has changed about them could not be read.
        """
        with self.tally.counted(name):
            return await self._granted(name, device_ids)

    async def _granted(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        deadline = anyio.current_time() + PATIENCE
        grants.check_listed(self.resource(name), device_ids)
        await self._closing.recheck(self.resource(name), device_ids)
        if self.resource(name).kind is Kind.NODE:  # shares have no group, and say nothing of who asks next
            return grants.grant(self.resource(name), device_ids, self._offering.decision)
        admission = await self._asker(name, device_ids)
        self._offering.one_turn()
        self._check_free(name, device_ids, admission)
        await self._closing.closed(self.resource(name), device_ids, admission.pods or {}, deadline)
        self._admit(admission)
        if self.resource(name).cdi:
            grants.check_given(self.resource(name), device_ids)
            await self._cdi.ensure(name, device_ids)
            self._admit(admission)
        resource = self.resource(name)
        grants.check_given(resource, device_ids)
        self._check_alone(resource, device_ids, admission)
        grant = grants.grant(resource, device_ids, self._offering.decision)
        self._reserve(resource, device_ids, admission)
        return grant

    async def prefer(
        self, name: ResourceName, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The preferred ids of those that are available. :raises Refused: if the request cannot be met."""
        same = False
        if self._offering.decision.snapshot.reservations.settling:
            same = bool((await self._inquiry.who_asks()).given)
        snapshot = self._offering.one_turn().snapshot
        ids = dict.fromkeys((*available, *must))
        resource = self.resource(name)
        topologies = {each: prefer.topology(each, resource, snapshot, same=same) for each in ids}
        return prefer.choose(available, must, size, topologies)

    async def _asker(self, name: ResourceName, device_ids: Sequence[str]) -> Admission:
        """Whose request it is, where that matters: the kubelet is asked for nothing else."""
        decision = self._offering.decision
        settling = decision.snapshot.reservations.settling  # of a pod that may go on with this one
        if settling or grants.contended(self.resource(name), device_ids, decision):
            return await self._inquiry.who_asks()
        return self._reservations.admissions.asker(None)

    def _check_free(self, name: ResourceName, device_ids: Sequence[str], admission: Admission) -> None:
        if admission.pods is None:
            return
        others = self._reservations.given.beside(admission)
        try:
            grants.check_free(self.resource(name), device_ids, admission.pods, others)
        except Refused:
            self._reservations.refuse(())
            raise

    def _check_alone(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        try:
            grants.check_alone(resource, device_ids, self._offering.decision, admission.owned(device_ids))
        except Refused:
            self._reservations.refuse(device_ids)
            raise

    def _admit(self, admission: Admission) -> None:
        """Decide as it is while this pod is being admitted."""
        self._reservations.admit(admission, self._settled)
        self._offering.one_turn()

    def _reserve(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        """The ids are the pod's from now on, but for those that the kubelet names: they are their pod's."""
        shown = frozenset[Possession]().union(*(admission.pods or {}).values())
        fresh = [each for each in device_ids if (resource.name, each) not in shown]
        holders = {each: admission.holder(resource.name, _numa(resource, each)) for each in fresh}
        self._reservations.give(holders, anyio.current_time(), self._settled)

    @property
    def _settled(self) -> float:
        """When what is given now has settled."""
        return anyio.current_time() + self._settings.get().timing.settle


def _numa(resource: Resource, device_id: str) -> int | None:
    device = resource.device(device_id)
    return None if device is None else device.numa
