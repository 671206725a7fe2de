# SPDX-License-Identifier: Apache-2.0
"""Ids are unique within a resource only: another plugin's id of the same name is another device."""

from __future__ import annotations

import os

import pytest

from nodeagent.sim import devnodes
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import named, running
from tests.blackbox.harness import Node, health, pod
from tests.blackbox.test_one_group_alone import BY_NODE_ALONE, TTY, rules
from tests.blackbox.test_one_group_named import described
from tests.blackbox.test_one_group_nodes import BY_CDI, SHARED

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")

OTHER = "example.com/other"


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_a_pod_with_another_plugin_s_id_of_that_name_keeps_nobody_from_a_node(
    node: Node, rule: str
) -> None:
    devnodes.add(node.host, TTY, (188, 9))
    described(node, path=TTY)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SHARED, 1)
        (device,) = health(kubelet, SHARED)
        async with foreign.serving(kubelet, device):
            other = await kubelet.admit(pod("other", {foreign.NIC: 1}))
            running(other)
            await named(node, device, other)
            running(await kubelet.admit(pod("mine", {SHARED: 1})))


async def test_a_node_that_a_pod_has_by_a_name_of_before_is_given_to_no_second_one(node: Node) -> None:
    devnodes.add(node.host, TTY, (188, 9))
    node.configure(rules(BY_NODE_ALONE))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SHARED, 1)
        (device,) = health(kubelet, SHARED)
        box = await kubelet.admit(pod("box", {SHARED: 1}))
        running(box)
        await named(node, device, box)
        node.configure(rules(BY_NODE_ALONE.replace(SHARED, OTHER)))
        await kubelet.until_listed(OTHER, 1)
        second = await kubelet.admit(pod("second", {OTHER: 1}))
        assert f"{device}: held by ns/box" in second.message


async def second_by_a_new_name(node: Node, rule: str, box: Pod) -> Pod:
    """What becomes of one that asks a daemon which knows the rule by another name; ``box`` has the node."""
    devnodes.add(node.host, TTY, (188, 9))
    described(node, path=TTY)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(SHARED, 1)
            running(await kubelet.admit(box))
        node.configure(rules(rule.replace(SHARED, OTHER)))
        async with node.daemon():
            await kubelet.until_listed(OTHER, 1)
            return await kubelet.admit(pod("second", {OTHER: 1}))


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_a_node_that_a_pod_has_by_a_name_of_before_the_daemon_is_given_to_no_second_one(
    node: Node, rule: str
) -> None:
    box = pod("box", {SHARED: 1})
    second = await second_by_a_new_name(node, rule, box)
    (device,) = box.result.ids[SHARED]
    assert f"{device}: held by ns/box" in second.message


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_a_node_that_an_init_container_has_by_a_name_of_before_the_daemon_is_given_to_no_second_one(
    node: Node, rule: str
) -> None:
    """Nobody shows what a plain init container has: the kubelet's file tells."""
    box = Pod("ns", "box", [{}], init_containers=[{SHARED: 1}])
    assert (await second_by_a_new_name(node, rule, box)).phase == "Failed"
