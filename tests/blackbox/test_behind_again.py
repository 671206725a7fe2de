# SPDX-License-Identifier: Apache-2.0
"""Pods follow each other with the same id, and nobody asks in between: whose answer has the kubelet's file?

The file is written when a pod has got all that it asks for, and at lists; not when a pod ends.
"""

from __future__ import annotations

import os
import shutil

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import running, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.test_behind import (
    ANSWERED,
    PORT,
    SERIAL,
    SINCE,
    STICKS,
    keeps,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_behind_midway import bound, who_has_the_other_node
from tests.sim import devnodes
from tests.sim.drivers import SimulatedDrivers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
SLOW = 6.0  # seconds that a third plugin takes
FULL = 5.0  # seconds for which the disk is full
KEPT = "a.example/other"
GONE = 1.2  # seconds after which the API server has no pod of that name any more


async def bound_while_it_is_given(node: Node, kubelet: FakeKubelet, two: Pod) -> None:
    """The card is to be bound while the pod has got its node, and waits for another plugin."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, two)
        await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
        node.configure(bound(SERIAL))
    running(two)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [0.0, GONE])
async def test_the_next_pod_of_the_same_name_keeps_what_it_was_given(node: Node, gap: float) -> None:
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon("--timing-holders", "10s"),
        with_ports(kubelet, takes=SLOW, first="/dev/ttyOTHER") as two,
    ):
        one = await who_has_the_other_node(node, kubelet, "one")
        await stays(kubelet, lambda: True, SINCE)
        kubelet.delete(one)
        await anyio.sleep(gap)
        await bound_while_it_is_given(node, kubelet, two)
        await keeps(drivers, SERIAL, "serial")


@pytest.mark.slow
async def test_the_next_pod_of_the_same_name_keeps_what_it_was_given_though_the_disk_was_full_then(
    node: Node,
) -> None:
    """The file has the pod before for as long as the kubelet cannot write it; then the card waits on."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=SLOW + FULL, first="/dev/ttyOTHER") as two,
    ):
        one = await who_has_the_other_node(node, kubelet, "one")
        await stays(kubelet, lambda: True, SINCE)
        kubelet.delete(one)
        await anyio.sleep(GONE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, two)
            await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
            kubelet.state.table.full = True
            node.configure(bound(SERIAL))
            await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", FULL)
            kubelet.state.table.full = False
        running(two)
        await keeps(drivers, SERIAL, "serial")
        assert drivers.writes == []
        kubelet.delete(two)
        await eventually(lambda: vfio(drivers), ANSWERED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two"])
async def test_the_next_pod_keeps_what_it_was_given_beside_another_plugins_id_of_the_same_name(
    node: Node, name: str
) -> None:
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        foreign.serving(kubelet, "port-0", resource=KEPT, socket="other.sock"),
        with_ports(kubelet, takes=SLOW, first="/dev/ttyOTHER"),
    ):
        running(await kubelet.admit(pod("keeper", {KEPT: 1})))
        one = await who_has_the_other_node(node, kubelet, "one")
        await stays(kubelet, lambda: True, SINCE)
        kubelet.delete(one)
        await bound_while_it_is_given(node, kubelet, pod(name, {PORT: 1, foreign.NIC: 1}))
        await keeps(drivers, SERIAL, "serial")


def give_the_node_to_another_card(node: Node) -> None:
    os.unlink(node.host.path("/dev/ttyX"))
    shutil.rmtree(node.host.path("/sys/dev/char/188:9"))
    devnodes.add(node.host, "/dev/ttyX", (188, 12))


async def passes_on(node: Node, kubelet: FakeKubelet, one: Pod) -> None:
    """The id goes to the next pod while an answer of before is on its way."""
    late = [1.5] * 3
    kubelet.faults.set("pod-resources-late", late)
    await kubelet.admit(pod("hint", {foreign.NIC: 1}))
    await eventually(lambda: len(late) < 3, PATIENCE)
    kubelet.delete(one)
    running(await kubelet.admit(pod("two", {PORT: 1})))
    late.clear()
    await node.until_told(lambda told: told["holders"]["port-0"]["pod"] == "ns/two")


@pytest.mark.slow
async def test_an_answer_of_before_makes_no_function_wait_whose_nodes_nobody_has(node: Node) -> None:
    async with with_a_serial_card(node, STICKS) as drivers:
        give_the_node_to_another_card(node)
        async with (
            node.kubelet() as kubelet,
            node.daemon(),
            with_ports(kubelet, takes=0.05),
        ):
            one = await kubelet.admit(pod("one", {PORT: 1}))
            running(one)
            await node.until_told(lambda told: "port-0" in told["holders"])
            await stays(kubelet, lambda: True, SINCE)
            await passes_on(node, kubelet, one)
            await stays(kubelet, lambda: True, SINCE)
            node.configure(bound(SERIAL))
            await eventually(lambda: vfio(drivers), PATIENCE)


def vfio(drivers: SimulatedDrivers) -> bool:
    return drivers.driver(SERIAL) == "vfio-pci"
