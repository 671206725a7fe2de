# SPDX-License-Identifier: Apache-2.0
"""Allocate and GetPreferredAllocation, from the request to the answer.

An Allocate names no pod. PodResources tells which pod asks, and is asked only where it matters: where a pod
has a part of the groups by our own table, or another resource offers a part of them. The host is read again
in each Allocate. A device that a container of a former pod still has open is waited for. The last look and
the mark of what is allocated are one step of the event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import Admission, Pending, ReservationBook
from nodeagent.agent.tally import AllocateTally
from nodeagent.agent.usage import Usage
from nodeagent.base import threads
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Grant, Holder, possessions, unnamed
from nodeagent.model.host import Kind, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Isolation, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import allocating, grants, prefer


class Host(Protocol):
    """Reads the host for the Snapshot."""

    async def recheck(self, ids: Sequence[str], functions: Sequence[PciAddress] = ()) -> None:
        """Read these devices again, their groups, and a word of these functions' configuration space.

        :raises KernelRefused: if what has changed could not be read.
        """
        ...


class CdiFiles(Protocol):
    """Writes the CDI files of devices that are allocated by CDI names."""

    async def ensure(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """:raises Refused: if these devices have no file."""
        ...


class UsbNodes(Protocol):
    """Makes the nodes of USB devices QEMU's."""

    async def ensure(self, name: ResourceName, device_ids: Sequence[str], owned: Collection[str]) -> None:
        """The pod that asks has the ``owned`` ones already.

        :raises Refused: if that cannot be done in time.
        """
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
        host: Host,
        offering: Offering,
        usage: Usage,
        reservations: ReservationBook,
        cdi: CdiFiles,
        usb: Latest[UsbNodes | None],
        timeouts: Timeouts,
    ) -> None:
        """``usb``: None until the code for USB devices is loaded."""
        self.tally = AllocateTally()
        self._root = root
        self._host = host
        self._offering = offering
        self._usage = usage
        self._reservations = reservations
        self._cdi = cdi
        self._usb = usb
        self._timeouts = timeouts
        self._open_files = threads.OneByOne()

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
            deadline = anyio.current_time() + self._timeouts.former_holder_close
            grants.check_listed(self.resource(name), device_ids)
            shared = allocating.is_shared(
                self.resource(name), self._offering.decision
            )  # several pods may have one
            admission = Admission() if shared else await self._identify(name, device_ids)
            functions = allocating.find_vfio_functions(device_ids, self._offering.decision)
            await self._reread(name, device_ids, functions)
            if not shared:
                self._check_unused(self.resource(name), device_ids, admission)
                await self._wait_until_closed(name, device_ids, admission, deadline)
                grants.check_healthy(self.resource(name), device_ids)
                await self._ensure_nodes(self.resource(name), device_ids, admission)
            return self._answer(name, device_ids, admission, shared=shared)

    async def _identify(self, name: ResourceName, device_ids: Sequence[str]) -> Admission:
        """The admission that asks; of no pod that is known, where that does not matter.

        :raises Refused: if another pod has a part of the devices' groups.
        """
        if not allocating.is_contended(self.decide(name), device_ids, self._offering.decision):
            return Admission()
        admission = self._reservations.identify(await self._usage.request_in_allocate())
        self._check_unused(self.decide(name), device_ids, admission)
        return admission

    def _check_unused(self, resource: Resource, device_ids: Sequence[str], admission: Admission) -> None:
        """No other pod has a part of these; an id with which no pod is listed is its own pod's.

        A container may get again what a plain init container of its pod had; the kubelet allocates no id to
        two live pods.

        :raises Refused: with the pod that has a part.
        """
        decision = self._offering.decision
        listed = possessions(admission.pods or {})
        if admission.pods is None:
            held = decision.snapshot.allocations.held()
            listed = frozenset((holder.resource, each) for each, holder in held if holder.named)
        repeated = frozenset(each for each in device_ids if (resource.name, each) not in listed)
        allocating.check_unused(resource, device_ids, admission.owned, decision, repeated)

    async def _reread(
        self, name: ResourceName, device_ids: Sequence[str], functions: Sequence[PciAddress] = ()
    ) -> None:
        """Read again all that decides about these devices, and decide.

        A device may be in another group by now: then that group is read next.

        :raises KernelRefused: if what has changed could not be read.
        """
        known: frozenset[str] | None = None
        sources = allocating.find_sources(self.resource(name), device_ids, self._offering.decision)
        while known is None or not known.issuperset(sources):
            await self._host.recheck(sources, functions)
            known, functions = frozenset(sources), ()
            sources = allocating.find_sources(self.decide(name), device_ids, self._offering.decision)

    async def _wait_until_closed(
        self, name: ResourceName, device_ids: Sequence[str], admission: Admission, deadline: float
    ) -> None:
        """Wait until nothing has the devices open, nor the rest of their groups.

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
        """One of the devices, or of the rest of their groups, that is open; None if there is none.

        The kernel's count tells for functions. One that was never lower may be a former driver's: it counts
        for a moment after the release. Mdevs, vGPUs and nodes of groups have none: the processes that have
        the ``suspected`` ones open are looked for, which a pod had until a moment ago.
        """
        resource, decision = self.resource(name), self._offering.decision
        members = allocating.find_unlisted(resource, device_ids, decision, admission.pods or {})
        now = anyio.current_time()
        for each in members:
            if not isinstance(each, PciFunction):
                continue
            unclear = groups.opened(each) is None and self._usage.released.has(each, now)
            if unclear or groups.counted_open(each, unread=True):
                return _Opened(each.id, each.sight.process if each.sight is not None else None)
        alone = resource.isolation is Isolation.NONE
        wanted = [each for each in members if suspected & {each.id, str(each.group)}]
        by_group = frozenset(each.id for each in wanted if not groups.uncertain(each))
        ids = frozenset(each.id for each in wanted) - (by_group if alone else frozenset())
        if not ids:
            return None
        limit = self._timeouts.open_file_scan
        seen = await self._open_files.call(limit, in_use.find_openers, self._root, ids, by_group)
        return None if seen is None else next((_Opened(*each) for each in seen.openers.items()), None)

    async def _ensure_nodes(
        self, resource: Resource, device_ids: Sequence[str], admission: Admission
    ) -> None:
        """The CDI file and the nodes of USB devices are as QEMU needs them.

        :raises Refused: if that cannot be done in time.
        """
        if resource.cdi:
            await self._cdi.ensure(resource.name, device_ids)
        if resource.kind is not Kind.USB:
            return
        with anyio.move_on_after(self._timeouts.usb_feature_load):
            while self._usb.get() is None:
                await self._usb.newer(self._usb.version)
        if (nodes := self._usb.get()) is None:
            raise Refused(f"{resource.name}: USB devices cannot be allocated yet", "try the pod again")
        owned = [each for each in device_ids if (resource.name, each) in admission.owned]
        await nodes.ensure(resource.name, device_ids, owned)

    def _answer(
        self, name: ResourceName, device_ids: Sequence[str], admission: Admission, *, shared: bool
    ) -> Grant:
        """Decide, and mark the ids as allocated, with no await in between."""
        resource, decision = self.decide(name), self._offering.decision
        grant = grants.grant(resource, device_ids, decision)
        listed = possessions(admission.pods or {})
        if not shared:
            self._check_unused(resource, device_ids, admission)
            allocating.check_usb_nodes(resource, device_ids, decision)
        functions = allocating.find_host_functions(resource, device_ids, decision)
        allocated = {
            (name, each): Pending(
                {} if shared or (name, each) in listed else _pending_holder(resource, each), functions
            )
            for each in device_ids
        }
        self._reservations.allocate(admission, allocated)
        return grant

    # GetPreferredAllocation

    async def prefer(
        self, name: ResourceName, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """The preferred ids of those that are available; PodResources is asked only where it matters.

        :raises Refused: if the request cannot be met.
        """
        same_pod, decision = False, self._offering.one_turn()
        if self._reservations.is_admitting or allocating.is_part_in_use(
            self.resource(name), available, decision
        ):
            admission = self._reservations.identify(await self._usage.request_in_allocate())
            same_pod = bool(admission.allocated)
            decision = self._offering.one_turn()
        ids = dict.fromkeys((*available, *must))
        released = self._usage.released.at(anyio.current_time())
        places = prefer.find_places(ids, self.resource(name), decision, released, same_pod=same_pod)
        return prefer.choose(available, must, size, places)


def _pending_holder(resource: Resource, device_id: str) -> Mapping[str, Holder]:
    """A pod that is not known yet as the holder of the device."""
    device = resource.device(device_id)
    return {device_id: unnamed(resource.name, None if device is None else device.numa)}
