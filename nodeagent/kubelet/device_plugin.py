# SPDX-License-Identifier: Apache-2.0
"""The device plugin service of one resource (deviceplugin v1beta1), and its device list.

``DeviceList`` is the list that the kubelet receives; it is kept when servers and registrations are
replaced. ``DevicePlugin`` serves one registration: it streams the list and passes Allocate calls to
``Answers``, which ``agent.device_plugins`` implements. ``endpoint`` runs the service. This module
implements the protocol, and makes no decisions about devices.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Protocol

import anyio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nodeagent.base.errors import AllocationRefused, KernelRefused, bounded
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.model.allocation import Grant
from nodeagent.model.resource import Device, Reason, ReasonCode

LONGEST_ID = 256  # longest device id in a request, in characters; ids of nodeagent have at most 63
MOST_IDS = 4096  # most ids in one request, or the length of the list if that is greater
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_LEAVING = Reason(ReasonCode.GONE, "it disappeared during the Allocate call", "create the pod again")


class DeviceList:
    """The devices of one resource as sent to the kubelet; ``cell`` contains the current list.

    Kubelet 1.36.2 crashes if an id leaves the list during its Allocate call
    (pkg/kubelet/cm/devicemanager/manager.go). So an id that is being allocated stays in the list,
    Unhealthy, until shortly after the response.
    """

    def __init__(self, devices: tuple[Device, ...] = ()) -> None:
        self.cell: Latest[tuple[Device, ...]] = Latest(devices)
        self.resends = 0  # number of requests to send an unchanged list again
        self._devices = devices
        self._response: _EncodedList | None = None
        self._allocating: Counter[str] = Counter()

    def update(self, devices: tuple[Device, ...]) -> None:
        """Replace the list."""
        self._devices = devices
        self._publish()

    def resend(self) -> None:
        """Send the unchanged list again, because the kubelet writes its checkpoint after each list."""
        self.resends += 1
        self.cell.touch()

    @property
    def response(self) -> v1beta1.ListAndWatchResponse:
        """Return the message for the current list; the object is reused while the message is the same."""
        entries = [(each.id, each.healthy, each.numa) for each in self.cell.get()]
        if self._response is None or self._response.entries != entries:
            self._response = _EncodedList(entries)
        return self._response

    @contextlib.contextmanager
    def allocating(self, ids: Sequence[str], linger: float) -> Iterator[None]:
        """Keep these ids in the list until ``linger`` seconds after the ``with`` block."""
        known = {device.id for device in self.cell.get()}
        listed = [device_id for device_id in ids if device_id in known]
        self._allocating.update(listed)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(linger, self._release, listed)

    def _release(self, ids: Sequence[str]) -> None:
        self._allocating.subtract(ids)
        self._allocating = +self._allocating
        self._publish()

    def _publish(self) -> None:
        present = {device.id for device in self._devices} if self._allocating else set()
        kept = tuple(
            Device(device.id, device.reason or _LEAVING, device.numa)
            for device in self.cell.get()
            if device.id in self._allocating and device.id not in present
        )
        self.cell.set((*self._devices, *kept))


class _EncodedList(v1beta1.ListAndWatchResponse):
    """A message that is encoded only once: encoding 1,000 devices with betterproto2 takes 16 ms.

    Every list is sent again to a restarted kubelet. The object keeps only the encoded bytes.
    """

    def __init__(self, entries: Sequence[tuple[str, bool, int | None]]) -> None:
        self.entries = entries
        self._encoded = bytes(v1beta1.ListAndWatchResponse([_device(*each) for each in entries]))

    def __bytes__(self) -> bytes:
        return self._encoded


def _device(device_id: str, healthy: bool, numa: int | None) -> v1beta1.Device:
    """Return the message for one device; an unknown NUMA node is omitted, since -1 fails strict topology
    policies.
    """
    topology = v1beta1.TopologyInfo([v1beta1.NumaNode(numa)]) if numa is not None and numa >= 0 else None
    return v1beta1.Device(device_id, HEALTHY if healthy else UNHEALTHY, topology)


class Answers(Protocol):
    """The interface that the agent implements for the device plugin service."""

    @property
    def preferring(self) -> bool:
        """Return True if the kubelet should call GetPreferredAllocation."""
        ...

    def allocate(self, device_ids: Sequence[str]) -> Awaitable[Grant]:
        """Return the grant for one container.

        :raises AllocationRefused: with a message for the user.
        :raises KernelRefused: with a message for the user, if the kernel is the cause.
        """
        ...

    async def ready(self) -> None:
        """Wait for a limited time until the devices in use are known, before the first list is sent."""
        ...

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """Return the preferred device ids.

        :raises AllocationRefused: if the request cannot be satisfied.
        """
        ...


class DevicePlugin(v1beta1.DevicePluginBase):
    """The gRPC service for one registration of a resource."""

    def __init__(self, devices: DeviceList, answers: Answers, timeouts: Timeouts) -> None:
        self._devices = devices
        self._answers = answers
        self._timeouts = timeouts
        self._sent = Latest(-1)  # version of the newest list that a stream has sent

    async def get_device_plugin_options(self, message: v1beta1.Empty) -> v1beta1.DevicePluginOptions:
        """Return the options immediately, because the kubelet waits for them inside Register."""
        return options(self._answers)

    async def list_and_watch(self, message: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        """Send the list at start and after each change that is visible to the kubelet; each message costs
        it an fsync.

        A stream with a slow reader sends only the newest list.
        """
        await self._answers.ready()
        version, sent, resends = -1, None, 0
        while True:
            version, _ = await self._devices.cell.newer(version)
            response = self._devices.response
            if response is not sent or resends != self._devices.resends:
                sent, resends = response, self._devices.resends
                yield response
            self._sent.set(version)

    async def get_preferred_allocation(
        self, message: v1beta1.PreferredAllocationRequest
    ) -> v1beta1.PreferredAllocationResponse:
        """Return one preference per container, in request order."""
        return v1beta1.PreferredAllocationResponse(
            container_responses=[await self._prefer(request) for request in message.container_requests]
        )

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """Return one response per container, in request order; the kubelet may repeat a request."""
        responses = [await self._allocate(request.device_ids) for request in message.container_requests]
        return v1beta1.AllocateResponse(container_responses=responses)

    async def pre_start_container(
        self, message: v1beta1.PreStartContainerRequest
    ) -> v1beta1.PreStartContainerResponse:
        """Do nothing: the kubelet does not call this method, because the options disable it."""
        return v1beta1.PreStartContainerResponse()

    async def _prefer(
        self, request: v1beta1.ContainerPreferredAllocationRequest
    ) -> v1beta1.ContainerPreferredAllocationResponse:
        self._check(request.available_device_ids)
        self._check(request.must_include_device_ids)
        try:
            chosen = await self._answers.prefer(
                request.available_device_ids, request.must_include_device_ids, request.allocation_size
            )
        except AllocationRefused as refusal:
            raise GRPCError(Status.INVALID_ARGUMENT, bounded(refusal.what)) from refusal
        return v1beta1.ContainerPreferredAllocationResponse(device_ids=list(chosen))

    async def _allocate(self, device_ids: Sequence[str]) -> v1beta1.ContainerAllocateResponse:
        self._check(device_ids)
        limit, linger = self._timeouts.allocate_answer, self._timeouts.allocated_id_listed
        try:
            with anyio.fail_after(limit), self._devices.allocating(device_ids, linger):
                return _response(await self._answers.allocate(device_ids))
        except (AllocationRefused, KernelRefused) as refusal:
            await self._wait_until_sent()
            text = f"{refusal.what}: {refusal.hint}" if refusal.hint else refusal.what
            raise GRPCError(Status.FAILED_PRECONDITION, bounded(text)) from refusal
        except TimeoutError as late:
            text = bounded(", ".join(device_ids))
            raise GRPCError(
                Status.DEADLINE_EXCEEDED, f"{text}: the host did not answer within {limit:.0f} s"
            ) from late

    async def _wait_until_sent(self) -> None:
        """Wait for a limited time until the list with the refusal reason is sent.

        Without this wait, a controller creates pod after pod for a device that the kubelet still considers
        Healthy.
        """
        wanted = self._devices.cell.version
        with anyio.move_on_after(self._timeouts.refusal_list_sent):
            while self._sent.get() < wanted:
                await self._sent.newer(self._sent.version)

    def _check(self, device_ids: Sequence[str]) -> None:
        """Reject unknown ids before they are looked up, logged and reported."""
        longest = max(map(len, device_ids), default=0)
        if longest > LONGEST_ID:
            what = f"no device of this node has an id of {longest} characters"
            raise GRPCError(Status.INVALID_ARGUMENT, what)
        here = len(self._devices.cell.get())
        if len(device_ids) > max(MOST_IDS, here):
            what = f"{len(device_ids)} devices are requested; this node has {here} of these ids"
            raise GRPCError(Status.INVALID_ARGUMENT, what)


def options(answers: Answers) -> v1beta1.DevicePluginOptions:
    """Return the options for Register and GetDevicePluginOptions; old kubelets use the former, new ones the
    latter.
    """
    return v1beta1.DevicePluginOptions(
        pre_start_required=False, get_preferred_allocation_available=answers.preferring
    )


def _response(grant: Grant) -> v1beta1.ContainerAllocateResponse:
    return v1beta1.ContainerAllocateResponse(
        envs=dict(grant.envs),
        devices=[
            v1beta1.DeviceSpec(
                container_path=node.inside or node.path, host_path=node.path, permissions=node.permissions
            )
            for node in grant.nodes
        ],
        cdi_devices=[v1beta1.CdiDevice(name=name) for name in grant.cdi],
    )
