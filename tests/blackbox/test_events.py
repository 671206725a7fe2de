# SPDX-License-Identifier: Apache-2.0
"""What a node tells its cluster, on its Node and on pods; the API server is a fake."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import EVENTS, NODES
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, pod, until_health
from tests.blackbox.test_cluster import FLAGS, NAME, followed, of, server_of
from tests.blackbox.test_splitting import FIRST, two_cards

GPU_AT, OTHER_AT = "0000:20:00.0", "0000:30:00.0"
VGPU = "nvidia.com/GRID_T4-1B"
SOON = 2.0  # seconds; one is promised, on a machine that nobody else loads


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu(GPU_AT, 20)
    node.add_gpu(OTHER_AT, 30)
    async with server_of(node) as server:
        yield server


def written(server: FakeApiServer, reason: str = "", kind: str = "Node") -> list[dict[str, Any]]:
    """The Events on the Node, or on pods, with this reason or any."""
    return [
        each
        for each in server.store.all(EVENTS)
        if each["involvedObject"]["kind"] == kind and reason in ("", each["reason"])
    ]


@asynccontextmanager
async def running(node: Node, *more: str) -> AsyncIterator[tuple[Daemon, FakeKubelet]]:
    """Daemon and kubelet, when all is listed and the cluster is heard."""
    async with followed(node, *more) as (daemon, kubelet):
        await kubelet.until_listed(T4, 2, PATIENCE)
        yield daemon, kubelet


async def test_a_device_that_falls_off_is_told_on_the_node_and_on_the_pod_that_has_it(
    node: Node, server: FakeApiServer
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


@pytest.mark.slow
async def test_daemons_that_start_again_and_again_tell_nothing_of_what_was_so_before(
    node: Node, server: FakeApiServer
) -> None:
    node.host.bind(GPU_AT, "nvidia")
    async with node.kubelet() as kubelet:
        for _ in range(3):
            async with node.daemon(*FLAGS):
                await node.until_told(lambda told: of(told, "reachable"))
        async with node.daemon(*FLAGS):
            await kubelet.until_listed(T4, 1, PATIENCE)
            await node.until_told(lambda told: of(told, "reachable"))
            assert written(server) == []
            node.host.bind(OTHER_AT, "nvidia")
            await server.until(lambda: bool(written(server)), SOON)
            assert [OTHER_AT in each["message"] for each in written(server)] == [True]


async def test_what_happens_while_the_api_server_is_away_is_told_when_it_is_back(
    node: Node, server: FakeApiServer
) -> None:
    async with running(node) as (_, kubelet):
        await server.stop()
        node.host.bind(GPU_AT, "nvidia")
        await until_health(kubelet, T4, GPU_AT, "Unhealthy")
        await server.start()
        await server.until(lambda: bool(written(server, "DeviceUnhealthy")), PATIENCE)


async def test_without_the_right_devices_are_served_and_the_status_names_it(
    node: Node, server: FakeApiServer
) -> None:
    async with running(node) as (daemon, kubelet):
        server.faults.set("status:events", Refusal(403, message="you cannot create events"))
        node.host.bind(GPU_AT, "nvidia")
        told = await node.until_told(lambda told: of(told, "writeErrors"))
        assert "you cannot create events" in told["problems"][0]
        await daemon.logged("cluster-write-refused")
        assert len(daemon.lines("cluster-write-refused")) == 1
        assert (await kubelet.admit(pod("vm", {T4: 1}))).phase == "Running"


def made_on(card: str, server: FakeApiServer) -> int:
    """How many vGPUs are told to have been made on it: in one Event, or in several that follow each other."""
    told = [(each["message"], each["count"]) for each in written(server, "MdevCreated")]
    text = rf"{card}: (\d+) x nvidia-222 created"
    found = [(re.fullmatch(text, message), count) for message, count in told]
    return sum(int(match[1]) * count for match, count in found if match)


@pytest.mark.slow
async def test_what_is_made_on_a_card_is_one_event_and_what_waits_another(
    node: Node, server: FakeApiServer
) -> None:
    node.configure("mdevs: {manage: true, types: []}")
    async with two_cards(node), followed(node) as (_, kubelet):
        node.configure("mdevs: {manage: true, types: [nvidia-222]}")
        await server.until(lambda: made_on(FIRST, server) > 0, PATIENCE)
        await kubelet.until_listed(VGPU, 2 * 16, PATIENCE)  # before that the pod gets nothing
        vm = await kubelet.admit(pod("vm", {VGPU: 1}))
        assert vm.phase == "Running"
        await node.until_told(lambda told: bool(told.get("holders")))
        node.configure("mdevs: {manage: true, types: [nvidia-228]}")
        await server.until(lambda: bool(written(server, "ChangeWaiting")), PATIENCE)
        await server.until(lambda: bool(written(server, "MdevRemoved")), PATIENCE)


async def test_events_that_are_switched_off_are_not_written(node: Node, server: FakeApiServer) -> None:
    node.configure("cluster: {events: false}")
    async with running(node) as (daemon, kubelet):
        node.host.bind(GPU_AT, "nvidia")
        await until_health(kubelet, T4, GPU_AT, "Unhealthy")
        node.configure("cluster: {events: true}")
        await daemon.logged("config-reloaded")
        node.host.bind(OTHER_AT, "nvidia")
        await server.until(lambda: bool(written(server)), SOON)
        assert [OTHER_AT in each["message"] for each in written(server)] == [True]
