# SPDX-License-Identifier: Apache-2.0
"""Another vendor's plugin on the same node: given ids, an Allocate that takes its time or refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import anyio

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import PATIENCE
from tests.sim import plugin

NIC = "vendor.example/nic"


class Foreign(plugin.Plugin):
    """As ``plugin.Plugin``: each Allocate takes ``takes`` seconds, and is granted with ``env`` or refused."""

    takes = 0.0
    env: Mapping[str, str] = MappingProxyType({})
    groups = False  # its ids are numbers of IOMMU groups, as virt-handler's are

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """After its time."""
        await anyio.sleep(self.takes)
        answer = await super().allocate(message)
        for asked, given in zip(message.container_requests, answer.container_responses, strict=True):
            groups = [f"/dev/vfio/{number}" for number in asked.device_ids if self.groups]
            given.envs |= self.env
            given.devices.extend(v1beta1.DeviceSpec(node, node, "mrw") for node in groups)
        return answer


@asynccontextmanager
async def serving(
    kubelet: FakeKubelet,
    *ids: str,
    resource: str = NIC,
    takes: float = 0.0,
    refusal: str = "",
    socket: str = "foreign.sock",
) -> AsyncIterator[Foreign]:
    """The plugin, when the kubelet has its list. Its ``gate`` holds every Allocate back while it is shut."""
    made = Foreign(*map(plugin.device, ids))
    made.takes, made.groups = takes, socket.startswith("kubevirt-")
    made.refusal = plugin.refused(refusal) if refusal else None
    async with plugin.served(kubelet, made, socket):
        await plugin.register(kubelet, socket, resource)
        await kubelet.until_listed(resource, len(ids), PATIENCE)
        yield made
