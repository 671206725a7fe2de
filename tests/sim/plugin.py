# SPDX-License-Identifier: Apache-2.0
"""A small device plugin for the tests of the fake kubelet: does what it is told, correct or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel, SocketServer, in_own_task
from nodeagent.sim.kubelet.server import FakeKubelet

RESOURCE = "example.com/dev"


def device(name: str, numa: int | None = None, health: str = "Healthy") -> v1beta1.Device:
    """One entry of a list."""
    nodes = None if numa is None else v1beta1.TopologyInfo([v1beta1.NumaNode(numa)])
    return v1beta1.Device(name, health, nodes)


class Plugin(v1beta1.DevicePluginBase):
    """Sends what ``show`` was given; grants every Allocate, unless ``refusal`` is set."""

    def __init__(self, *devices: v1beta1.Device, prefers: Sequence[str] = ()) -> None:
        self.list = Latest(v1beta1.ListAndWatchResponse(list(devices)))
        self.prefers = prefers
        self.refusal: GRPCError | None = None
        self.gate = anyio.Event()
        self.gate.set()
        self.node = ""
        self.streams = 0
        self.preferences: list[v1beta1.ContainerPreferredAllocationRequest] = []
        self._over = anyio.Event()

    def show(self, *devices: v1beta1.Device) -> None:
        """Send another list."""
        self.list.set(v1beta1.ListAndWatchResponse(list(devices)))

    def end_stream(self) -> None:
        """Close the stream from the plugin's side."""
        self._over.set()
        self.list.touch()

    async def get_device_plugin_options(self, message: v1beta1.Empty) -> v1beta1.DevicePluginOptions:
        """Preference is offered if there is one."""
        return v1beta1.DevicePluginOptions(False, bool(self.prefers))

    async def list_and_watch(self, message: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        """The list, and again after each change."""
        self.streams += 1
        seen = -1
        while True:
            seen, value = await self.list.newer(seen)
            if self._over.is_set():
                return
            yield value

    async def get_preferred_allocation(
        self, message: v1beta1.PreferredAllocationRequest
    ) -> v1beta1.PreferredAllocationResponse:
        """What ``prefers`` says, fitting or not."""
        self.preferences += message.container_requests
        answer = v1beta1.ContainerPreferredAllocationResponse(list(self.prefers))
        return v1beta1.PreferredAllocationResponse([answer])

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """Waits for the gate; then refuses or grants."""
        await self.gate.wait()
        if self.refusal is not None:
            raise self.refusal
        return v1beta1.AllocateResponse([self._grant(one) for one in message.container_requests])

    def _grant(self, one: v1beta1.ContainerAllocateRequest) -> v1beta1.ContainerAllocateResponse:
        nodes = [v1beta1.DeviceSpec(self.node, self.node, "rw")] if self.node else []
        envs = {"IDS": ",".join(sorted(one.device_ids)), "EMPTY": ""}
        return v1beta1.ContainerAllocateResponse(envs=envs, devices=nodes)


async def register(
    kubelet: FakeKubelet, endpoint: str, resource: str = RESOURCE, version: str = "v1beta1"
) -> None:
    """Register as a plugin does. :raises GRPCError: as the kubelet answered."""
    peer = SocketChannel(kubelet.socket)
    request = v1beta1.RegisterRequest(version, endpoint, resource)
    try:
        await in_own_task(v1beta1.RegistrationStub(peer).register(request, timeout=20))
    finally:
        peer.close()


@asynccontextmanager
async def served(kubelet: FakeKubelet, plugin: Plugin, name: str = "dev.sock") -> AsyncIterator[SocketServer]:
    """The plugin on its socket in the kubelet's directory."""
    server = SocketServer(kubelet.paths.plugins, name, [plugin], timeouts=Timeouts())
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@asynccontextmanager
async def kubelet_with(
    root: Path, plugin: Plugin, *, topology_policy: str = "none"
) -> AsyncIterator[FakeKubelet]:
    """A running kubelet that has read the first list of the plugin."""
    async with FakeKubelet(root, topology_policy=topology_policy) as kubelet, served(kubelet, plugin):
        await register(kubelet, "dev.sock")
        await kubelet.until_listed(RESOURCE, len(plugin.list.get().devices))
        yield kubelet


def refused(text: str) -> GRPCError:
    """An error for ``refusal``."""
    return GRPCError(Status.INTERNAL, text)
