# SPDX-License-Identifier: Apache-2.0
"""A plugin that does what a test lets it do, served on a socket, and the simplest call to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import grpc
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel, SocketServer

HELLO = v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(id="a", health="Healthy")])


class Plugin(v1beta1.DevicePluginBase):
    """A plugin whose Allocate waits for a gate, and whose stream never ends by itself."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.entered = anyio.Event()
        self.ended = Latest(0)

    async def get_device_plugin_options(self, message: v1beta1.Empty) -> v1beta1.DevicePluginOptions:
        """Answers at once."""
        return v1beta1.DevicePluginOptions(get_preferred_allocation_available=True)

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """Waits for the gate, then answers."""
        self.entered.set()
        await self.gate.wait()
        return v1beta1.AllocateResponse()

    async def list_and_watch(self, message: v1beta1.Empty) -> AsyncIterator[v1beta1.ListAndWatchResponse]:
        """One list."""
        try:
            yield HELLO
            await anyio.sleep_forever()
        finally:
            self.ended.set(self.ended.get() + 1)


@asynccontextmanager
async def serving(directory: Path, name: str = "p.sock") -> AsyncIterator[tuple[SocketServer, Plugin]]:
    """A server with its plugin, stopped at the end."""
    plugin = Plugin()
    served = SocketServer(directory, name, [plugin], timeouts=Timeouts())
    await served.start()
    try:
        yield served, plugin
    finally:
        await served.stop(0)


async def within(seconds: float, wait: Callable[[], Awaitable[Any]]) -> Any:
    """What the call returns, in time."""
    with anyio.fail_after(seconds):
        return await wait()


@asynccontextmanager
async def open_channel(path: str | Path) -> AsyncIterator[SocketChannel]:
    """A channel, closed at the end, and its socket: asyncio does that in the next turn."""
    channel = SocketChannel(path)
    try:
        yield channel
    finally:
        channel.close()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()


async def options(path: str | Path, limit: float = 5.0) -> v1beta1.DevicePluginOptions:
    """The answer to GetDevicePluginOptions. :raises KubeletUnavailable: without one."""
    async with open_channel(path) as peer:
        return await grpc.call(v1beta1.DevicePluginStub(peer).get_device_plugin_options(timeout=limit))


async def allocate(path: str | Path, limit: float | None = None) -> v1beta1.AllocateResponse:
    """The answer to an Allocate of nothing. :raises KubeletUnavailable: without one."""
    async with open_channel(path) as peer:
        stub = v1beta1.DevicePluginStub(peer)
        return await grpc.call(stub.allocate(v1beta1.AllocateRequest(), timeout=limit))
