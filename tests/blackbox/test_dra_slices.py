# SPDX-License-Identifier: Apache-2.0
"""The ResourceSlices of a node: written once, corrected after foreign changes, and without missing fields."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nodeagent.sim.apiserver.slices import COUNTERS, TAINTS
from nodeagent.sim.apiserver.store import RESOURCE_SLICES
from tests.blackbox.claims import Cluster, cluster_of, daemon_of
from tests.blackbox.harness import Node

FIRST, SECOND = "pci-0000-10-00-0", "pci-0000-11-00-0"
FIRST_AT = "0000:10:00.0"
SOON = 2.0  # seconds; one is promised, on a machine that nobody else loads


def writes(cluster: Cluster) -> list[str]:
    """The methods of all requests that changed slices, without dry runs."""
    return [
        each.method
        for each in cluster.server.statistics.requests
        if each.method != "GET" and "resourceslices" in each.path and "dryRun" not in each.query
    ]


def generations(cluster: Cluster) -> set[int]:
    return {each["spec"]["pool"]["generation"] for each in cluster.slices}


def edit(cluster: Cluster, **spec: Any) -> None:
    """Another program replaces parts of the first slice."""
    first = cluster.slices[0]
    cluster.server.store.put(RESOURCE_SLICES, first | {"spec": first["spec"] | spec})


async def test_a_slice_that_is_deleted_or_edited_is_back_soon(node: Node) -> None:
    node.add_gpus(2)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST, SECOND)
        cluster.server.store.delete(RESOURCE_SLICES, cluster.slices[0]["metadata"]["name"])
        await cluster.until_published(FIRST, SECOND, seconds=SOON)
        edit(cluster, devices=[{"name": "foreign"}])
        await cluster.until_published(FIRST, SECOND, seconds=SOON)


@pytest.mark.slow
async def test_with_a_program_that_undoes_each_correction_they_become_rarer(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster) as daemon:
        await cluster.until_published(FIRST)
        before = len(writes(cluster))
        with anyio.move_on_after(12.0):
            while True:
                await cluster.until_published(FIRST)
                edit(cluster, devices=[])
        await daemon.logged("dra-slices-contested")
        assert len(writes(cluster)) - before <= 8, "one a second would be 12"
        await cluster.until_published(FIRST, seconds=30.0)
        assert len(daemon.lines("dra-slices-contested")) == 1


async def test_slices_have_at_most_64_devices_and_one_change_is_one_request(node: Node) -> None:
    node.add_gpus(64)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until(lambda: len(cluster.usable) == 64)
        assert (len(cluster.slices), writes(cluster)) == (1, ["POST"])
        node.add_gpu("0000:60:00.0", 600)
        await cluster.until(lambda: len(cluster.usable) == 65)
        assert [len(each["spec"]["devices"]) for each in cluster.slices] == [64, 1]
        assert generations(cluster) == {2}
        assert writes(cluster) == ["POST", "PUT", "POST"]
        cluster.allocate("a", {"gpu": FIRST})
        assert (await cluster.start("p", "a")).phase == "Running"
        node.host.bind(FIRST_AT, "nvidia")
        await cluster.until(lambda: len(cluster.usable) == 64)
        assert writes(cluster) == ["POST", "PUT", "POST", "PUT"]
        assert generations(cluster) == {2}
        taint = cluster.devices[FIRST]["taints"][0]
        assert (taint["key"], taint["effect"]) == ("nodeagent.local/unusable", "NoSchedule")


async def test_where_the_api_server_drops_fields_groups_are_boards_and_unhealthy_devices_missing(
    node: Node,
) -> None:
    node.add_gpus(2)
    node.add_gpu("0000:11:00.1", 11)
    async with cluster_of(node) as cluster:
        cluster.server.faults.set("gates", {TAINTS, COUNTERS})
        async with daemon_of(cluster) as daemon:
            await cluster.until_published(FIRST, "board-0000-11-00-0")
            node.host.bind(FIRST_AT, "nvidia")
            await cluster.until_published("board-0000-11-00-0")
            gates = {line["object"] for line in daemon.lines("dra-gate-missing")}
            assert gates == {TAINTS, COUNTERS}
            notes = (await node.status())["findings"]
            assert [TAINTS in each["message"] for each in notes if each["code"] == "dra"] == [True]
            before = len(writes(cluster))
        async with daemon_of(cluster) as daemon:
            await daemon.logged("dra-gate-missing", count=2)
            assert len(writes(cluster)) == before, "nothing has changed"


async def test_slices_that_a_starting_kubelet_deletes_are_back_soon(node: Node) -> None:
    node.add_gpus(2)
    async with cluster_of(node) as cluster, daemon_of(cluster) as daemon:
        await cluster.until_published(FIRST, SECOND)
        cluster.allocate("a", {"gpu": FIRST})
        assert (await cluster.start("p", "a")).phase == "Running"
        for number in range(5):
            posts = writes(cluster).count("POST")
            await cluster.kubelet.restart()
            await daemon.logged("dra-registered", count=number + 2)
            await cluster.until(lambda: writes(cluster).count("POST") > posts)  # noqa: B023  called at once
            await cluster.until_published(FIRST, SECOND, seconds=SOON)
        assert daemon.lines("dra-slices-contested") == []


async def test_a_pod_waits_for_the_api_server_and_starts_in_one_prepare(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(FIRST)
        cluster.allocate("a", {"gpu": FIRST})
        await cluster.server.stop()

        async def start_server() -> None:
            await anyio.sleep(1.0)
            await cluster.server.start()

        async with anyio.create_task_group() as group:
            group.start_soon(start_server)
            pod = await cluster.start("p", "a")
        assert pod.phase == "Running", pod.message
        assert [call.error for call in cluster.kubelet.statistics.claims] == [None]


async def test_a_missing_right_is_a_problem_until_it_is_granted(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster:
        cluster.server.denied = {("create", "resourceslices")}
        async with daemon_of(cluster):
            found = await node.until_told(lambda status: bool(status["problems"]))
            assert "resourceslices is forbidden" in found["problems"][0]
            cluster.server.denied = set()
            await cluster.until_published(FIRST, seconds=60.0)  # the pauses grow
            await node.until_told(lambda status: not status["problems"])


async def test_without_credentials_the_status_says_what_to_do(node: Node) -> None:
    node.add_gpus(1)
    async with cluster_of(node) as cluster, node.daemon():
        missing = "no credentials for the API server"
        found = await node.until_told(lambda told: any(missing in each for each in told["problems"]))
        assert any("kubeconfig" in each["hint"] for each in found["findings"])
        assert cluster.slices == []
