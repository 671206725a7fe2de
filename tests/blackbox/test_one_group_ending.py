# SPDX-License-Identifier: Apache-2.0
"""Who had a device open and is ending has it yet, whenever that begins; who let go of it has it no more.

A process that ends has no table of descriptors, so what it had must have been seen before.
"""

from __future__ import annotations

import os

import anyio
import pytest

from nodeagent.sim import files
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    GPU,
    Board,
    add_usb,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_counts import ENDING, OLD, QEMU, process
from tests.blackbox.test_one_group_looks import OTHER
from tests.blackbox.test_one_group_open import with_a_node_open
from tests.blackbox.test_one_group_seen import ENDS, alias

pytestmark = pytest.mark.slow

MODULE = "/sys/module/nvidia_vgpu_vfio"


def another(node: Node, group: str, *, flags: int = 0, state: str = "S") -> None:
    """A second process, which has the node of the group open until it ends."""
    files.directory(node.host.path(f"{OTHER}/fd"))
    node.host.write_file(f"{OTHER}/comm", "qemu-kvm")
    node.host.write_file(
        f"{OTHER}/stat", f"4713 (qemu-kvm) {state} 1 4713 4713 0 -1 {flags} {'0 ' * 10}1 0 0"
    )
    if not flags:
        node.host.tree.link(f"{OTHER}/fd/7", f"/dev/vfio/{group}")


def hangs_as_it_ends(node: Node) -> None:
    """The first process has closed its devices, and waits in the kernel for a disk that is gone."""
    process(node, flags=ENDING, state="D")
    if os.path.lexists(node.host.path(f"{QEMU}/fd/7")):
        node.host.tree.remove(f"{QEMU}/fd/7")


def instances(node: Node, count: int) -> None:
    """How many mdevs of the driver are open, as its module counts them."""
    link = node.host.path("/sys/bus/mdev/drivers/nvidia-vgpu-vfio/module")
    if not os.path.lexists(link):
        node.host.tree.link("/sys/bus/mdev/drivers/nvidia-vgpu-vfio/module", MODULE)
    node.host.write_file("/proc/modules", f"nvidia_vgpu_vfio 81920 {count} - Live 0x0\n")


async def later_with_a_node_open(node: Node, kubelet: FakeKubelet, board: Board, path: str = "") -> Pod:
    """A pod with the GPU, whose process has the node of the group open, when the daemon is no young one."""
    await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Healthy", OLD)
    return await with_a_node_open(node, kubelet, board, path)


async def forgotten_counted(node: Node, kubelet: FakeKubelet, board: Board, path: str = "") -> None:
    """A pod was forgotten whose process has the GPU open: the daemon sees the group, and its count."""
    old = await later_with_a_node_open(node, kubelet, board, path)
    node.host.hold(board.gpu)
    kubelet.delete(old)


async def test_a_group_that_was_closed_once_is_looked_at_again_after_a_count_told_that_it_is_open(
    node: Node,
) -> None:
    """Its node has another name in the container, and is closed after the device."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        first = await kubelet.admit(pod("first", {GPU: 1}))
        running(first)
        kubelet.delete(first)
        await forgotten_counted(node, kubelet, board, alias(node, board.group))
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        node.host.release(board.gpu)
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        node.host.tree.remove(f"{QEMU}/fd/7")
    running(new)


async def test_a_device_that_a_living_process_has_closed_is_given_though_that_hangs_later_as_it_ends(
    node: Node,
) -> None:
    process(node)
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten_counted(node, kubelet, board)
        assert "see process 4711" in await refusal(kubelet, GPU, board.gpu)
        node.host.tree.remove(f"{QEMU}/fd/7")
        node.host.release(board.gpu)
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Healthy", ENDS)
        hangs_as_it_ends(node)
        running(await kubelet.admit(pod("new", {GPU: 1})))


async def test_a_device_that_was_plugged_again_is_given_though_the_process_hangs_that_had_the_one_before(
    node: Node,
) -> None:
    """The kernel takes no device away that is open."""
    process(node)
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten_counted(node, kubelet, board)
        assert "see process 4711" in await refusal(kubelet, GPU, board.gpu)
        hangs_as_it_ends(node)
        node.host.release(board.gpu)
        for address in (board.gpu, board.usb):
            node.host.unplug(address)
        await kubelet.until(lambda: board.gpu not in health(kubelet, GPU), PATIENCE)
        await stays(kubelet, lambda: board.gpu not in health(kubelet, GPU), OLD)
        node.add_gpu(board.gpu, int(board.group))
        add_usb(node, board.usb, int(board.group), "1ad8")
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        running(await kubelet.admit(pod("new", {GPU: 1})))
