# SPDX-License-Identifier: Apache-2.0
"""Resources that the Node still counts although nobody gives them: told, and removed where that is wished."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import NODES
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import LASTING, PATIENCE, Node
from tests.blackbox.test_cluster import ENTRY, GPU, NAME, OTHER, followed, of, put, server_of

FOREIGN = "example.com/never"
LOOKS = ("--timing-resync", "1s")
REMOVES = (*LOOKS, "--cluster-stale-resources", "remove")
LONG = 40.0  # seconds: a removal is spread over thirty


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    node.add_gpu("0000:20:00.0", 20)
    async with server_of(node) as server:
        put(server, ENTRY)
        yield server


def count(server: FakeApiServer, **more: str) -> None:
    """The Node counts these, and GPU and a resource of others as 0."""
    counts = {"cpu": "4", GPU: "0", FOREIGN: "0"} | more
    status = {"capacity": counts, "allocatable": dict(counts)}
    server.store.put(NODES, {"metadata": {"name": NAME, "labels": {}}, "status": status})


def counted(server: FakeApiServer) -> dict[str, str]:
    """What the Node counts."""
    found: dict[str, str] = (server.store.get(NODES, NAME) or {})["status"]["capacity"]
    return found


def patches(server: FakeApiServer) -> int:
    """How often something was patched."""
    return sum(
        each.method == "PATCH" and each.path.endswith("/status") for each in server.statistics.requests
    )


async def renamed(server: FakeApiServer, kubelet: FakeKubelet) -> None:
    """GPU was offered, and is called OTHER now; the Node has not heard of that."""
    await kubelet.until_listed(GPU, 1, PATIENCE)
    put(server, ENTRY | {"resourceName": OTHER})
    await kubelet.until_listed(OTHER, 1, PATIENCE)


def stale(told: dict[str, Any]) -> dict[str, str]:
    """Resource → why it cannot be removed, or ""."""
    return {each["resource"]: each.get("message", "") for each in of(told, "stale") or ()}


def forget(kubelet: FakeKubelet) -> None:
    """The plugin has been away for five minutes: its resource leaves the table and the checkpoint."""
    table = kubelet.state.table
    for part in (table.devices, table.healthy, table.unhealthy, table.stopped):
        part.pop(GPU, None)
    table.save()


async def test_what_nobody_gives_any_more_is_told_once_the_kubelet_has_forgotten_it(
    node: Node, server: FakeApiServer
) -> None:
    async with followed(node, *LOOKS) as (daemon, kubelet):
        await renamed(server, kubelet)
        count(server, **{OTHER: "1"})
        told = await node.until_told(lambda told: bool(stale(told)))
        assert list(stale(told)) == [GPU]
        assert "kubelet" in stale(told)[GPU]
        assert daemon.lines("stale-resource") == []
        forget(kubelet)
        told = await node.until_told(lambda told: stale(told) == {GPU: ""})
        await daemon.logged("stale-resource", resource=GPU)
        shown = await node.command("status")
        assert any(GPU in line and "Node" in line for line in shown.stdout.splitlines())
        assert shown.returncode == 0, "it is no fault"
        put(server, ENTRY)
        await node.until_told(lambda told: stale(told) == {})
        await daemon.logged("stale-resource")
        assert len(daemon.lines("stale-resource")) == 1
        assert patches(server) == 0


async def test_what_is_counted_is_given_by_somebody(node: Node, server: FakeApiServer) -> None:
    async with followed(node, *LOOKS) as (_, kubelet):
        await renamed(server, kubelet)
        forget(kubelet)
        count(server)
        await node.until_told(lambda told: bool(stale(told)))
        count(server, **{GPU: "1"})
        await node.until_told(lambda told: stale(told) == {})


@pytest.mark.slow
async def test_names_are_known_after_a_restart_and_left_alone_where_that_is_wished(
    node: Node, server: FakeApiServer
) -> None:
    async with followed(node) as (daemon, kubelet):
        await renamed(server, kubelet)
        await daemon.end()
    kept = node.root / LASTING
    assert kept.stat().st_mode & 0o777 == 0o600
    count(server, **{OTHER: "1"})
    async with followed(node, *LOOKS) as (_, kubelet):
        forget(kubelet)
        await node.until_told(lambda told: stale(told) == {GPU: ""})
        node.configure("cluster: {staleResources: off}")
        await node.until_told(lambda told: stale(told) == {})


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_forgotten_name_is_taken_away_and_one_that_comes_back_is_left(
    node: Node, server: FakeApiServer
) -> None:
    async with followed(node, *REMOVES) as (daemon, kubelet):
        await renamed(server, kubelet)
        count(server, **{OTHER: "1"})
        await node.until_told(lambda told: "still knows" in stale(told).get(GPU, ""))
        forget(kubelet)
        await server.until(lambda: GPU not in counted(server), LONG)
        assert counted(server) == {"cpu": "4", FOREIGN: "0", OTHER: "1"}
        await daemon.logged("stale-resource-removed", resource=GPU)
        told = await node.until_told(lambda told: stale(told) == {})
        assert of(told, "staleRemoved") == [GPU]
        count(server, **{OTHER: "1"})
        await node.until_told(lambda told: "another program writes" in stale(told).get(GPU, ""))
        assert patches(server) == 1


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_a_right_that_is_missing_is_told_once(node: Node, server: FakeApiServer) -> None:
    server.denied.add(("patch", "nodes/status"))
    async with followed(node, *REMOVES) as (daemon, kubelet):
        await renamed(server, kubelet)
        forget(kubelet)
        count(server)
        await server.until(lambda: patches(server) > 0, LONG)
        told = await node.until_told(lambda told: of(told, "writeErrors"))
        assert any("stale resources" in line for line in told["problems"])
        await daemon.logged("cluster-write-refused")
        assert counted(server)[GPU] == "0"
        assert patches(server) == 1
