# SPDX-License-Identifier: Apache-2.0
"""What tells what a pod has is away, other than before, or hangs: a CDI file, a name of the kernel, a GPU."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator

import pytest

from nodeagent.sim import files
from tests.blackbox.boards import stays
from tests.blackbox.harness import PATIENCE, Node, eventually, health, pod
from tests.blackbox.test_behind import (
    ANSWERED,
    CDI,
    HEAD,
    NODE,
    SERIAL,
    SHARED,
    STICKS,
    with_a_serial_card,
    with_a_stick,
    with_ports,
)
from tests.blackbox.test_behind_away import CARD, INFO, WAITS, Scene, as_a_pod, until_it_waits
from tests.blackbox.test_behind_midway import bound
from tests.blackbox.test_one_group_named import described
from tests.sim import devnodes
from tests.sim.drivers import SimulatedDrivers
from tests.sim.usb import CONTROLLER

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
FILE, TORN = "/etc/cdi/gpu.json", '{"cdiVersion": "0.5.0", "kind": "vendor.exam'
RULES = bound(SERIAL).replace(STICKS, CDI)


@contextlib.asynccontextmanager
async def with_a_cdi_device(node: Node) -> AsyncIterator[Scene]:
    """A daemon that offers it, and a pod that is to have it."""
    async with with_a_serial_card(node, CDI) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        yield Scene(drivers, kubelet, pod("one", {SHARED: 1}))


def changed(node: Node, how: str) -> None:
    """What the tool that has written the file does to it."""
    if how == "removed":
        os.unlink(node.host.path(FILE))
    elif how == "torn":
        node.host.write_file(FILE, TORN)
    else:
        described(node, "0" if how == "another node" else "1", path="/dev/ttyZ")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "torn", "another node", "without the device"])
@pytest.mark.parametrize("since", [True, False], ids=["a rule waited", "the rule comes then"])
async def test_the_card_of_a_cdi_device_is_kept_whatever_becomes_of_its_file(
    node: Node, how: str, since: bool
) -> None:
    """Runtimes have read the file when they made the container."""
    async with with_a_cdi_device(node) as scene:
        await until_it_waits(node, scene, RULES)
        if not since:
            node.configure(HEAD + CDI)
        changed(node, how)
        await stays(scene.kubelet, lambda: scene.drivers.driver(SERIAL) == "serial", 1.0)
        node.configure(RULES)
        await stays(scene.kubelet, lambda: scene.drivers.driver(SERIAL) == "serial", WAITS)
        scene.kubelet.delete(scene.one)
        await eventually(lambda: scene.drivers.driver(SERIAL) == "vfio-pci", ANSWERED)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "torn"])
async def test_a_new_daemon_keeps_all_cards_while_no_file_has_what_a_pod_was_given(
    node: Node, how: str
) -> None:
    async with with_a_serial_card(node, CDI) as drivers, node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
            one = pod("one", {SHARED: 1})
            await until_it_waits(node, Scene(drivers, kubelet, one), RULES)
            changed(node, how)
        async with node.daemon():
            await node.until_told(lambda told: "CDI file" in str(told["changes"]["waiting"]))
            await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", WAITS)
            kubelet.delete(one)
            await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)


@pytest.mark.slow
async def test_the_controller_of_a_stick_is_kept_whose_node_is_not_seen_from_here(node: Node) -> None:
    """Another plugin has given it."""
    async with with_a_stick(node) as drivers, node.kubelet() as kubelet:
        node.configure(HEAD + NODE)
        node.host.write_file("/sys/bus/usb/devices/1-1/uevent", "DEVNAME=bus/usb/001/004\n")
        async with (
            node.daemon(under=as_a_pod(node)),
            with_ports(kubelet, takes=0.1, first="/dev/bus/usb/001/004") as one,
        ):
            wish = f"{HEAD}{NODE}passthrough: [{{match: [{{addresses: ['{CONTROLLER}']}}]}}]\n"
            await until_it_waits(node, Scene(drivers, kubelet, one), wish)
            await stays(kubelet, lambda: drivers.driver(CONTROLLER) == "xhci_hcd", WAITS)


WEDGED = "0000:0a:00.0"


@contextlib.asynccontextmanager
async def beside_a_wedged_gpu(node: Node) -> AsyncIterator[SimulatedDrivers]:
    """The first GPU of NVIDIA's is in order; the driver says nothing of the second one."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    devnodes.add(node.host, "/dev/nvidia0", (195, 0))
    node.host.write_file(f"{INFO}/information", "Device Minor: 0")
    information = f"/proc/driver/nvidia/gpus/{WEDGED}/information"
    files.directory(node.host.path(information.rpartition("/")[0]))
    async with with_a_serial_card(node, STICKS, CARD) as drivers:
        os.mkfifo(node.host.path(information))
        yield drivers


@pytest.mark.slow
async def test_beside_a_gpu_that_does_not_answer_what_a_pod_has_is_kept_and_the_rest_is_bound(
    node: Node,
) -> None:
    async with (
        beside_a_wedged_gpu(node) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=0.1, first="/dev/nvidia0") as one,
    ):
        await until_it_waits(node, Scene(drivers, kubelet, one), bound(CARD, SERIAL))
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", PATIENCE)
        await stays(kubelet, lambda: drivers.driver(CARD) == "nvidia", WAITS)


@pytest.mark.slow
async def test_beside_it_a_gpu_is_kept_that_somebody_takes_from_its_driver_by_hand(node: Node) -> None:
    """Its node has a number that may be the other one's by then."""
    async with (
        beside_a_wedged_gpu(node) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=0.1, first="/dev/nvidia0") as one,
    ):
        await until_it_waits(node, Scene(drivers, kubelet, one), bound(CARD))
        shutil.rmtree(node.host.path(INFO))
        node.host.bind(CARD, None)
        await stays(kubelet, lambda: drivers.driver(CARD) is None, WAITS)


@pytest.mark.slow
async def test_a_new_daemon_keeps_a_gpu_of_a_pod_that_cannot_be_woken(node: Node) -> None:
    """Its driver has nothing to say of it."""
    async with (
        beside_a_wedged_gpu(node) as drivers,
        node.kubelet() as kubelet,
        with_ports(kubelet, takes=0.1, first="/dev/nvidia0") as one,
    ):
        async with node.daemon():
            await until_it_waits(node, Scene(drivers, kubelet, one), bound(CARD))
        node.host.write_file(f"{INFO}/information", "")
        async with node.daemon():
            await stays(kubelet, lambda: drivers.driver(CARD) == "nvidia", WAITS)
