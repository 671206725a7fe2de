# SPDX-License-Identifier: Apache-2.0
"""A plugin that does what a test lets it do, served on a socket, and the simplest call to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from grpclib.const import Cardinality, Handler

from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import server
from nodeagent.kubelet.grpc.channel import open_channel

LIST = "/v1beta1.DevicePlugin/ListAndWatch"
HELLO = bytes(v1beta1.ListAndWatchResponse(devices=[v1beta1.Device(id="a", health="Healthy")]))


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

    async def _stream(self, stream: Any) -> None:
        await stream.recv_message()
        try:
            await stream.send_message(HELLO)
            await anyio.sleep_forever()
        finally:
            self.ended.set(self.ended.get() + 1)

    def __mapping__(self) -> dict[str, Handler]:
        """The generated methods, with a stream that sends ready bytes."""
        raw = Handler(self._stream, Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse)
        return {**super().__mapping__(), LIST: raw}


@asynccontextmanager
async def serving(directory: Path, name: str = "p.sock") -> AsyncIterator[tuple[server.SocketServer, Plugin]]:
    """A server with its plugin, stopped at the end."""
    plugin = Plugin()
    served = server.SocketServer(directory, name, [plugin], timeouts=Timeouts())
    await served.start()
    try:
        yield served, plugin
    finally:
        await served.stop(0)


async def within(seconds: float, wait: Callable[[], Awaitable[Any]]) -> Any:
    """What the call returns, in time."""
    with anyio.fail_after(seconds):
        return await wait()


async def options(path: Path) -> v1beta1.DevicePluginOptions:
    """The answer to GetDevicePluginOptions."""
    async with open_channel(path) as peer:
        return await v1beta1.DevicePluginStub(peer).get_device_plugin_options(timeout=5)
