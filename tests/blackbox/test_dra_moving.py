# SPDX-License-Identifier: Apache-2.0
"""A resource that moves from the device plugin to DRA and back, also while its devices are in use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from tests.blackbox.claims import GPU, Cluster, cluster_of, daemon_of
from tests.blackbox.harness import PATIENCE, Daemon, Node, health, pod
from tests.facts import names

ONE, OTHER = "0000:10:00.0", "0000:11:00.0"
FIRST, SECOND = "pci-0000-10-00-0", "pci-0000-11-00-0"
RULE = "apiVersion: nodeagent/v1\nresources: [{{name: {name}, pci: [{{vendors: [10de]}}], via: {via}}}]\n"
BY_PLUGIN, BY_DRA = RULE.format(name=GPU, via="device-plugin"), RULE.format(name=GPU, via="dra")
IDS = {ONE: FIRST, OTHER: SECOND}


@asynccontextmanager
async def moving(node: Node, config: str) -> AsyncIterator[tuple[Cluster, Daemon]]:
    """A node with two GPUs, on which a device is never Healthy for the kubelet while it is in a slice."""
    node.add_gpus(2)
    async with cluster_of(node, config) as cluster, anyio.create_task_group() as tasks:
        offered_twice: list[set[str]] = []

        async def compare() -> None:
            while True:
                listed = health(cluster.kubelet, GPU)
                healthy = {IDS[each] for each, state in listed.items() if state == "Healthy"}
                if both := healthy & cluster.devices.keys():
                    offered_twice.append(both)
                await anyio.sleep(0.005)

        tasks.start_soon(compare)
        async with cluster.node.daemon("--kubeconfig", "/etc/kubeconfig", "--node-name", "node1") as daemon:
            yield cluster, daemon
        tasks.cancel_scope.cancel()
        assert offered_twice == []


async def listed(cluster: Cluster, *states: str) -> None:
    """Wait until the device plugin lists the two devices so; without states, that it has no list any more."""

    def is_so() -> bool:
        plugins = cluster.kubelet.statistics.streams.get(GPU, 0)
        return list(health(cluster.kubelet, GPU).values()) == list(states) if states else not plugins

    await cluster.kubelet.until(is_so, PATIENCE)


async def test_a_resource_moves_to_dra_while_a_pod_uses_a_device(node: Node) -> None:
    async with moving(node, BY_PLUGIN) as (cluster, daemon):
        await listed(cluster, "Healthy", "Healthy")
        held = await cluster.kubelet.admit(pod("dp", {GPU: 1}))
        assert held.phase == "Running", held.message
        (device,) = held.result.ids[GPU]
        free = SECOND if device == ONE else FIRST
        node.configure(BY_DRA)
        await cluster.until_published(free)
        await listed(cluster, "Unhealthy")
        cluster.allocate("a", {"gpu": free})
        claimed = await cluster.start("p", "a")
        assert claimed.phase == "Running", claimed.message
        cluster.kubelet.delete(held)
        await cluster.until_published(FIRST, SECOND)
        await listed(cluster)
        await daemon.logged("resource-removed", resource=GPU, cause="it is now advertised by DRA")


async def test_a_resource_moves_back_while_a_claim_uses_a_device(node: Node) -> None:
    async with moving(node, BY_DRA) as (cluster, daemon):
        await cluster.until_published(FIRST, SECOND)
        cluster.allocate("a", {"gpu": FIRST})
        claimed = await cluster.start("p", "a")
        assert claimed.phase == "Running", claimed.message
        node.configure(BY_PLUGIN)
        await daemon.logged("resource-removed", cause="it is now advertised by a device plugin")
        await listed(cluster, "Unhealthy", "Healthy")
        told = await node.until_told(
            lambda told: told["resources"][0]["devices"][0].get("reason") == "other-api"
        )
        names(told["resources"][0]["devices"][0]["message"], "claim ns/a")
        again = await cluster.kubelet.admit(pod("dp", {GPU: 1}))
        assert again.phase == "Running", again.message
        assert again.result.ids[GPU] == (OTHER,)
        await cluster.kubelet.terminate(claimed)
        await listed(cluster, "Healthy", "Healthy")
        await cluster.until(lambda: cluster.devices == {})


async def test_a_daemon_that_starts_after_the_move_lists_the_devices_of_pods(node: Node) -> None:
    async with moving(node, BY_PLUGIN) as (cluster, daemon):
        await listed(cluster, "Healthy", "Healthy")
        held = await cluster.kubelet.admit(pod("dp", {GPU: 1}))
        (device,) = held.result.ids[GPU]
        await daemon.end()
        node.configure(BY_DRA)
        async with daemon_of(cluster):
            await cluster.until_published(SECOND if device == ONE else FIRST)
            await listed(cluster, "Unhealthy")
