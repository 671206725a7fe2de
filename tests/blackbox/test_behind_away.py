# SPDX-License-Identifier: Apache-2.0
"""What a pod has is away for a moment, wholly or in part, or cannot be seen from here: its function is kept.

A node may stay while what is behind it is away: NVIDIA's are made by a tool, not by the kernel. A disk with
two ways loses one of them. And where nodeagent is a pod, it may have a /dev of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import anyio
import pytest

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim import files
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import running, stays
from tests.blackbox.harness import Node, eventually, health, pod
from tests.blackbox.test_behind import (
    ANSWERED,
    CDI,
    SERIAL,
    SHARED,
    SINCE,
    STICKS,
    with_a_serial_card,
    with_ports,
)
from tests.blackbox.test_behind_midway import bound
from tests.sim import devnodes
from tests.sim.drivers import SimulatedDrivers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
CARD = "0000:09:00.0"
INFO = f"/proc/driver/nvidia/gpus/{CARD}"
WAITS = 4.0  # seconds: a driver is changed in less than one


class Scene(NamedTuple):
    """A node at rest with a daemon, and a pod that has what it has, or is to get it."""

    drivers: SimulatedDrivers
    kubelet: FakeKubelet
    one: Pod


async def told_by_its_driver(drivers: SimulatedDrivers) -> None:
    """NVIDIA's driver tells of the GPU in /proc while it has it; the node stays."""
    told = False
    while True:
        has = drivers.driver(CARD) == "nvidia"
        if has and not told:
            drivers.host.write_file(f"{INFO}/information", "Device Minor: 0")
        elif told and not has:
            shutil.rmtree(drivers.host.path(INFO))
        told = has
        await anyio.sleep(0.002)


@contextlib.asynccontextmanager
async def with_a_gpu(node: Node) -> AsyncIterator[Scene]:
    """Another plugin gives /dev/nvidia0."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    devnodes.add(node.host, "/dev/nvidia0", (195, 0))
    async with (
        with_a_serial_card(node, STICKS, CARD) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        with_ports(kubelet, takes=0.1, first="/dev/nvidia0") as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(told_by_its_driver, drivers)
        await stays(kubelet, lambda: True, SINCE)
        yield Scene(drivers, kubelet, one)
        tasks.cancel_scope.cancel()


async def until_it_waits(node: Node, scene: Scene, rules: str) -> None:
    """The pod has it, and the rule has to wait."""
    running(await scene.kubelet.admit(scene.one))
    await node.until_told(lambda told: bool(told["holders"]))
    await stays(scene.kubelet, lambda: True, SINCE)
    node.configure(rules)
    await node.until_told(lambda told: "ns/one" in str(told["changes"]))


@pytest.mark.slow
async def test_a_gpu_is_kept_that_somebody_takes_from_its_driver_by_hand(node: Node) -> None:
    async with with_a_gpu(node) as scene:
        await until_it_waits(node, scene, bound(CARD))
        node.host.bind(CARD, None)
        await stays(scene.kubelet, lambda: scene.drivers.driver(CARD) is None, WAITS)
        scene.kubelet.delete(scene.one)
        await eventually(lambda: scene.drivers.driver(CARD) == "vfio-pci", ANSWERED)


@pytest.mark.slow
async def test_a_gpu_is_kept_that_was_removed_and_is_found_again(node: Node) -> None:
    """Its driver takes a while to come, too."""
    async with with_a_gpu(node) as scene:
        await until_it_waits(node, scene, bound(CARD))
        node.host.unplug(CARD)
        await stays(scene.kubelet, lambda: True, 1.0)
        node.host.plug(CARD)
        scene.drivers.follow(CARD, "nvidia")
        await stays(scene.kubelet, lambda: scene.drivers.driver(CARD) is None, WAITS)


@pytest.mark.slow
async def test_the_card_of_a_cdi_device_is_kept_while_its_node_is_away(node: Node) -> None:
    async with with_a_serial_card(node, CDI) as drivers, node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: "Healthy" in health(kubelet, SHARED).values())
        scene = Scene(drivers, kubelet, pod("one", {SHARED: 1}))
        await until_it_waits(node, scene, bound(SERIAL).replace(STICKS, CDI))
        os.unlink(node.host.path("/dev/ttyX"))
        shutil.rmtree(node.host.path("/sys/dev/char/188:9"))
        await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", WAITS)


class Names(foreign.Foreign):
    """Another plugin that gives a CDI device."""

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        """With its name."""
        answer = await super().allocate(message)
        for each in answer.container_responses:
            each.cdi_devices.append(v1beta1.CdiDevice("vendor.example/gpu=0"))
        return answer


ONE_WAY, OTHER_WAY = "0000:0a:00.0", "0000:0b:00.0"
SUBSYSTEM = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0"


def add_disk(node: Node) -> None:
    """An NVMe disk with a controller on each of two functions, as the kernel shows it."""
    files.directory(node.host.path(f"{SUBSYSTEM}/nvme0n1"))
    for number, address in enumerate((ONE_WAY, OTHER_WAY)):
        node.host.add_function(
            address, vendor="144d", device="a80a", pci_class="010802", driver="nvme", group=20 + number
        )
        controller = f"{devnodes.real_directory(node.host, address)}/nvme/nvme{number}"
        files.directory(node.host.path(controller))
        node.host.tree.link(f"{SUBSYSTEM}/nvme{number}", controller)
    files.directory(node.host.path("/sys/dev/block/259:0"))
    node.host.tree.link("/sys/dev/block/259:0/device", SUBSYSTEM)
    files.directory(node.host.path("/dev"))
    os.mknod(node.host.path("/dev/nvme0n1"), stat.S_IFBLK | 0o600, os.makedev(259, 0))


def as_a_pod(node: Node) -> list[str]:
    """What to run the daemon under: of the host's /dev it has /dev/vfio alone."""
    dev, kept = node.host.path("/dev"), node.host.path("/kept")
    for directory in (f"{dev}/vfio", kept):
        files.directory(directory)
    script = (
        f"mount --bind {dev}/vfio {kept} && mount -t tmpfs none {dev} && mkdir {dev}/vfio"
        f' && mount --bind {kept} {dev}/vfio && exec "$@"'
    )
    return ["unshare", "-m", "sh", "-c", script, "sh"]


