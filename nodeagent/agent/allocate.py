# SPDX-License-Identifier: Apache-2.0
"""Allocate and GetPreferredAllocation, from the request to the answer.

An Allocate names no pod. PodResources tells which pod asks, and is asked only where it matters: where a pod
has a part of the groups by our own table, or another resource offers a part of them. The host is read again
in each Allocate. A device that a container of a former pod still has open is waited for. The last look and
the mark of what is allocated are one step of the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.provisions import Provisions
from nodeagent.agent.reservations import Admission, ReservationBook
from nodeagent.agent.tally import AllocateTally
from nodeagent.agent.usage import Usage
from nodeagent.base import threads
from nodeagent.base.errors import Refused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import pci
from nodeagent.kernel.wakes import Wakes
from nodeagent.model.allocation import Grant, Holder, possessions
from nodeagent.model.host import Kind, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Isolation, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import grants, prefer, releases


class Host(Protocol):
    """Reads the host for the Snapshot."""

    async def recheck(self, ids: Sequence[str]) -> None:
        """Read these devices again, and their groups.

        :raises KernelRefused: if what has changed could not be read.
        """
        ...

    async def rescan(self, keys: frozenset[str]) -> None:
        """Scan what the keys name, and wait for it, but not long."""
        ...


class _Opened(NamedTuple):
    """A device that is open, and a process that has it open, if that is known."""

    device_id: str
    process: str | None = None


class Allocator:
    """Answers for all resources of the node."""

    def __init__(
        self,
        root: Root,
        wakes: Wakes,
        host: Host,
        offering: Offering,
        usage: Usage,
        reservations: ReservationBook,
        provisions: Provisions,
        timeouts: Timeouts,
    ) -> None:
        self.tally = AllocateTally()
        self._root = root
        self._wakes = wakes
        self._host = host
        self._offering = offering
        self._usage = usage
        self._reservations = reservations
        self._provisions = provisions
        self._timeouts = timeouts
        self._looks = threads.OneByOne()

    @property
    def snapshot(self) -> Snapshot:
        """The newest Snapshot."""
        return self._offering.newest

    def resource(self, name: ResourceName) -> Resource:
        """The resource as it was decided last; one without devices if it is not offered any more."""
        return self._offering.decision.resources.get(name) or Resource(name, Kind.PCI)

    def decide(self, name: ResourceName) -> Resource:
        """The resource, decided from the newest Snapshot."""
        self._offering.one_turn()
        return self.resource(name)

    # Allocate

    async def allocate(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """The answer for one container, whose pod has the devices from now on.

        :raises Refused: if one of them cannot be allocated, with the Reason.
        :raises KernelRefused: if what has changed about them could not be read.
        """
        with self.tally.counted(name):
            return await self._allocate(name, device_ids)

    async def _allocate(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        deadline = anyio.current_time() + self._timeouts.former_holder_close
        grants.check_listed(self.resource(name), device_ids)
        if grants.shared(self.resource(name), self._offering.decision):  # several pods may have one
            await self._reread(name, device_ids)
            return self._answer_shared(name, device_ids)
        admission = await self._identify(name, device_ids)
        self._check_unused(self.decide(name), device_ids, admission)
        await self._reread(name, device_ids)
        await self._wait_until_closed(name, device_ids, admission, deadline)
        grants.check_given(self.resource(name), device_ids)
        await self._check_on_bus(device_ids)
        own = [each for each in device_ids if (name, each) in admission.owned]
        await self._provisions.ensure(self.resource(name), device_ids, own)
        return self._answer(name, device_ids, admission)

    async def _identify(self, name: ResourceName, device_ids: Sequence[str]) -> Admission:
        """The admission that asks; of no pod that is known, where that does not matter."""
        if not grants.contended(self.decide(name), device_ids, self._offering.decision):
            return self._reservations.identify(None)
        answer, asked = await self._usage.request_in_allocate()
        admission = self._reservations.identify(None if answer is None else answer.pods)
        self._reservations.begin(admission, asked)
        return admission

    def _check_unused(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        """No other pod has a part of these. :raises Refused: with the pod that has."""
        decision = self._offering.decision
        admitted = frozenset(
            each
            for each in device_ids
            if self._reservations.is_admitted((resource.name, each))
            or admission.is_of(str(decision.snapshot.allocations.holder_of(resource.name, each)))
        )
        grants.check_unused(resource, device_ids, admission.owned, decision, admitted)

    async def _reread(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """Read again all that decides about these devices, and decide.

        A device may be in another group by now: then what that group has is read next.

        :raises KernelRefused: if what has changed could not be read.
        """
        known: frozenset[str] | None = None
        behind = grants.behind(self.resource(name), device_ids, self._offering.decision)
        while known is None or not known.issuperset(behind):
            await self._host.recheck(behind)
            known = frozenset(behind)
            behind = grants.behind(self.decide(name), device_ids, self._offering.decision)

    async def _wait_until_closed(
        self, name: ResourceName, device_ids: Sequence[str], admission: Admission, deadline: float
    ) -> None:
        """Wait until nothing has the devices open, nor what shares their groups.

        After a force deletion the kubelet allocates a device 2.5 s before the old container ends.

        :raises Refused: if that takes too long.
        """
        released = self._usage.released
        suspected = released.at(anyio.current_time())
        while (opened := await self._find_open(name, device_ids, admission, suspected)) is not None:
            now = anyio.current_time()
            if now >= deadline:
                released.renew(opened.device_id, now)
                by = f": see {opened.process}" if opened.process else ""
                raise Refused(
                    f"{name}: {opened.device_id}: it is open, and no pod of this node has it{by}",
                    "the container of a pod that was deleted by force may still run: look for its process",
                )
            await anyio.sleep(self._timeouts.device_close_poll)
            with anyio.CancelScope(deadline=deadline):
                await self._reread(name, device_ids)
            self._check_unused(self.resource(name), device_ids, admission)

    async def _find_open(
        self, name: ResourceName, device_ids: Sequence[str], admission: Admission, suspected: frozenset[str]
    ) -> _Opened | None:
        """One of the devices, or of what shares their groups, that is open; None if there is none.

        The kernel's count tells for functions. One that was never lower may be a former driver's: it counts
        for a moment after the release. Mdevs, vGPUs and nodes of groups have none: the openers of the
        ``suspected`` ones are looked for, which a pod had until a moment ago.
        """
        resource, decision = self.resource(name), self._offering.decision
        found = releases.unaccounted(resource, device_ids, decision, admission.pods or {})
        members = {each.id: each for each in found}
        now = anyio.current_time()
        for each in members.values():
            if not isinstance(each, PciFunction):
                continue
            unclear = groups.opened(each) is None and self._usage.released.has(each, now)
            if unclear or groups.counted_open(each, unread=True):
                return _Opened(each.id, each.sight.process if each.sight is not None else None)
        alone = resource.isolation is Isolation.NONE
        wanted = [each for each in members.values() if suspected & {each.id, str(each.group)}]
        by_group = frozenset(each.id for each in wanted if not groups.uncertain(each))
        ids = frozenset(each.id for each in wanted) - (by_group if alone else frozenset())
        if not ids:
            return None
        seen = await self._looks.call(self._timeouts.open_file_scan, in_use.look, self._root, ids, by_group)
        openers = {} if seen is None else seen.openers
        return next((_Opened(device_id, processes[-1]) for device_id, processes in openers.items()), None)

    async def _check_on_bus(self, device_ids: Sequence[str]) -> None:
        """Read a word of each function; a verdict on one that does not answer is in the Host then.

        That wakes a device that sleeps. It is opened next anyway.
        """
        functions = grants.given(device_ids, self._offering.decision)
        with anyio.move_on_after(self._timeouts.device_wake):
            for address in await threads.call(_off_the_bus, self._root, functions):
                self._wakes.recovery(address, Recovery.FALLEN)
                await self._host.rescan(frozenset({address}))

    def _answer(self, name: ResourceName, device_ids: Sequence[str], admission: Admission) -> Grant:
        """Decide, and mark what is allocated, with no await in between."""
        resource = self.decide(name)
        decision = self._offering.decision
        grants.check_given(resource, device_ids)
        self._check_unused(resource, device_ids, admission)
        grants.check_lent(resource, device_ids, decision)
        grant = grants.grant(resource, device_ids, decision)
        functions = grants.functions_behind(resource, device_ids, decision)
        listed = possessions(admission.pods or {})
        fresh = [each for each in device_ids if (name, each) not in listed]
        holders = self._holders(resource, fresh, admission)
        self._reservations.allocate(admission, holders, {(name, each): functions for each in device_ids})
        return grant

    def _answer_shared(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """The same for shares of a node, of which it does not matter which one a container has."""
        resource, decision = self.resource(name), self._offering.decision
        grant = grants.grant(resource, device_ids, decision)
        functions = grants.functions_behind(resource, device_ids, decision)
        nobody = self._reservations.identify(None)
        self._reservations.allocate(nobody, {}, {(name, each): functions for each in device_ids})
        return grant

    def _holders(
        self, resource: Resource, device_ids: Sequence[str], admission: Admission
    ) -> Mapping[str, Holder]:
        """The pod as the holder of these devices, and of what else comes with them."""
        holders: dict[str, Holder] = {}
        for each in device_ids:
            device = resource.device(each)
            numa = None if device is None else device.numa
            holders[each] = holder = admission.holder(resource.name, numa)
            for other in grants.brought_by(each, self._offering.decision):
                holders[other] = replace(holder, brought=each)
        return holders

    # GetPreferredAllocation

    async def prefer(
        self, name: ResourceName, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The preferred ids of those that are available; PodResources is asked only where it matters.

        :raises Refused: if the request cannot be met.
        """
        same_pod, decision = False, self._offering.one_turn()
        if self._reservations.is_admitting or grants.is_part_in_use(available, decision):
            answer, _ = await self._usage.request_in_allocate()
            admission = self._reservations.identify(None if answer is None else answer.pods)
            same_pod = bool(admission.allocated)
            decision = self._offering.one_turn()
        ids = dict.fromkeys((*available, *must))
        released = self._usage.released.at(anyio.current_time())
        places = prefer.find_places(ids, self.resource(name), decision, released, same_pod=same_pod)
        return prefer.choose(available, must, size, places)


def _off_the_bus(root: Root, functions: Sequence[PciAddress]) -> Sequence[PciAddress]:
    return [address for address in functions if pci.fallen(root, address)]
