# SPDX-License-Identifier: Apache-2.0
"""What another plugin gives in the middle of a change of drivers keeps its driver as well.

A change of a group takes as long as its drivers take to let go; no event tells what others give meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator

import anyio
import pytest

from nodeagent.sim import devnodes
from nodeagent.sim.drivers import SimulatedDrivers, Wrote
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import running, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.test_behind import (
    ANSWERED,
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

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
BESIDE = "0000:08:00.0"
"""Of the group of the serial card, and the first to be moved."""
AGAIN = 6.0  # seconds, in which what was refused is tried again
SOON = 1.9  # seconds
LATE = 1000  # answers
LETS_GO = 0.8  # seconds that its driver takes


def bound(*addresses: str) -> str:
    listed = ", ".join(f"'{each}'" for each in addresses)
    return f"{HEAD}{STICKS}passthrough: [{{match: [{{addresses: [{listed}]}}]}}]\n"


@contextlib.asynccontextmanager
async def with_a_group(node: Node) -> AsyncIterator[SimulatedDrivers]:
    """The serial card, and a GPU whose driver takes its time to let go."""
    node.host.add_function(BESIDE, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=7)
    async with with_a_serial_card(node, STICKS, BESIDE) as drivers:
        drivers.faults.set(f"unbind:{BESIDE}", LETS_GO)
        yield drivers


async def given_midway(node: Node, drivers: SimulatedDrivers, kubelet: Kubelet, one: Pod) -> None:
    """The first function is on its way, and then the pod gets the node of the second one."""
    await eventually(lambda: Wrote("unbind", BESIDE) in drivers.writes, PATIENCE)
    assert drivers.driver(BESIDE) == "nvidia"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, one)
        await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
        assert drivers.driver(BESIDE) == "nvidia"
        await keeps(drivers, SERIAL, "serial")
    running(one)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rule", "hand"])
async def test_what_is_given_while_the_first_function_of_a_group_is_let_go_is_kept(
    node: Node, how: str
) -> None:
    async with (
        with_a_group(node) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=6.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        async with anyio.create_task_group() as tasks:
            if how == "hand":
                tasks.start_soon(node.command, "bind", SERIAL, BESIDE)
            else:
                node.configure(bound(SERIAL, BESIDE))
            await given_midway(node, drivers, kubelet, one)
        await eventually(lambda: drivers.driver(BESIDE) == "nvidia", PATIENCE)
        assert drivers.driver(SERIAL) == "serial"


@pytest.mark.slow
async def test_the_group_is_bound_when_who_was_given_a_part_midway_has_ended(node: Node) -> None:
    async with (
        with_a_group(node) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=6.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        node.configure(bound(SERIAL, BESIDE))
        await given_midway(node, drivers, kubelet, one)
        told = await node.until_told(lambda told: "/dev/ttyX" in str(told["changes"]["waiting"]))
        assert told["changes"]["failing"] == []  # it waits for the pod, not for a time
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)
        await eventually(lambda: drivers.driver(BESIDE) == "vfio-pci", PATIENCE)


@pytest.mark.slow
async def test_a_group_is_bound_soon_after_the_kubelet_was_silent_in_the_middle_of_its_change(
    node: Node,
) -> None:
    """Who asks in the middle is the first to hear nothing; the kubelet is asked again all the same."""
    async with with_a_group(node) as drivers, node.kubelet() as kubelet, node.daemon():
        await stays(kubelet, lambda: True, SINCE)
        node.configure(bound(SERIAL, BESIDE))
        await eventually(lambda: Wrote("unbind", BESIDE) in drivers.writes, PATIENCE)
        kubelet.faults.set("pod-resources-exhausted", True)
        await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", 3.0)
        kubelet.faults.clear("pod-resources-exhausted")
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)
        await eventually(lambda: drivers.driver(BESIDE) == "vfio-pci", PATIENCE)


async def at_an_answer(kubelet: Kubelet, seconds: float, number: int) -> None:
    """From now on all answers are on their way for so long; wait until that one was made."""
    late = [seconds] * LATE
    kubelet.faults.set("pod-resources-late", late)
    await eventually(lambda: len(late) <= LATE - number, PATIENCE)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("seconds", [0.4, 2.0])
async def test_what_is_given_while_an_answer_of_the_kubelet_is_on_its_way_is_there_when_the_pod_is_started(
    node: Node, seconds: float, number: int
) -> None:
    """The answer was made before, and comes after; the function comes back by one that was made later."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=3 * seconds + 2.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        node.configure(bound(SERIAL))
        await at_an_answer(kubelet, seconds, number)
        await kubelet.admit(one)
        running(one)
        assert drivers.driver(SERIAL) == "serial"
        await keeps(drivers, SERIAL, "serial")


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


async def with_its_node(drivers: SimulatedDrivers, late: float) -> None:
    """The node goes with the driver, and comes so many seconds after it, as namespaces of NVMe disks do."""
    had = True
    while True:
        has = drivers.driver(SERIAL) == "serial"
        if had and not has:
            os.unlink(drivers.host.path("/dev/ttyX"))
            shutil.rmtree(drivers.host.path("/sys/dev/char/188:9"))
        if has and not had:
            await anyio.sleep(late)
        if drivers.driver(SERIAL) == "serial" and has and not had:
            at = f"{devnodes.real_directory(drivers.host, SERIAL)}/ttyX"
            devnodes.add(drivers.host, "/dev/ttyX", (188, 9), at)
        had = has
        await anyio.sleep(0.002)


@contextlib.asynccontextmanager
async def with_late_nodes(
    node: Node, takes: float, late: float
) -> AsyncIterator[tuple[SimulatedDrivers, Kubelet, Pod]]:
    """The serial card with its node, a daemon at rest, and a pod that is to get the node."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes) as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(with_its_node, drivers, late)
        await stays(kubelet, lambda: True, SINCE)
        yield drivers, kubelet, one
        tasks.cancel_scope.cancel()


async def given_while_it_lets_go(
    drivers: SimulatedDrivers, kubelet: Kubelet, one: Pod, before: int = 0
) -> None:
    """The pod gets the node while its driver lets go; and all goes back. ``before``: so many writes came."""
    await eventually(lambda: Wrote("unbind", SERIAL) in drivers.writes[before:], PATIENCE)
    running(await kubelet.admit(one))
    await eventually(lambda: Wrote("reprobe", SERIAL) in drivers.writes[before:], PATIENCE)
    assert Wrote("probe", SERIAL) not in drivers.writes[before:]


async def who_has_the_other_node(node: Node, kubelet: Kubelet, name: str) -> Pod:
    """A pod that has been given /dev/ttyOTHER by the plugin of the ports."""
    devnodes.add(node.host, "/dev/ttyOTHER", (188, 10))
    one = await kubelet.admit(pod(name, {PORT: 1}))
    running(one)
    await node.until_told(lambda told: "port-0" in told["holders"])
    return one


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 0.5])
@pytest.mark.parametrize("takes", [0.3, 4.0], ids=["written by then", "not written by then"])
async def test_what_is_given_while_its_own_driver_lets_go_comes_back_and_stays(
    node: Node, takes: float, late: float
) -> None:
    """Nobody has looked before what is behind that node, and now it is gone."""
    async with with_late_nodes(node, takes, late) as (drivers, kubelet, one):
        drivers.faults.set(f"unbind:{SERIAL}", LETS_GO)
        node.configure(bound(SERIAL))
        await given_while_it_lets_go(drivers, kubelet, one)
        await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", AGAIN)


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
