# SPDX-License-Identifier: Apache-2.0
"""The function behind what a pod has, a USB device or a node, keeps its driver, and is given to nobody else.

Whoever has it opens it when it is needed: that nothing has it open proves nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import pytest

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import named, running, stays
from tests.blackbox.harness import PATIENCE, Node, allocate, eventually, health, pod
from tests.blackbox.plugs import ONE, all_seen, plugged, stick
from tests.blackbox.test_one_group_named import described
from tests.facts import names
from tests.sim import devnodes, plugin
from tests.sim.drivers import SimulatedDrivers, simulated
from tests.sim.usb import CONTROLLER

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
BOUND, SHARED = "example.com/bound", "example.com/shared"
HEAD = "apiVersion: nodeagent/v1\ndiscovery: {enabled: false}\nresources:\n"
STICKS = f"  - {{name: {ONE}, usb: [{{vendors: ['46f4']}}]}}\n"
NODE = f"  - {{name: {SHARED}, node: {{paths: ['/dev/tty*'], perPath: true}}}}\n"
SHARES = f"  - {{name: {SHARED}, node: {{path: /dev/ttyX, count: 4}}}}\n"
CDI = f"  - {{name: {SHARED}, cdiDevices: {{kind: vendor.example/gpu}}}}\n"
SERIAL = "0000:07:00.0"
PORT = "vendor.example/serial"
LONG = 4.0  # seconds: a driver is changed in less than one
SINCE = 3.0  # seconds after which nobody asks the kubelet because of what came before
ANSWERED = (
    25.0  # seconds: a kubelet that was silent is asked again after ten at most, and a hung question ends
)
GIVEN = 12.0  # seconds for which what the kubelet never names may be given


def wished(node: Node, rules: str, passthrough: str = "") -> None:
    """These rules, and a function that is to be bound and offered."""
    more = f"""  - {{name: {BOUND}, pci: [{{addresses: ["{passthrough}"]}}]}}
