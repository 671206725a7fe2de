# SPDX-License-Identifier: Apache-2.0
"""What a container has open that was deleted by force, where nobody sees it: by whichever id it was given."""

from __future__ import annotations

import os

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import GPU, named, running, stays
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_counts import OLD
from tests.blackbox.test_one_group_lent import BY_USB, RULES, USB_NODE, rules, with_a_node
from tests.blackbox.test_one_group_named import described
from tests.blackbox.test_one_group_nodes import SHARED
from tests.blackbox.test_one_group_open import LET_GO
from tests.sim.usb import STICK

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")

BY_PAIR = '{name: example.com/gpu, usb: [{vendors: ["46f4"]}, {vendors: ["46f4"]}], bundle: true}'
CHECKPOINT_READ = 0.5  # seconds in which the kubelet writes the nodes of a pod it lists, and they are read


async def known_for_long(kubelet: FakeKubelet) -> None:
    """Wait until nothing counts any more as what a pod had before the daemon came."""
    await stays(kubelet, lambda: True, OLD + 1.0)


async def waits(kubelet: FakeKubelet, old: Pod, device: str) -> None:
    """The next pod gets the device when the container of the old one has ended, and not before."""
    kubelet.delete(old)
    await until_health(kubelet, GPU, device, "Healthy")
    new = pod("new", {GPU: 1})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
    running(new)


@pytest.mark.slow
async def test_a_part_of_a_set_that_a_pod_had_a_moment_ago_is_waited_for_in_another_set(node: Node) -> None:
    first, second, third = (STICK._replace(serial=each) for each in ("A", "B", "C"))
    node.usb.plug("1-1", first, 4)
    node.usb.plug("1-2", second, 5)
    node.configure(rules(BY_PAIR))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 1)
        await known_for_long(kubelet)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        await named(node, "46f4:0001-A", old)
        await stays(kubelet, lambda: old.phase == "Running", CHECKPOINT_READ)
        node.usb.unplug("1-1")
        node.usb.plug("1-3", third, 6)
        await until_health(kubelet, GPU, "46f4:0001-A", "Unhealthy")
        await waits(kubelet, old, "46f4:0001-B")


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=["node", "directory", "cdi"])
async def test_a_usb_device_is_waited_for_of_which_a_container_had_a_node_a_moment_ago(
    node: Node, rule: str
) -> None:
    node.usb.plug("1-1", STICK, 4)
    described(node, path=USB_NODE)
    node.configure(rules(rule))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values(), PATIENCE)
        await known_for_long(kubelet)
        old, device = await with_a_node(node, kubelet, BY_USB, rule)
        await until_health(kubelet, GPU, device, "Unhealthy")
        await waits(kubelet, old, device)


@pytest.mark.slow
async def test_a_usb_device_that_a_pod_had_a_moment_ago_is_preferred_to_nothing_that_is_free(
    node: Node,
) -> None:
    node.usb.plug("1-1", STICK._replace(serial="A"), 4)
    node.usb.plug("1-2", STICK._replace(serial="B"), 5)
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 2)
        await known_for_long(kubelet)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        assert old.result.ids[GPU] == ("46f4:0001-A",)
        await named(node, "46f4:0001-A", old)
        kubelet.delete(old)
        new = await kubelet.admit(pod("new", {GPU: 1}))
        running(new)
        assert new.result.ids[GPU] == ("46f4:0001-B",)
