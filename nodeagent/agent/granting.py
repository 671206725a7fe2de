# SPDX-License-Identifier: Apache-2.0
"""Handing out: recheck, decide, CDI, grant, reserve. The one way by which a container gets devices.

Knows no protocol of the kubelet: whoever speaks one asks here, and sends what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import ReservationBook
from nodeagent.base.latest import Latest
from nodeagent.config import Settings
from nodeagent.model.allocation import Grant, Holder, unnamed
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.policy.offer import grants


class Granting:
    """Answers for all resources of the node."""

    def __init__(
        self,
        observer: Observer,
        offering: Offering,
        cdi: CdiFiles,
        reservations: ReservationBook,
        settings: Latest[Settings],
    ) -> None:
        self._observer = observer
        self._offering = offering
        self._cdi = cdi
        self._reservations = reservations
        self._settings = settings

    def resource(self, name: ResourceName) -> Resource:
        """The resource as it was decided last; one without devices if nobody offers it any more."""
        return self._offering.decision.resources.get(name) or Resource(name, Kind.PCI)

    async def grant(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """What one container gets for these devices, which are its pod's from now on.

        :raises Refused: if one of them cannot be given, with the Reason.
        :raises KernelRefused: if what has changed about them could not be read.
        """
        grants.check_given(self.resource(name), device_ids)
        behind = grants.behind(self.resource(name), device_ids, self._offering.decision)
        await self._observer.recheck(behind)
        self._offering.one_turn()
        if self.resource(name).cdi:
            await self._cdi.ensure(name, device_ids)
        resource = self.resource(name)
        grant = grants.grant(resource, device_ids, self._offering.decision)
        settled = anyio.current_time() + self._settings.get().timing.settle
        self._reservations.give({each: _holder(resource, each) for each in device_ids}, settled)
        return grant

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred ids of those that are available. :raises Refused: if the request cannot be met."""
        from nodeagent.policy.offer import prefer  # here: not each kubelet asks

        host = self._offering.decision.snapshot.host
        topologies = {device_id: prefer.topology(device_id, host) for device_id in (*available, *must)}
        return prefer.choose(available, must, size, topologies)


def _holder(resource: Resource, device_id: str) -> Holder:
    device = resource.device(device_id)
    return unnamed(resource.name, None if device is None else device.numa)
