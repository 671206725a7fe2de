# SPDX-License-Identifier: Apache-2.0
"""Answers the kubelet's Allocate and GetPreferredAllocation requests.

An Allocate request does not name the pod that gets the devices. PodResources shows which pod is being
admitted. PodResources is queried only if a pod already uses a device of the same IOMMU groups
(``agent.usage``), or if another resource offers devices of these groups. Each Allocate reads the devices from
sysfs again, and waits for a device that the container of a former pod still has open. The last check and the
marking of the ids as allocated happen without an await in between.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import anyio

from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.offering import Offering
from nodeagent.agent.reservations import Admission, Pending, ReservationBook
from nodeagent.agent.tally import AllocateTally
from nodeagent.agent.usage import Usage
from nodeagent.base import threads
from nodeagent.base.errors import AllocationRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import open_files
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Grant, ResourceDevice, listed_devices, unnamed
from nodeagent.model.host import Kind, PciFunction
from nodeagent.model.ids import PciAddress, ResourceName
from nodeagent.model.resource import Isolation, Via
from nodeagent.policy import groups
from nodeagent.policy.groups import OpenState
from nodeagent.policy.offer import allocating, grants, prefer
from nodeagent.policy.offer.allocating import Request

if TYPE_CHECKING:  # few nodes load it
    from nodeagent.agent.usb import UsbNodes


Recheck = Callable[[Sequence[str], Sequence[PciAddress]], Awaitable[None]]
"""``Observer.recheck``: reads devices and their groups again, and a configuration word of the functions."""


class _Opened(NamedTuple):
    """An open device, and the process that has it open, if that is known."""

    device_id: str
    process: str | None = None


class Allocator:
    """Answers Allocate and GetPreferredAllocation for all resources of the node."""

    def __init__(
        self,
        root: Root,
        recheck: Recheck,
        offering: Offering,
        usage: Usage,
        reservations: ReservationBook,
        cdi: CdiFiles,
        usb: Latest[UsbNodes | None],
        timeouts: Timeouts,
    ) -> None:
        """``usb`` is None until the code for USB devices is loaded."""
        self.tally = AllocateTally()
        self._root = root
        self._recheck = recheck
        self._offering = offering
        self._usage = usage
        self._reservations = reservations
        self._cdi = cdi
        self._usb = usb
        self._timeouts = timeouts
        self._open_files = threads.OneByOne()

    def _request(self, name: ResourceName, device_ids: Sequence[str]) -> Request:
        """The request for these device ids, with the newest Decision to check it.

        :raises AllocationRefused: if the resource moved to DRA before the kubelet read the shorter list.
        """
        decision = self._offering.one_turn()
        resource = decision.resource(name)
        if resource.via is Via.DRA:
            raise AllocationRefused(f"{name}: DRA advertises its devices now", "try the pod again")
        return Request(resource, device_ids, decision)

    def _renew(self, request: Request) -> Request:
        """The same request, with the newest Decision to check it."""
        return self._request(request.resource.name, request.device_ids)

    # Allocate

    async def allocate(self, name: ResourceName, device_ids: Sequence[str]) -> Grant:
        """Return the response for one container; from then on its pod uses the devices.

        :raises AllocationRefused: if a device cannot be allocated; the error has the Reason.
        :raises KernelRefused: if changed devices could not be read.
        """
        with self.tally.counted(name):
            deadline = anyio.current_time() + self._timeouts.former_holder_close
            request, admission = self._request(name, device_ids), Admission()
            grants.check_listed(request.resource, device_ids)
            if allocating.is_shared(request):
                request = await self._reread(request)
                grant = grants.grant(*request)
                self._mark(request, admission, ())
                return grant
            if allocating.is_contended(request):
                admission = self._reservations.identify(await self._usage.request_in_allocate())
                request = self._renew(request)
                allocating.check_unused(request, admission.owned, admission.pods)
            request = await self._reread(request, allocating.find_vfio_functions(request))
            request = await self._wait_until_closed(request, admission, deadline)
            await self._ensure_nodes(request, admission)
            return self._answer(self._renew(request), admission)

    async def _reread(self, request: Request, functions: Sequence[PciAddress] = ()) -> Request:
        """Read the devices, and all facts that their health depends on, and compute a new Decision.

        If a device has moved to another IOMMU group meanwhile, that group is read too.

        :raises KernelRefused: if changed devices could not be read.
        """
        known: frozenset[str] | None = None
        sources = allocating.find_sources(request)
        while known is None or not known.issuperset(sources):
            await self._recheck(sources, functions)
            known, functions = frozenset(sources), ()
            request = self._renew(request)
            sources = allocating.find_sources(request)
        return request

    async def _wait_until_closed(self, request: Request, admission: Admission, deadline: float) -> Request:
        """Wait until no process has the requested devices, or other devices of their groups, open.

        After a force deletion of a pod, the kubelet allocates the device again 2.5 s before the old container
        ends.

        :raises AllocationRefused: if a device stays open too long, or another pod uses a device of the
        groups.
        """
        released, name = self._usage.released, request.resource.name
        suspected = released.find_recent(anyio.current_time())
        allocating.check_unused(request, admission.owned, admission.pods)
        while (opened := await self._find_open(request, suspected)) is not None:
            now = anyio.current_time()
            if now >= deadline:
                released.restart(opened.device_id, now)
                by = f": see {opened.process}" if opened.process else ""
                raise AllocationRefused(
                    f"{name}: {opened.device_id}: a process has it open, and no pod of this node uses it{by}",
                    "the container of a force-deleted pod may still run: find its process",
                )
            await anyio.sleep(self._timeouts.device_close_poll)
            with anyio.CancelScope(deadline=deadline):
                await self._reread(request)
            request = self._renew(request)
            allocating.check_unused(request, admission.owned, admission.pods)
        return self._renew(request)

    async def _find_open(self, request: Request, suspected: frozenset[str]) -> _Opened | None:
        """Find an open device among the requested ones and the other devices of their groups; None if none is
        open.

        The kernel's open count shows whether a PCI function is open. An open count that has never decreased
        may come from a former driver, so it matters only shortly after a release. Mdevs, vGPUs and the device
        nodes of IOMMU groups have no open count. For ids without an open count that were released a moment
        ago (``suspected``), the open files of all processes are scanned.
        """
        members = allocating.find_closed(request)
        now = anyio.current_time()
        for each in members:
            if not isinstance(each, PciFunction):
                continue
            state = groups.find_open_state(each)
            unclear = state is OpenState.UNKNOWN
            if unclear and (each.enable is None or self._usage.released.is_recent(each, now)):
                state = OpenState.OPEN
            if state is OpenState.OPEN:
                return _Opened(each.id, each.sight.process if each.sight is not None else None)
        wanted = [each for each in members if suspected & {each.id, str(each.group)}]
        by_group = frozenset(each.id for each in wanted if groups.is_counted(each))
        alone = request.resource.isolation is Isolation.NONE
        ids = frozenset(each.id for each in wanted) - (by_group if alone else frozenset())
        if not ids:
            return None
        limit = self._timeouts.open_file_scan
        seen = await self._open_files.call(limit, open_files.find_openers, self._root, ids, by_group)
        return None if seen is None else next((_Opened(*each) for each in seen.openers.items()), None)

    async def _ensure_nodes(self, request: Request, admission: Admission) -> None:
        """Make sure that the CDI file is current, and that QEMU's user owns the USB device nodes.

        :raises AllocationRefused: if a device is not Healthy, or the files cannot be prepared in time.
        """
        resource, device_ids = request.resource, request.device_ids
        grants.check_healthy(resource, device_ids)
        if resource.cdi:
            await self._cdi.ensure(resource.name, device_ids)
        if resource.kind is not Kind.USB:
            return
        with anyio.move_on_after(self._timeouts.usb_feature_load):
            while self._usb.get() is None:
                await self._usb.newer(self._usb.version)
        if (nodes := self._usb.get()) is None:
            raise AllocationRefused(
                f"{resource.name}: USB devices cannot be allocated yet", "try the pod again"
            )
        owned = [each for each in device_ids if (resource.name, each) in admission.owned]
        await nodes.ensure(resource.name, device_ids, owned)

    def _answer(self, request: Request, admission: Admission) -> Grant:
        """Check the request a last time and mark its device ids as allocated, with no await in between."""
        grant = grants.grant(*request)
        allocating.check_unused(request, admission.owned, admission.pods)
        if request.resource.kind is Kind.USB:
            allocating.check_usb_nodes(request)
        listed, name = listed_devices(admission.pods or {}), request.resource.name
        self._mark(request, admission, [each for each in request.device_ids if (name, each) not in listed])
        return grant

    def _mark(self, request: Request, admission: Admission, unlisted: Collection[str]) -> None:
        """Mark the device ids as allocated; PodResources does not list the ``unlisted`` ones yet."""
        resource, functions = request.resource, allocating.find_host_functions(request)
        pending: dict[ResourceDevice, Pending] = {}
        for device_id in request.device_ids:
            device = resource.device(device_id)
            holder = unnamed(resource.name, device.numa if device is not None else None)
            pending[resource.name, device_id] = Pending(holder if device_id in unlisted else None, functions)
        self._reservations.allocate(admission, pending)

    # GetPreferredAllocation

    async def prefer(
        self, name: ResourceName, available: Sequence[str], must: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return the preferred device ids out of the ``available`` ones. PodResources is queried only if the
        choice of devices depends on the pod.

        :raises AllocationRefused: if the request cannot be met.
        """
        same_pod, request = False, self._request(name, tuple(dict.fromkeys((*available, *must))))
        if self._reservations.is_admitting or allocating.is_part_in_use(request):
            admission = self._reservations.identify(await self._usage.request_in_allocate())
            same_pod, request = bool(admission.allocated), self._renew(request)
        released = self._usage.released.find_recent(anyio.current_time())
        places = prefer.find_places(
            request.device_ids, request.resource, request.decision, released, same_pod=same_pod
        )
        return prefer.choose(available, must, size, places)
