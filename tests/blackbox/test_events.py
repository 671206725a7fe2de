# SPDX-License-Identifier: Apache-2.0
"""What a node tells its cluster: Events on its Node and on pods, and a condition; the API server is the stand-in."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nodeagent.sim.apiserver.answers import Refusal
from nodeagent.sim.apiserver.standin import ApiServer
from nodeagent.sim.apiserver.store import EVENTS, NODES
from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, pod
from tests.blackbox.test_cluster import FLAGS, NAME, followed, label, put, server_of

GPU_AT, OTHER_AT = "0000:20:00.0", "0000:30:00.0"
SOON = 2.0  # seconds; one is promised, on a machine that nobody else loads


@pytest.fixture
async def server(node: Node) -> AsyncIterator[ApiServer]:
    node.add_gpu(GPU_AT, 20)
    node.add_gpu(OTHER_AT, 30)
    async with server_of(node) as server:
        yield server


def written(server: ApiServer, reason: str = "", kind: str = "Node") -> list[dict[str, Any]]:
    """The Events on the Node, or on pods, with this reason or any."""
    return [
        each
        for each in server.store.all(EVENTS)
        if each["involvedObject"]["kind"] == kind and reason in ("", each["reason"])
    ]


@asynccontextmanager
async def running(node: Node, *more: str) -> AsyncIterator[tuple[Daemon, Kubelet]]:
    """Daemon and kubelet, when all is listed and the cluster is heard."""
    async with followed(node, *more) as (daemon, kubelet):
        await kubelet.until_listed(T4, 2, PATIENCE)
        yield daemon, kubelet


async def test_a_device_that_falls_off_is_told_on_the_node_and_on_the_pod_that_has_it(
    node: Node, server: ApiServer
) -> None:
    async with running(node) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 2}))
        assert vm.phase == "Running"
        await node.until_told(lambda told: len(told.get("holders", {})) == 2)
        node.host.unplug(GPU_AT)
        began = anyio.current_time()
        await server.until(lambda: bool(written(server, "DeviceUnhealthy", "Pod")), SOON)
        await server.until(lambda: bool(written(server, "DeviceUnhealthy")), SOON)
        print(f"told after {anyio.current_time() - began:.3f} s")
        (of_node,), (of_pod,) = written(server), written(server, kind="Pod")
        found = server.store.get(NODES, NAME)
        assert found is not None
        assert of_node["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Node",
            "name": NAME,
            "uid": found["metadata"]["uid"],
        }
        assert of_pod["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "vm",
            "uid": vm.uid,
        }
        assert (of_node["metadata"]["namespace"], of_pod["metadata"]["namespace"]) == ("default", "ns")
        assert of_node["source"] == {"component": "nodeagent", "host": NAME}
        assert of_node["type"] == "Warning"
        assert f"{T4}: {GPU_AT}: " in of_node["message"]
        assert "stop ns/vm" in of_pod["message"]


async def test_a_node_that_is_as_it_was_tells_nothing_at_its_start(node: Node, server: ApiServer) -> None:
    node.host.bind(GPU_AT, "nvidia")
    async with followed(node) as (daemon, kubelet):
        await kubelet.until_listed(T4, 1, PATIENCE)
        node.host.bind(OTHER_AT, "nvidia")
        await server.until(lambda: bool(written(server)), SOON)
        await daemon.end()
        assert [OTHER_AT in each["message"] for each in written(server)] == [True]