passthrough: [{{match: [{{addresses: ["{passthrough}"]}}]}}]
"""
    node.configure(HEAD + rules + (more if passthrough else ""))


@contextlib.asynccontextmanager
async def with_a_stick(node: Node) -> AsyncIterator[SimulatedDrivers]:
    all_seen(node)
    node.host.add_function(
        CONTROLLER, vendor="8086", device="a36d", pci_class="0c0330", driver="xhci_hcd", group=50
    )
    plugged(node, "1-1", stick("A"), 4)
    node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    wished(node, STICKS)
    async with simulated(node.host, CONTROLLER) as drivers:
        yield drivers


async def given(node: Node, kubelet: FakeKubelet) -> None:
    await kubelet.until_listed(ONE, 1)
    one = await kubelet.admit(pod("one", {ONE: 1}))
    running(one)
    await named(node, "46f4:0001-A", one)


async def waits(node: Node, drivers: SimulatedDrivers, address: str, driver: str) -> None:
    """The driver stays, and it is told why."""
    await node.until_told(lambda told: "ns/one" in str(told["changes"]))
    await keeps(drivers, address, driver)


async def keeps(drivers: SimulatedDrivers, address: str, driver: str) -> None:
    with contextlib.suppress(TimeoutError):
        await eventually(lambda: drivers.driver(address) != driver, LONG)
    assert drivers.driver(address) == driver


@pytest.mark.slow
@pytest.mark.parametrize("rules", [STICKS, ""], ids=["stays", "is gone"])
async def test_the_controller_of_a_usb_device_is_kept_though_its_rule(node: Node, rules: str) -> None:
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet, node.daemon():
        await given(node, kubelet)
        wished(node, rules or NODE, CONTROLLER)
        await waits(node, drivers, CONTROLLER, "xhci_hcd")


@pytest.mark.slow
@pytest.mark.parametrize("rules", [STICKS, ""], ids=["stays", "is gone"])
async def test_a_new_daemon_keeps_the_controller_though_the_rule(node: Node, rules: str) -> None:
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet:
        async with node.daemon():
            await given(node, kubelet)
        wished(node, rules or NODE, CONTROLLER)
        async with node.daemon():
            await waits(node, drivers, CONTROLLER, "xhci_hcd")


@pytest.mark.slow
async def test_the_controller_is_bound_when_the_pod_has_ended(node: Node) -> None:
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(ONE, 1)
        one = await kubelet.admit(pod("one", {ONE: 1}))
        await named(node, "46f4:0001-A", one)
        wished(node, STICKS, CONTROLLER)
        await waits(node, drivers, CONTROLLER, "xhci_hcd")
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(CONTROLLER) == "vfio-pci")


async def test_nobody_binds_the_controller_by_hand(node: Node) -> None:
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet, node.daemon():
        await given(node, kubelet)
        said = await node.command("bind", CONTROLLER)
        assert said.returncode != 0
        names(said.stdout + said.stderr, "ns/one", "46f4:0001-A")
        assert drivers.driver(CONTROLLER) == "xhci_hcd"


@pytest.mark.slow
async def test_what_the_kubelet_does_not_name_yet_is_kept_for_a_while(node: Node) -> None:
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(ONE, 1)
        await allocate(kubelet, ONE, ["46f4:0001-A"])
        wished(node, STICKS, CONTROLLER)
        await keeps(drivers, CONTROLLER, "xhci_hcd")
        await eventually(lambda: drivers.driver(CONTROLLER) == "vfio-pci", GIVEN)


@contextlib.asynccontextmanager
async def with_a_serial_card(node: Node, rules: str, *beside: str) -> AsyncIterator[SimulatedDrivers]:
    all_seen(node)
    node.host.add_function(SERIAL, vendor="10b5", device="9030", pci_class="070002", driver="serial", group=7)
    at = f"{devnodes.real_directory(node.host, SERIAL)}/ttyX"
    devnodes.add(node.host, "/dev/ttyX", (188, 9), at)
    node.host.write_file(f"{at}/dev", "188:9\n")
    described(node, path="/dev/ttyX")
    node.host.write_file("/proc/1/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw")
    wished(node, rules)
    async with simulated(node.host, SERIAL, *beside) as drivers:
        yield drivers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "then"),
    [(NODE, NODE), (NODE, STICKS), (SHARES, SHARES), (SHARES, STICKS), (CDI, CDI)],
    ids=["node", "node, and the rule is gone", "share", "share, and the rule is gone", "CDI device"],
)
async def test_the_function_is_kept_of_which_a_container_has_a(node: Node, rules: str, then: str) -> None:
    async with with_a_serial_card(node, rules) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        running(await kubelet.admit(pod("one", {SHARED: 1})))
        await node.until_told(lambda told: "ns/one" in str(told["holders"]))
        wished(node, then, SERIAL)
        await waits(node, drivers, SERIAL, "serial")


@pytest.mark.slow
@pytest.mark.parametrize("rules", [NODE, SHARES, CDI], ids=["node", "share", "CDI device"])
async def test_the_function_is_kept_for_a_while_of_which_somebody_was_given_a(node: Node, rules: str) -> None:
    async with with_a_serial_card(node, rules) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        device = next(iter(health(kubelet, SHARED)))
        await allocate(kubelet, SHARED, [device])
        wished(node, rules, SERIAL)
        await keeps(drivers, SERIAL, "serial")
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", GIVEN)


def the_node_first(kubelet: FakeKubelet, resource: str = SHARED) -> None:
    """The kubelet asks for the resources of a container in any order."""
    for seed in range(20):
        wishes = [resource, foreign.NIC]
        random.Random(seed).shuffle(wishes)
        if wishes[0] == resource:
            return kubelet.state.random.seed(seed)
    raise AssertionError("no order of all has it first")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rule", "hand"])
@pytest.mark.parametrize("rules", [NODE, SHARES, CDI], ids=["node", "share", "CDI device"])
async def test_the_function_is_kept_while_another_plugin_takes_its_time(
    node: Node, rules: str, how: str
) -> None:
    """The kubelet names the pod, and writes what it was given when it has got all that it asks for."""
    async with with_a_serial_card(node, rules) as drivers, node.kubelet() as kubelet, node.daemon() as daemon:
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        async with foreign.serving(kubelet, "nic-0", takes=5.0):
            the_node_first(kubelet)
            one = pod("one", {SHARED: 1, foreign.NIC: 1})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.admit, one)
                await daemon.logged("allocated")
                await node.until_told(lambda told: bool(told["holders"]))
                assert one.phase == "Pending"
                if how == "hand":
                    assert (await node.command("bind", SERIAL)).returncode != 0
                else:
                    wished(node, rules, SERIAL)
            running(one)
            await keeps(drivers, SERIAL, "serial")


@pytest.mark.parametrize("rules", [NODE, SHARES, CDI], ids=["node", "share", "CDI device"])
async def test_nobody_binds_it_by_hand_where_no_daemon_runs(node: Node, rules: str) -> None:
    async with with_a_serial_card(node, rules) as drivers, node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
            running(await kubelet.admit(pod("one", {SHARED: 1})))
            await node.until_told(lambda told: "ns/one" in str(told["holders"]))
        said = await node.command("bind", SERIAL)
        assert said.returncode != 0
        assert "ns/one" in said.stdout + said.stderr
        assert drivers.driver(SERIAL) == "serial"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "then"),
    [(NODE, "stays"), (NODE, "is gone"), (SHARES, "stays"), (SHARES, "is gone"), (CDI, "stays")],
    ids=["node, stays", "node, is gone", "share, stays", "share, is gone", "CDI device, stays"],
)
async def test_a_new_daemon_keeps_it_while_another_plugin_takes_its_time_though_the_rule(
    node: Node, rules: str, then: str
) -> None:
    """The kubelet names the pod, and what it was given is in no file yet."""
    async with (
        with_a_serial_card(node, rules) as drivers,
        node.kubelet() as kubelet,
        node.daemon() as daemon,
        foreign.serving(kubelet, "nic-0", takes=7.0),
    ):
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        the_node_first(kubelet)
        one = pod("one", {SHARED: 1, foreign.NIC: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, one)
            await daemon.logged("allocated")
            await node.until_told(lambda told: bool(told["holders"]))
            await daemon.end()
            wished(node, rules if then == "stays" else STICKS, SERIAL)
            async with node.daemon():
                await kubelet.until(lambda: one.phase != "Pending", 2 * PATIENCE)
                running(one)
                await keeps(drivers, SERIAL, "serial")


class Ports(foreign.Foreign):
    """Another plugin, which gives a node as well: to each pod the next of these, and then the last."""

    nodes: Sequence[str] = ("/dev/ttyX",)

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        answer = await super().allocate(message)
        node, self.nodes = self.nodes[0], self.nodes[1:] or self.nodes
        for each in answer.container_responses:
            each.devices.append(v1beta1.DeviceSpec(node, node, "rw"))
        return answer


@contextlib.asynccontextmanager
async def with_ports(kubelet: FakeKubelet, takes: float, first: str = "/dev/ttyX") -> AsyncIterator[Pod]:
    """Two other plugins: one gives the node, the other one takes its time; and who wants of both.

    ``first``: what the first one gets whom it gives anything.
    """
    ports = Ports(plugin.device("port-0"))
    ports.nodes = (first, "/dev/ttyX")
    ports.refusal = None
    async with (
        plugin.served(kubelet, ports, "port.sock"),
        foreign.serving(kubelet, "nic-0", takes=takes),
    ):
        await plugin.register(kubelet, "port.sock", PORT)
        await kubelet.until_listed(PORT, 1)
        the_node_first(kubelet, PORT)
        yield pod("one", {PORT: 1, foreign.NIC: 1})


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a rule", "hand"])
async def test_what_another_plugin_gave_is_kept_while_a_third_takes_its_time(node: Node, how: str) -> None:
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=5.0) as one,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, one)
            await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
            assert one.phase == "Pending"
            if how == "hand":
                assert (await node.command("bind", SERIAL)).returncode != 0
            else:
                wished(node, STICKS, SERIAL)
        running(one)
        await keeps(drivers, SERIAL, "serial")


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["done", "told only"])
async def test_what_another_plugin_gave_is_kept_by_hand_though_nobody_has_asked_since(
    node: Node, flags: Sequence[str]
) -> None:
    """No event tells what other plugins give before the kubelet writes its file."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=8.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, one)
            await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
            said = await node.command("bind", *flags, SERIAL)
            assert said.returncode != 0
            names(said.stdout + said.stderr, "ns/one", "/dev/ttyX")
        running(one)
        await keeps(drivers, SERIAL, "serial")


