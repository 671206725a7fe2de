# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service of one resource, as the kubelet calls it (deviceplugin v1beta1).

Knows the protocol and its traps, and nothing of devices: what a device is and who may have it is asked of
``Answers``. Streams send the newest list and keep no queue; each has its own place, so two streams both get
everything and a stalled reader costs one message. One Plugin serves one registration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import anyio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.model.allocation import Grant

LONGEST_ID = 256  # characters; no id of ours has more than 63
MOST_IDS = 4096  # in one request, or as many as are listed

LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"


class Answers(Protocol):
    """What the agent knows and the plugin does not."""

    @property
    def preferring(self) -> bool:
        """True if the kubelet shall ask which devices to prefer."""
        ...

    def allocate(self, device_ids: Sequence[str]) -> Awaitable[Grant]:
        """The grant for one container.

        :raises Refused: with a text for people.
        :raises KernelRefused: with such a text, where it is the host that refuses.
        """
        ...

    async def ready(self) -> None:
        """Wait, but not long, until what is held is known well enough for a first list."""
        ...

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred ids.

        :raises Refused: for a request that cannot be met.
        """
        ...


class Plugin(v1beta1.DevicePluginBase):
    """One registration's service."""

    def __init__(
        self, listing: Listing, answers: Answers, on_streams: Callable[[], None], timeouts: Timeouts
    ) -> None:
        self._timeouts = timeouts
        self._listing = listing
        self._answers = answers
        self._on_streams = on_streams
        self._sent: dict[object, int] = {}  # open stream → version of the list that it has sent
        self._progress = Latest(None)
        self.streamed = False  # a stream was opened at some time

    @property
    def streams(self) -> int:
        """ListAndWatch streams that are open now."""
        return len(self._sent)

    @property
    def options(self) -> v1beta1.DevicePluginOptions:
        """What Register and GetDevicePluginOptions both say: old kubelets read one, new ones the other."""
        return v1beta1.DevicePluginOptions(
            pre_start_required=False, get_preferred_allocation_available=self._answers.preferring
        )

    async def get_device_plugin_options(self, message: v1beta1.Empty) -> v1beta1.DevicePluginOptions:
        """At once and always: the kubelet waits for it inside Register."""
        return self.options

    async def get_preferred_allocation(
        self, message: v1beta1.PreferredAllocationRequest
    ) -> v1beta1.PreferredAllocationResponse:
        """One choice per container, in order."""
        return v1beta1.PreferredAllocationResponse(
            container_responses=[await self._preferred(request) for request in message.container_requests]
        )

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """One response per container, in order; the same ids may come again at any time."""
        responses = [await self._granted(request.device_ids) for request in message.container_requests]
        return v1beta1.AllocateResponse(container_responses=responses)

    async def pre_start_container(
        self, message: v1beta1.PreStartContainerRequest
    ) -> v1beta1.PreStartContainerResponse:
        """Nothing to do; never asked for."""
        return v1beta1.PreStartContainerResponse()

    def __mapping__(self) -> dict[str, Handler]:
        """The generated methods, with a ListAndWatch that sends ready bytes."""
        stream = Handler(
            self._list_and_watch, Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse
        )
        return {**super().__mapping__(), LIST_AND_WATCH: stream}

    async def _list_and_watch(self, stream: Any) -> None:
        await stream.recv_message()
        place, seen = object(), -1
        before: tuple[bytes, int] | None = None
        self._sent[place] = seen
        self.streamed = True
        self._on_streams()
        try:
            await self._answers.ready()
            while True:
                seen, _ = await self._listing.cell.newer(seen)
                encoded, repeats = self._listing.encoded, self._listing.repeats
                if (encoded, repeats) != before:  # a Reason is not in it, and each list costs an fsync
                    await stream.send_message(encoded)
                    before = encoded, repeats
                self._sent[place] = seen
                self._progress.touch()
        finally:
            del self._sent[place]
            self._progress.touch()
            self._on_streams()

    async def _preferred(
        self, request: v1beta1.ContainerPreferredAllocationRequest
    ) -> v1beta1.ContainerPreferredAllocationResponse:
        _check(request.available_device_ids, self._listing)
        _check(request.must_include_device_ids, self._listing)
        try:
            chosen = await self._answers.prefer(
                request.available_device_ids, request.must_include_device_ids, request.allocation_size
            )
        except Refused as refusal:
            raise GRPCError(Status.INVALID_ARGUMENT, refusal.what) from refusal
        return v1beta1.ContainerPreferredAllocationResponse(device_ids=list(chosen))

    async def _granted(self, device_ids: Sequence[str]) -> v1beta1.ContainerAllocateResponse:
        _check(device_ids, self._listing)
        limit, listed = self._timeouts.allocate_answer, self._timeouts.allocated_id_listed
        try:
            with anyio.fail_after(limit), self._listing.allocating(device_ids, listed):
                return _response(await self._answers.allocate(device_ids))
        except (Refused, KernelRefused) as refusal:
            await self._delivered()
            raise GRPCError(Status.FAILED_PRECONDITION, _one_line(refusal)) from refusal
        except TimeoutError as late:
            text = f"{', '.join(device_ids)}: the host did not answer within {limit:.0f} s"
            raise GRPCError(Status.DEADLINE_EXCEEDED, text) from late

    async def _delivered(self) -> None:
        """Wait, but not long, until the kubelet has the list that explains a refusal.

        Else a controller makes pod after pod for a device that still counts as Healthy.
        """
        wanted = self._listing.cell.version
        with anyio.move_on_after(self._timeouts.refusal_list_sent):
            while any(sent < wanted for sent in self._sent.values()):
                await self._progress.newer(self._progress.version)


def _check(device_ids: Sequence[str], listed: Listing) -> None:
    """Refuse what nobody can mean, before it is looked up, logged and told."""
    longest = max(map(len, device_ids), default=0)
    if longest > LONGEST_ID:
        what = f"an id of {longest} characters is not that of a device of this node"
        raise GRPCError(Status.INVALID_ARGUMENT, what)
    here = len(listed.cell.get())
    if len(device_ids) > max(MOST_IDS, here):
        what = f"{len(device_ids)} devices are asked for; this node has {here} of them"
        raise GRPCError(Status.INVALID_ARGUMENT, what)


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


def _one_line(refusal: Refused | KernelRefused) -> str:
    return f"{refusal.what}: {refusal.hint}" if refusal.hint else refusal.what
