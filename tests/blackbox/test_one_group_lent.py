# SPDX-License-Identifier: Apache-2.0
"""A USB device is one pod's alone, whatever the rules say by then, and until its container has ended."""

from __future__ import annotations

import os

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import GPU, named, refusal, running, stays
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_named import described
from tests.blackbox.test_one_group_nodes import BY_CDI, BY_NODE, SHARED
from tests.blackbox.test_one_group_open import LET_GO
from tests.facts import names
from tests.sim import devnodes
from tests.sim.usb import STICK

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")

USB_NODE = "/dev/bus/usb/001/004"
BY_USB = '{name: example.com/gpu, usb: [{vendors: ["46f4"]}]}'
RULES = [BY_NODE % f"path: {USB_NODE}", BY_NODE % "path: /dev/bus/usb", BY_CDI]


def rules(*each: str) -> str:
    return f"resources: [{', '.join(each)}]"


async def with_a_node(node: Node, kubelet: FakeKubelet, *then: str) -> tuple[Pod, str]:
    """A pod of which a container has a node of the device; and the id of that by the rules from then on."""
    box = await kubelet.admit(pod("box", {SHARED: 1}))
    running(box)
    await node.until_told(lambda told: bool(told["holders"]))
    node.configure(rules(*then))
    await kubelet.until_listed(GPU, 1)
    (device,) = health(kubelet, GPU)
    return box, device


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=["node", "directory", "cdi"])
async def test_the_node_of_a_usb_device_is_not_given_while_a_pod_has_that_by_a_rule_of_before(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", STICK, 4)
    described(node, path=USB_NODE)
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(GPU, 1)
            vm = await kubelet.admit(pod("vm", {GPU: 1}))
            running(vm)
            await named(node, next(iter(health(kubelet, GPU))), vm)
            node.configure(rules(rule))
            await kubelet.until(lambda: set(health(kubelet, SHARED).values()) == {"Unhealthy"}, PATIENCE)
            text = await refusal(kubelet, SHARED, next(iter(health(kubelet, SHARED))))
            names(text, "46f4:0001", "ns/vm")
        async with node.daemon():
            await kubelet.until(lambda: set(health(kubelet, SHARED).values()) == {"Unhealthy"}, PATIENCE)
            kubelet.delete(vm)
            await kubelet.until(lambda: set(health(kubelet, SHARED).values()) == {"Healthy"}, PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=["node", "directory", "cdi"])
async def test_a_usb_device_is_not_given_while_a_container_has_a_node_of_it_from_before_its_rule(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", STICK, 4)
    described(node, path=USB_NODE)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values(), PATIENCE)
        box, device = await with_a_node(node, kubelet, BY_USB, rule)
        assert "ns/box" in await refusal(kubelet, GPU, device)
        assert health(kubelet, GPU) == {device: "Unhealthy"}
        kubelet.delete(box)
        await until_health(kubelet, GPU, device, "Healthy")
        running(await kubelet.admit(pod("vm", {GPU: 1})))


@pytest.mark.slow
async def test_a_usb_device_is_waited_for_that_a_pod_had_a_moment_ago_where_processes_are_not_seen(
    node: Node,
) -> None:
    node.usb.plug("1-1", STICK, 4)
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 1)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        await named(node, next(iter(health(kubelet, GPU))), old)
        kubelet.delete(old)
        new = pod("new", {GPU: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        running(new)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES[:2], ids=["node", "directory"])
async def test_a_usb_device_is_not_given_while_a_container_has_a_node_of_it_by_a_rule_that_is_gone(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", STICK, 4)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(SHARED, 2)
            box, device = await with_a_node(node, kubelet, BY_USB)
            assert "ns/box" in await refusal(kubelet, GPU, device)
            await until_health(kubelet, GPU, device, "Unhealthy")
        async with node.daemon():
            await until_health(kubelet, GPU, device, "Unhealthy")
            kubelet.delete(box)
            await until_health(kubelet, GPU, device, "Healthy")
            running(await kubelet.admit(pod("vm", {GPU: 1})))


@pytest.mark.slow
async def test_a_node_of_a_driver_of_a_usb_device_is_not_given_while_a_pod_has_that_by_a_rule_of_before(
    node: Node,
) -> None:
    node.usb.plug("1-1", STICK, 4)
    devnodes.add(node.host, "/dev/ttyUSB0", (188, 0), f"{node.usb.path('1-1')}/1-1:1.0/ttyUSB0")
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(GPU, 1)
            vm = await kubelet.admit(pod("vm", {GPU: 1}))
            running(vm)
            await named(node, next(iter(health(kubelet, GPU))), vm)
            node.configure(rules(BY_NODE % "path: /dev/ttyUSB0"))
            await kubelet.until_listed(SHARED, 2)
            assert "ns/vm" in await refusal(kubelet, SHARED, "ttyUSB0-0")
        async with node.daemon():
            await until_health(kubelet, SHARED, "ttyUSB0-0", "Unhealthy")
            kubelet.delete(vm)
            await until_health(kubelet, SHARED, "ttyUSB0-0", "Healthy")