def refuses(kubelet: FakeKubelet) -> None:
    kubelet.faults.set("pod-resources-exhausted", True)


def is_slow(kubelet: FakeKubelet) -> None:
    kubelet.faults.set("pod-resources-delay", 3.0)


def hangs(kubelet: FakeKubelet) -> None:
    kubelet.faults.set("pod-resources-delay", 600.0)


@pytest.mark.slow
@pytest.mark.parametrize("silence", [refuses, is_slow, hangs])
@pytest.mark.parametrize("how", ["a rule", "hand"])
async def test_what_another_plugin_gave_is_kept_though_the_kubelet(
    node: Node, how: str, silence: Callable[[FakeKubelet], None]
) -> None:
    """What it does not say, somebody may have; the rule has its way when it has said it, and nobody has."""
    async with (
        with_a_serial_card(node, STICKS) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=12.0) as one,
    ):
        await stays(kubelet, lambda: True, SINCE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, one)
            await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
            silence(kubelet)
            if how == "hand":
                assert (await node.command("bind", SERIAL)).returncode != 0
            else:
                node.configure(f"{HEAD}{STICKS}passthrough: [{{match: [{{addresses: ['{SERIAL}']}}]}}]\n")
        running(one)
        await keeps(drivers, SERIAL, "serial")
        if how == "a rule":
            kubelet.faults.clear("pod-resources-exhausted")
            kubelet.faults.clear("pod-resources-delay")
            kubelet.delete(one)
            await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)


@pytest.mark.slow
async def test_what_another_plugin_gave_is_kept_when_a_binding_is_tried_again(node: Node) -> None:
    """Nothing has changed since the kernel refused it, as far as anybody was told."""
    async with with_a_serial_card(node, STICKS) as drivers, node.kubelet() as kubelet:
        fault = f"override:{SERIAL}"
        drivers.faults.set(fault, "lost")
        wished(node, STICKS, SERIAL)
        async with node.daemon() as daemon, with_ports(kubelet, takes=12.0) as one:
            await daemon.logged("action-failed")
            await stays(kubelet, lambda: True, SINCE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.admit, one)
                await kubelet.until(lambda: "nic-0" in kubelet.state.allocating, PATIENCE)
                drivers.faults.clear(fault)
            running(one)
            await keeps(drivers, SERIAL, "serial")
