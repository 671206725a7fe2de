# SPDX-License-Identifier: Apache-2.0
"""Ids are unique within a resource only: another plugin's id of the same name is another device."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import GPU, named, refusal, running
from tests.blackbox.harness import Node, health, pod, until_health
from tests.blackbox.test_one_group_alone import BY_NODE_ALONE, TTY, rules
from tests.blackbox.test_one_group_lent import BY_USB, RULES, with_a_node
from tests.blackbox.test_one_group_named import described
from tests.blackbox.test_one_group_nodes import BY_CDI, SHARED
from tests.facts import names
from tests.sim import devnodes
from tests.sim.usb import STICK

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
        names(second.message, device, "ns/box")


def of_another_plugin() -> Pod:
    """A pod with another plugin's device, which has the id of the node."""
    return pod("other", {foreign.NIC: 1})


async def admitted(kubelet: FakeKubelet, pods: Iterable[Pod]) -> None:
    """These pods run, one after the other; another plugin has a device with the id of the node."""
    await kubelet.until_listed(SHARED, 1)
    async with foreign.serving(kubelet, *health(kubelet, SHARED)):
        running(*[await kubelet.admit(each) for each in pods])


async def second_by_a_new_name(node: Node, rule: str, *pods: Pod) -> Pod:
    """What becomes of one that asks the next daemon, which knows the rule by another name.

    One of these ``pods`` has the node.
    """
    devnodes.add(node.host, TTY, (188, 9))
    described(node, path=TTY)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await admitted(kubelet, pods)
        node.configure(rules(rule.replace(SHARED, OTHER)))
        async with node.daemon():
            await kubelet.until_listed(OTHER, 1)
            return await kubelet.admit(pod("second", {OTHER: 1}))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_a_node_that_a_pod_has_by_a_name_of_before_the_daemon_is_given_to_no_second_one(
    node: Node, rule: str
) -> None:
    box = pod("box", {SHARED: 1})
    second = await second_by_a_new_name(node, rule, box)
    (device,) = box.result.ids[SHARED]
    names(second.message, device, "ns/box")


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_a_node_that_an_init_container_has_by_a_name_of_before_the_daemon_is_given_to_no_second_one(
    node: Node, rule: str
) -> None:
    """Nobody shows what a plain init container has: the kubelet's file tells."""
    box = Pod("ns", "box", [{}], init_containers=[{SHARED: 1}])
    assert (await second_by_a_new_name(node, rule, box)).phase == "Failed"


@pytest.mark.parametrize("first", ["the other", "ours"])
@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_another_plugin_s_id_of_that_name_hides_nobody_from_the_next_daemon(
    node: Node, rule: str, first: str
) -> None:
    box, other = pod("box", {SHARED: 1}), of_another_plugin()
    second = await second_by_a_new_name(node, rule, *((box, other) if first == "ours" else (other, box)))
    (device,) = box.result.ids[SHARED]
    names(second.message, device, "ns/box")


@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_another_plugin_s_id_of_that_name_does_not_hide_what_an_init_container_has(
    node: Node, rule: str
) -> None:
    """Nobody shows that: only the kubelet's file tells."""
    box = Pod("ns", "box", [{}], init_containers=[{SHARED: 1}])
    assert (await second_by_a_new_name(node, rule, box, of_another_plugin())).phase == "Failed"


@pytest.mark.parametrize("first", ["the other", "ours"])
@pytest.mark.parametrize("rule", [BY_NODE_ALONE, BY_CDI], ids=["node", "cdi"])
async def test_another_plugin_s_id_of_that_name_hides_nobody_when_a_rule_gets_another_name(
    node: Node, rule: str, first: str
) -> None:
    """What the pod has stays listed under its name, and is given under no other until the pod ends."""
    devnodes.add(node.host, TTY, (188, 9))
    described(node, path=TTY)
    node.configure(rules(rule))
    box, other = pod("box", {SHARED: 1}), of_another_plugin()
    async with node.kubelet() as kubelet, node.daemon():
        await admitted(kubelet, (box, other) if first == "ours" else (other, box))
        await named(node, box.result.ids[SHARED][0], other)
        node.configure(rules(rule.replace(SHARED, OTHER)))
        await kubelet.until_listed(OTHER, 1)
        (device,) = health(kubelet, OTHER)
        await until_health(kubelet, SHARED, device, "Unhealthy")
        names((await kubelet.admit(pod("second", {OTHER: 1}))).message, device, "ns/box")
        kubelet.delete(box)
        await node.until_told(lambda told: {each["name"] for each in told["resources"]} == {OTHER})
        running(await kubelet.admit(pod("third", {OTHER: 1})))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES[:2], ids=["node", "directory"])
async def test_a_usb_device_is_not_given_while_a_container_has_a_node_of_it_by_an_id_that_others_have_too(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", STICK, 4)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(SHARED, 2)
        async with foreign.serving(kubelet, *health(kubelet, SHARED)):
            running(await kubelet.admit(pod("other", {foreign.NIC: 2})))
            box, device = await with_a_node(node, kubelet, BY_USB)
        assert "ns/box" in await refusal(kubelet, GPU, device)
        await until_health(kubelet, GPU, device, "Unhealthy")
        kubelet.delete(box)
        await until_health(kubelet, GPU, device, "Healthy")
        running(await kubelet.admit(pod("vm", {GPU: 1})))
