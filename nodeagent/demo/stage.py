# SPDX-License-Identifier: Apache-2.0
"""Where the demo plays: the documentation's node in a directory, a fake kubelet, and the real daemon.

What is true is asked of the kubelet, and the Reasons of the daemon's status socket. Everything ends with the
``async with`` block, whatever happens in it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
from grpclib.exceptions import GRPCError

from nodeagent.base import supervise
from nodeagent.demo.daemon import Daemon, DemoFailed
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel, in_own_task
from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.nodes import demo_node

GPU = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
USB = "nvidia.com/gpu-usb"
TESLA = "nvidia.com/TU104GL_TESLA_T4"

CONFIG_PATH = "/etc/nodeagent/config.yaml"
CONFIG = f"""\
apiVersion: nodeagent/v1
resources:
  - {{name: {USB}, pci: [{{vendors: ["10de"], devices: ["1ada"]}}]}}
timing: {{holders: 500ms}}   # quicker than usual: this is a demo
"""
_POLL = 0.02  # seconds between two questions to the status socket

Document = Mapping[str, Any]


class Stage:
    """The host, the kubelet and the daemon, and ways to wait for what they do."""

    def __init__(self, host: SimulatedHost, kubelet: FakeKubelet, patience: float, page: bool) -> None:
        self.host = host
        self.kubelet = kubelet
        self.daemon = Daemon(host.directory, page)
        self.patience = patience

    def configure(self, text: str) -> None:
        """Write the daemon's configuration file."""
        files.write(self.host.path(CONFIG_PATH), text)

    async def until(self, state: Callable[[], bool]) -> None:
        """Wait until what the kubelet knows is so. :raises DemoFailed: if it does not become so."""
        with anyio.move_on_after(self.patience) as limit:
            while not state():
                with anyio.move_on_after(1.0):
                    await self.kubelet.until(state, self.patience + 1.0)
                self._check_alive()
        if limit.cancelled_caught:
            raise self._late("it did not happen")

    async def reason(self, device_id: str, code: str) -> str:
        """Wait until the daemon gives this Reason for the device; what it says, and what it advises."""
        device = await self.said(
            lambda document: _unhealthy(document, device_id, code),
            f"{device_id} is not said to be Unhealthy by {code}",
        )
        return f"{device['what']}\n{device['hint']}".strip()

    async def change(self, state: str, card: str) -> Document:
        """Wait until the daemon tells of a change in this state ("waiting", "failing") on a card."""
        return await self.said(
            lambda document: [change for change in document["changes"][state] if change["card"] == card],
            f"nothing is told to be {state} on {card}",
        )

    async def page(self) -> str:
        """Where the daemon serves its page, as soon as it does."""
        served = await self.said(
            lambda document: [http] if "address" in (http := document.get("http", {})) else [],
            "no page is served",
        )
        return str(served["address"])

    async def hears(self, *, answers: bool) -> None:
        """Wait until the daemon says that the cluster answers it, or that it does not."""
        await self.said(
            lambda document: [
                cluster
                for cluster in (document.get("cluster", {}),)
                if cluster.get("followed") and bool(cluster.get("answers")) is answers
            ],
            f"the cluster is not said {'' if answers else 'not '}to answer",
        )

    async def said(self, select: Callable[[Document], list[Document]], otherwise: str) -> Document:
        """The first of what is selected from the daemon's status, as soon as there is one."""
        end = time.monotonic() + self.patience
        while time.monotonic() < end:
            self._check_alive()
            selected = select(await self.daemon.status())
            if selected:
                return selected[0]
            await anyio.sleep(_POLL)
        raise self._late(otherwise)

    async def refusal(self, resource: str, device_id: str) -> str:
        """Ask the daemon for a device behind the kubelet's back; why it refuses, "" if it does not."""
        endpoint = self.kubelet.statistics.accepted(resource)[-1].endpoint
        channel = SocketChannel(self.kubelet.paths.plugins / endpoint)
        request = v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest([device_id])])
        try:
            await in_own_task(v1beta1.DevicePluginStub(channel).allocate(request, timeout=self.patience))
        except GRPCError as error:
            return str(error.message)
        finally:
            channel.close()
        return ""

    def serves(self, capacities: Mapping[str, tuple[int, int]]) -> bool:
        """True if each resource has one stream, and the capacity and allocatable that are given."""
        streams = self.kubelet.statistics.streams
        return all(
            streams.get(name) == 1 and self.kubelet.capacity(name) == numbers
            for name, numbers in capacities.items()
        )

    def _check_alive(self) -> None:
        if self.kubelet.life.crashed:
            raise self.daemon.failed(f"a real kubelet would have crashed: {self.kubelet.life.crashed}")
        self.daemon.check_alive()

    def _late(self, what: str) -> DemoFailed:
        return self.daemon.failed(f"{what} within {self.patience:g} s")


def _unhealthy(document: Document, device_id: str, code: str) -> list[Document]:
    """The device in the daemon's status, if it has that Reason."""
    devices = (device for resource in document["resources"] for device in resource["devices"])
    return [device for device in devices if (device["id"], device.get("reason")) == (device_id, code)]


@asynccontextmanager
async def opened(
    directory: str,
    patience: float,
    make: Callable[[str], SimulatedHost] = demo_node,
    page: bool = False,
) -> AsyncIterator[Stage]:
    """Build the host in ``directory`` and start the kubelet; the daemon is for the caller to start.

    ``patience``: seconds after which what did not happen counts as failed. ``make`` builds another host.
    ``page``: the daemon is to serve its status page.
    """
    host = make(directory)
    try:
        async with FakeKubelet(directory) as kubelet:
            stage = Stage(host, kubelet, patience, page)
            stage.configure(CONFIG)
            try:
                yield stage
            finally:
                with anyio.CancelScope(shield=True):
                    await stage.daemon.end()
    except BaseExceptionGroup as group:  # whatever leaves the kubelet's task group is one
        for kind in (DemoFailed, BrokenPipeError):
            if (one := supervise.only_error(group, kind)) is not None:
                raise one from group
        raise