@pytest.mark.slow
async def test_a_card_is_kept_of_which_a_pod_has_a_node_that_is_not_seen_from_here(node: Node) -> None:
    """The kernel has it by its name all the same."""
    async with with_a_serial_card(node, STICKS) as drivers, node.kubelet() as kubelet:
        behind = f"{devnodes.real_directory(node.host, SERIAL)}/ttyX"
        devnodes.named(node.host, "ttyX", "tty", behind)
        async with node.daemon(under=as_a_pod(node)), with_ports(kubelet, takes=0.1) as one:
            await until_it_waits(node, Scene(drivers, kubelet, one), bound(SERIAL))
            await stays(kubelet, lambda: drivers.driver(SERIAL) == "serial", WAITS)
            kubelet.delete(one)
            await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", ANSWERED)


def kvm(node: Node) -> tuple[str, list[str]]:
    """virt-handler's plugin gives it to each virtual machine."""
    devnodes.add(node.host, "/dev/kvm", (10, 232))
    return "/dev/kvm", as_a_pod(node)


def of_a_driver_in_a_container(node: Node) -> tuple[str, list[str]]:
    """What is below /run is not mounted where nodeagent runs."""
    path = "/run/nvidia/driver/dev/nvidia1"
    devnodes.add(node.host, path, (195, 1))
    hidden = f'mount -t tmpfs none {node.host.path("/run/nvidia")} && exec "$@"'
    return path, ["unshare", "-m", "sh", "-c", hidden, "sh"]


@pytest.mark.slow
@pytest.mark.parametrize("given", [kvm, of_a_driver_in_a_container])
async def test_a_driver_change_waits_while_a_pod_has_a_node_that_the_daemon_does_not_see(
    node: Node, given: Callable[[Node], tuple[str, list[str]]]
) -> None:
    """The status names the pod, and the change is made when that has ended."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=9)
    path, under = given(node)
    async with (
        with_a_serial_card(node, STICKS, CARD) as drivers,
        node.kubelet() as kubelet,
        node.daemon(under=under),
        with_ports(kubelet, takes=0.1, first=path) as one,
    ):
        await until_it_waits(node, Scene(drivers, kubelet, one), bound(CARD))
        await stays(kubelet, lambda: not drivers.writes, SINCE)
        kubelet.delete(one)
        await eventually(lambda: drivers.driver(CARD) == "vfio-pci", ANSWERED)
