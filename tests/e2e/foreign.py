# SPDX-License-Identifier: Apache-2.0
"""Another device plugin beside the daemon on the real kubelet: it takes its time, or refuses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.from_thread
from grpclib.exceptions import GRPCError

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketServer, call
from tests.kubelet.serving import open_channel
from tests.sim import plugin

SLOW, REFUSING = "foreign.example/slow", "foreign.example/refusing"


class Foreign(plugin.Plugin):
    """Has one device; answers an Allocate after a while. ``asked`` counts them."""

    def __init__(self, seconds: float, refusal: GRPCError | None) -> None:
        super().__init__(plugin.device("one"))
        self.seconds, self.refusal = seconds, refusal
        self.asked = 0

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        self.asked += 1
        await anyio.sleep(self.seconds)
        return await super().allocate(message)


@contextlib.contextmanager
def slow(kubelet_directory: Path, seconds: float) -> Iterator[Foreign]:
    """Serve ``SLOW``, whose Allocate takes that long."""
    with _thread(kubelet_directory, SLOW, seconds, None) as served:
        yield served


@contextlib.contextmanager
def refusing(kubelet_directory: Path) -> Iterator[None]:
    """Serve ``REFUSING``, which lists a device and never gives it."""
    with _thread(kubelet_directory, REFUSING, 0.0, plugin.refused("not today")):
        yield


@contextlib.contextmanager
def _thread(
    kubelet_directory: Path, resource: str, seconds: float, refusal: GRPCError | None
) -> Iterator[Foreign]:
    with anyio.from_thread.start_blocking_portal() as portal:
        made = _served(kubelet_directory, resource, seconds, refusal)
        with portal.wrap_async_context_manager(made) as served:
            yield served


@contextlib.asynccontextmanager
async def _served(
    kubelet_directory: Path, resource: str, seconds: float, refusal: GRPCError | None
) -> AsyncIterator[Foreign]:
    directory = kubelet_directory / "device-plugins"
    endpoint = f"{resource.replace('/', '-')}.sock"
    served = Foreign(seconds, refusal)
    server = SocketServer(directory, endpoint, [served], timeouts=Timeouts())
    await server.start()
    try:
        async with open_channel(str(directory / "kubelet.sock")) as peer:
            request = v1beta1.RegisterRequest("v1beta1", endpoint, resource)
            await call(v1beta1.RegistrationStub(peer).register(request, timeout=20))
        yield served
    finally:
        await server.stop(0)
