# SPDX-License-Identifier: Apache-2.0
"""Reports are complete: problems in the journal of each run, ids in ``scan``, the node that is missing."""

from __future__ import annotations

import os

from tests.blackbox.harness import T4, Node, until_health
from tests.blackbox.test_bindings import AUDIO, GPU, RULE, add_card, add_disk, planned
from tests.facts import names
from tests.sim.drivers import simulated


async def test_a_problem_that_exists_at_a_restart_is_in_the_log_of_that_run(node: Node) -> None:
    add_card(node)
    add_disk(node)
    node.configure(f"{RULE}resources: [{{name: example.com/gpu, pci: [{{addresses: ['{GPU}']}}]}}]\n")
    async with simulated(node.host, GPU, AUDIO), node.kubelet():
        for _ in range(2):
            async with node.daemon() as daemon:
                names((await daemon.logged("plan-problem"))["text"], GPU, "/srv/data")
                await daemon.logged("device-unhealthy", device=GPU)


async def test_scan_shows_the_ids_and_the_resource_of_a_function(node: Node) -> None:
    (gpu,) = node.add_gpus(1)
    (row,) = [line for line in (await node.command("scan")).stdout.splitlines() if line.startswith(gpu)]
    names(row, "10de:1eb8", T4)


async def test_of_the_nodes_of_vfio_only_the_missing_one_is_named(node: Node) -> None:
    first, second = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        node.host.remove_node("/dev/vfio/10")
        await until_health(kubelet, T4, first, "Unhealthy")
        text = (await daemon.logged("device-unhealthy", device=first))["text"]
        names(text, "/dev/vfio/10")
        assert "/dev/vfio/vfio" not in text
        node.host.remove_node("/dev/vfio/vfio")
        await until_health(kubelet, T4, second, "Unhealthy")
        text = (await daemon.logged("device-unhealthy", device=second))["text"]
        names(text, "/dev/vfio/vfio")
        assert "/dev/vfio/11" not in text


async def test_types_for_a_hostname_count_without_a_name_in_the_settings(node: Node) -> None:
    node.host.write_file("/etc/machine-id", "0123456789abcdef" * 2)
    name = os.uname().nodename.lower()
    here = f"{{nodeSelector: {{kubernetes.io/hostname: {name}}}, types: [nvidia-222]}}"
    node.configure(f"mdevs: {{manage: true, nodes: [{here}]}}\n")
    (problem,) = (await planned(node))["problems"]
    assert "no card" in problem["message"]
    node.host.write_file("/etc/hostname", "another")
    assert (await planned(node))["problems"] == []
