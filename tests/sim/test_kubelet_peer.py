# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet with a plugin made of grpcio (C-core), and as a program of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import grpc
import grpc.aio

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.sim.plugin import RESOURCE, device, register


async def _options(request: bytes, context: Any) -> bytes:
    return bytes(v1beta1.DevicePluginOptions())


async def _list(request: bytes, context: Any) -> AsyncIterator[bytes]:
    yield bytes(v1beta1.ListAndWatchResponse([device("a", 0), device("b")]))
    await anyio.sleep_forever()


async def _allocate(request: bytes, context: Any) -> bytes:
    asked = v1beta1.AllocateRequest.parse(request)
    grants = [
        v1beta1.ContainerAllocateResponse(envs={"IDS": ",".join(one.device_ids)})
        for one in asked.container_requests
    ]
    return bytes(v1beta1.AllocateResponse(grants))


async def test_a_plugin_made_of_grpcio_is_registered_listed_and_used(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        server = grpc.aio.server()
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(_options),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(_list),
            "Allocate": grpc.unary_unary_rpc_method_handler(_allocate),
        }
        handler = grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods)
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix:{kubelet.paths.plugins}/c-core.sock")
        await server.start()
        try:
            await register(kubelet, "c-core.sock")
            await kubelet.until_listed(RESOURCE, 2)
            pod = await kubelet.admit(Pod("ns", "vm", [{RESOURCE: 2}]))
            assert sorted(pod.result.envs["IDS"].split(",")) == ["a", "b"]
        finally:
            await server.stop(0)
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (2, 0))
