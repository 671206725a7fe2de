# SPDX-License-Identifier: Apache-2.0
"""Handing out: see who asks, recheck, decide, see that it answers, CDI, grant, reserve.

The one way to a container's devices. Knows no protocol of the kubelet: whoever speaks one asks here, and
sends what comes back. Whether the pod that asks may take more of a group is known from the kubelet's
PodResources, asked inside each request, and never from a clock: what another plugin gave to the pod before is
told nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import anyio

from nodeagent.agent.admission import Admission
from nodeagent.agent.asking import Asking
from nodeagent.agent.closing import Closing
from nodeagent.agent.offering import Offering
from nodeagent.agent.provisions import Provisions
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.tally import AllocateTally
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.model.allocation import Grant, possessions
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import grants, prefer
from nodeagent.policy.offer.topology import topologies


class Granting:
    """Answers for all resources of the node."""

    def __init__(
        self,
        offering: Offering,
        reservations: ReservationBook,
        asking: Asking,
        closing: Closing,
        provisions: Provisions,
        settings: Latest[Settings],
        timeouts: Timeouts,
    ) -> None:
        self._offering = offering
        self._reservations = reservations
        self._asking = asking
        self._closing = closing
        self._provisions = provisions
        self._settings = settings
        self._timeouts = timeouts
        self.tally = AllocateTally()

    @property
    def snapshot(self) -> Snapshot:
        """All that is known now, what was given a moment ago among it."""
        return self._offering.newest

    def resource(self, name: ResourceName) -> Resource:
        """The resource as it was decided last; one without devices if nobody offers it any more."""
        return self._offering.decision.resources.get(name) or Resource(name, Kind.PCI)

    def decided(self, name: ResourceName) -> Resource:
        """The resource, decided from all that is known now."""
        self._offering.one_turn()
        return self.resource(name)

    async def grant(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """What one container gets for these devices, which are its pod's from now on.

        :raises Refused: if one of them cannot be given, with the Reason.
        :raises KernelRefused: if what has changed about them could not be read.
        """
        with self.tally.counted(name):
            return await self._granted(name, device_ids)

    async def _granted(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        began = anyio.current_time()
        grants.check_listed(self.resource(name), device_ids)
        if grants.shared(self.resource(name), self._offering.decision):
            return await self._share(name, device_ids)
        admission = await self._asking.who(self.resource(name), device_ids)
        self._offering.one_turn()
        self._asking.check_free(self.resource(name), device_ids, admission, began)
        deadline = began + self._timeouts.former_holder_close
        await self._closing.closed(self.resource(name), device_ids, admission.pods or {}, deadline)
        if self.resource(name).kind is Kind.CDI:
            await self._closing.described(self.resource(name), device_ids)
        self._admit(admission)
        grants.check_given(self.resource(name), device_ids)
        await self._closing.answering(device_ids)
        had = admission.given | possessions(admission.pods or {})
        own = [each for each in device_ids if (name, each) in had]
        await self._provisions.ensure(self.resource(name), device_ids, own)
        self._admit(admission)
        resource = self.resource(name)
        grants.check_given(resource, device_ids)
        self._asking.check_free(resource, device_ids, admission, began)
        self._asking.check_alone(resource, device_ids, admission)
        grants.check_lent(resource, device_ids, self._offering.decision)
        grant = grants.grant(resource, device_ids, self._offering.decision)
        self._give_behind(resource, device_ids)
        self._reserve(resource, device_ids, admission)
        return grant

    async def _share(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """Shares of nodes: nobody has to let go of them first, and it does not matter who asks."""
        await self._closing.recheck(self.resource(name), device_ids)
        grant = grants.grant(self.resource(name), device_ids, self._offering.decision)
        self._give_behind(self.resource(name), device_ids)
        return grant

    async def prefer(
        self, name: ResourceName, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The preferred ids of those that are available. :raises Refused: if the request cannot be met."""
        same = await self._asking.again()
        snapshot = self._offering.one_turn().snapshot
        ids = dict.fromkeys((*available, *must))
        resources = self._offering.decision.resources
        lately = self._reservations.forgotten.lately(anyio.current_time())
        places = topologies(ids, self.resource(name), resources, snapshot, lately, same=same)
        return prefer.choose(available, must, size, places)

    def _admit(self, admission: Admission) -> None:
        """Decide as it is while this pod is being admitted."""
        self._reservations.admit(admission, self._settled)
        self._offering.one_turn()

    def _give_behind(self, resource: Resource, device_ids: Sequence[str]) -> None:
        """No driver is changed behind what is given. :raises Refused: if one is being changed."""
        given = ((resource.name, each) for each in device_ids)
        functions = grants.functions_behind(resource, device_ids, self._offering.decision)
        self._reservations.behind.give(given, functions)

    def _reserve(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        """The ids are the pod's from now on, but for those that the kubelet names: they are their pod's."""
        shown = possessions(admission.pods or {})
        fresh = [each for each in device_ids if (resource.name, each) not in shown]
        holders = {each: admission.holder(resource.name, _numa(resource, each)) for each in fresh}
        for each, holder in tuple(holders.items()):
            for other in grants.brought_by(each, self._offering.decision):
                holders[other] = replace(holder, brought=each)
        self._reservations.give(holders, anyio.current_time(), self._settled)

    @property
    def _settled(self) -> float:
        """When what is given now has settled."""
        return anyio.current_time() + self._settings.get().timing.settle


def _numa(resource: Resource, device_id: str) -> int | None:
    device = resource.device(device_id)
    return None if device is None else device.numa
