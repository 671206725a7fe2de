# SPDX-License-Identifier: Apache-2.0
"""Another device plugin registers a resource of ours: said, with its devices; not "all is well"."""

from __future__ import annotations

from tests.blackbox.harness import T4, Node, health
from tests.facts import names
from tests.sim import plugin

THEIRS = {"their-1", "their-2", "their-3"}


async def test_a_resource_that_another_plugin_registers_is_a_problem_that_names_its_devices(
    node: Node,
) -> None:
    gpus = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        assert (await node.command("status")).returncode == 0
        theirs = plugin.Plugin(*map(plugin.device, THEIRS))
        async with plugin.served(kubelet, theirs, "their.sock"):
            await plugin.register(kubelet, "their.sock", T4)
            await kubelet.until(lambda: set(health(kubelet, T4)) == THEIRS)
            assert THEIRS.isdisjoint(gpus)
            told = await node.until_told(lambda told: bool(told["problems"]))
            status = await node.command("status")
            explained = await node.command("explain", T4)
    (problem,) = told["problems"]
    names(problem, T4, "their-1")
    assert status.returncode == 3
    names(explained.stdout, "their-1")
