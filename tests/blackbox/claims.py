# SPDX-License-Identifier: Apache-2.0
"""A node whose devices are advertised by DRA: fake API server, fake kubelet, and the daemon as a process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import NODES, RESOURCE_SLICES, Object
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import DeviceHealth, Pod
from tests.blackbox.harness import PATIENCE, POLL, Daemon, Node
from tests.kubelet import claims

GPU = "example.com/gpu"
NAME = "node1"
DRIVER = "nodeagent.local"
POOL = f"{DRIVER}/{NAME}"
FLAGS = ("--kubeconfig", "/etc/kubeconfig", "--node-name", NAME)
BY_DRA = f"""
apiVersion: nodeagent/v1
resources:
  - {{name: {GPU}, pci: [{{vendors: [10de]}}], via: dra}}
"""


@dataclass
class Cluster:
    """The API server and the kubelet of one node."""

    node: Node
    server: FakeApiServer
    kubelet: FakeKubelet

    @property
    def slices(self) -> list[Object]:
        """The slices of the node's pool, in order of their names."""
        found = (each for each in self.server.store.all(RESOURCE_SLICES) if each["spec"]["driver"] == DRIVER)
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    @property
    def devices(self) -> dict[str, Object]:
        """The published devices by name."""
        return {device["name"]: device for each in self.slices for device in each["spec"].get("devices", ())}

    @property
    def usable(self) -> list[str]:
        """The names of the published devices without a taint."""
        return [name for name, device in self.devices.items() if not device.get("taints")]

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until the condition about objects holds."""
        await self.server.until(condition, seconds)

    async def until_published(self, *names: str, seconds: float = PATIENCE) -> None:
        """Wait until exactly these devices are published without a taint."""
        await self.until(lambda: sorted(self.usable) == sorted(names), seconds)

    def allocate(self, claim: str, devices: Mapping[str, str], **more: Any) -> Object:
        """Create a claim that the scheduler has allocated; ``devices``: by request."""
        store = self.server.store
        return claims.allocate_claim(store, claim, devices, driver=DRIVER, pool=POOL, **more)

    async def start(self, name: str, *names: str) -> Pod:
        """Start a pod that uses these claims."""
        return await self.kubelet.admit(Pod("ns", name, [{}], claims=list(names)))

    def health(self, device: str) -> DeviceHealth | None:
        """The health of a device in the status of pods; None is Unknown."""
        return self.kubelet.state.health.get((DRIVER, POOL, device))

    async def until_health(self, device: str, status: str | None) -> None:
        """Wait until the kubelet has this health of a device; None: Unknown."""
        await self.kubelet.until(lambda: getattr(self.health(device), "status", None) == status, PATIENCE)

    async def until_prepared(self, pod: Pod) -> None:
        """Start the containers of the pod again, until its claims are prepared."""
        with anyio.fail_after(PATIENCE):
            while (await self.kubelet.admit(pod, again=True)).message:  # noqa: ASYNC110 - it tries by time
                await anyio.sleep(POLL)

    def edits(self, pod: Pod) -> dict[str, Any]:
        """Return the merged edits of the pod's CDI devices: variables, device nodes and mounts.

        :raises KeyError: if the runtime could not resolve a name.
        """
        specs = [json.loads(path.read_text()) for path in (self.node.root / "var/run/cdi").glob("*.json")]
        known = {
            f"{spec['kind']}={device['name']}": device["containerEdits"]
            for spec in specs
            for device in spec["devices"]
        }
        found = [known[name] for name in pod.result.cdi]
        return {
            "env": sorted(variable for edits in found for variable in edits.get("env", ())),
            "nodes": sorted({node["path"] for edits in found for node in edits.get("deviceNodes", ())}),
            "mounts": sorted(mount["containerPath"] for edits in found for mount in edits.get("mounts", ())),
        }


@asynccontextmanager
async def cluster_of(node: Node, config: str = BY_DRA) -> AsyncIterator[Cluster]:
    """An API server with the Node, and a kubelet that has started some time ago."""
    async with FakeApiServer() as server:
        server.store.put(NODES, {"metadata": {"name": NAME}})
        (node.root / "etc").mkdir(exist_ok=True)
        server.kubeconfig(node.root / "etc/kubeconfig")
        node.configure(config)
        async with node.kubelet(api=server.store, node=NAME) as kubelet:
            # the kubelet deletes the slices of its node soon after its start
            await kubelet.until(lambda: kubelet.statistics.wipes == 1)
            yield Cluster(node, server, kubelet)


@asynccontextmanager
async def daemon_of(cluster: Cluster, *flags: str, **more: Any) -> AsyncIterator[Daemon]:
    """The daemon, when the kubelet has registered its driver."""
    async with cluster.node.daemon(*FLAGS, *flags, **more) as daemon:
        await daemon.logged("dra-registered")
        yield daemon
