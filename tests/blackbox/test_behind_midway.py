# SPDX-License-Identifier: Apache-2.0
"""What another plugin gives in the middle of a change of drivers keeps its driver as well.

A change of a group takes as long as its drivers take to let go; no event tells what others give meanwhile.
"""

from __future__ import annotations

import os
import signal

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import named, running, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.test_behind import (
    HEAD,
    PORT,
    SERIAL,
    SINCE,
    STICKS,
    keeps,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_bindings_faults import killing
from tests.sim import devnodes

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
BESIDE = "0000:08:00.0"
"""Of the group of the serial card, and the first to be moved."""
AGAIN = 6.0  # seconds, in which what was refused is tried again
SOON = 1.9  # seconds
LATE = 1000  # answers


def bound(*addresses: str) -> str:
    listed = ", ".join(f"'{each}'" for each in addresses)
    return f"{HEAD}{STICKS}passthrough: [{{match: [{{addresses: [{listed}]}}]}}]\n"


@pytest.mark.slow
async def test_what_is_on_vfio_goes_back_though_a_pod_is_being_given_what_nobody_knows_yet(
    node: Node,
) -> None:
    """Whatever that is, it is not behind a function on VFIO."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=6.0) as one,
        anyio.create_task_group() as tasks,
    ):
        node.configure(bound(SERIAL))
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", PATIENCE)
        tasks.start_soon(kubelet.admit, one)
        await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
        node.configure(HEAD + STICKS)
        await eventually(lambda: drivers.driver(SERIAL) == "serial", SOON)
        assert one.phase == "Pending"


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.4, 2.0])
async def test_a_device_allocated_while_an_answer_of_pod_resources_is_on_its_way_keeps_its_driver(
    node: Node, seconds: float
) -> None:
    """The answer was made before; the checkpoint that is written after it decides."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=3 * seconds + 2.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        node.configure(bound(SERIAL))
        late = [seconds]
        kubelet.faults.set("pod-resources-late", late)
        await eventually(lambda: not late, PATIENCE)
        await kubelet.admit(one)
        running(one)
        await keeps(drivers, SERIAL, "serial")
        assert not drivers.writes


async def who_has_the_other_node(node: Node, kubelet: FakeKubelet, name: str) -> Pod:
    """A pod that has been given /dev/ttyOTHER by the plugin of the ports."""
    devnodes.add(node.host, "/dev/ttyOTHER", (188, 10))
    one = await kubelet.admit(pod(name, {PORT: 1}))
    running(one)
    await named(node, "port-0", one)
    return one


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rule", "hand"])
async def test_the_answer_of_the_pod_before_is_not_that_of_the_next_one_with_the_same_id(
    node: Node, how: str
) -> None:
    """The kubelet's file has it until the next one has got all that it asks for."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=6.0, first="/dev/ttyOTHER") as two,
    ):
        kubelet.delete(await who_has_the_other_node(node, kubelet, "former"))
        await stays(kubelet, lambda: True, SINCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, two)
            await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
            if how == "hand":
                assert (await node.command("bind", SERIAL)).returncode != 0
            else:
                node.configure(bound(SERIAL))
        running(two)
        await keeps(drivers, SERIAL, "serial")


@pytest.mark.slow
async def test_an_override_that_a_killed_daemon_has_left_is_taken_away_under_a_pod(node: Node) -> None:
    """The function is on its own driver: nothing is taken from anybody."""
    async with with_a_serial_card(node, STICKS) as drivers, node.kubelet() as kubelet:
        drivers.faults.set(f"unbind:{SERIAL}", "lost")
        async with node.daemon() as daemon:
            drivers.around = killing(daemon, 1, True)
            node.configure(bound(SERIAL))
            assert await daemon.process.wait() == -signal.SIGKILL
        assert (drivers.driver(SERIAL), drivers.override(SERIAL)) == ("serial", "vfio-pci")
        drivers.around = lambda number, done: None
        node.configure(HEAD + STICKS)
        async with with_ports(kubelet, takes=0.1) as one:
            running(await kubelet.admit(one))
            async with node.daemon() as daemon:
                await eventually(lambda: not drivers.override(SERIAL), PATIENCE)
                assert "driver_override" in (await daemon.logged("action-done"))["action"]
                await keeps(drivers, SERIAL, "serial")
