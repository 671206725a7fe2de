# SPDX-License-Identifier: Apache-2.0
"""Who had a device open and is ending has it yet, whenever that begins; who let go of it has it no more.

A process that ends has no table of descriptors, so what it had must have been seen before.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.sim import files
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    GPU,
    USB,
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
from tests.blackbox.test_one_group_counts import ENDING, MDEVS, OLD, QEMU, mdevs_offered, process
from tests.blackbox.test_one_group_left_open import left_open, slow_to_tell
from tests.blackbox.test_one_group_looks import OTHER, unseen
from tests.blackbox.test_one_group_open import LET_GO, with_a_node_open
from tests.blackbox.test_one_group_seen import ENDS, alias, ends
from tests.blackbox.test_one_group_torn import answer, hang

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


async def another_ends(node: Node, kubelet: Kubelet, new: Pod, board: Board) -> None:
    """It has no descriptors any more, and the count of the GPU is zero; the kernel closes yet what it had."""
    another(node, board.group, flags=ENDING, state="D")
    node.host.tree.remove(f"{OTHER}/fd/7")
    node.host.release(board.gpu)
    await stays(kubelet, lambda: new.phase == "Pending", ENDS)
    another(node, board.group, flags=ENDING, state="Z")


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


async def later_with_a_node_open(node: Node, kubelet: Kubelet, board: Board, path: str = "") -> Pod:
    """A pod with the GPU, whose process has the node of the group open, when the daemon is no young one."""
    await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Healthy", OLD)
    return await with_a_node_open(node, kubelet, board, path)


async def forgotten_counted(node: Node, kubelet: Kubelet, board: Board, path: str = "") -> None:
    """A pod was forgotten whose process has the GPU open: the daemon sees the group, and its count."""
    old = await later_with_a_node_open(node, kubelet, board, path)
    node.host.hold(board.gpu)
    kubelet.delete(old)


async def test_of_a_container_that_was_started_again_the_new_process_is_waited_for(node: Node) -> None:
    """The count fell and rose again without anybody looking."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        old = await later_with_a_node_open(node, kubelet, board)
        node.host.hold(board.gpu)
        assert "held by" in await refusal(kubelet, USB, board.usb)
        shutil.rmtree(node.host.path(QEMU))
        another(node, board.group)
        kubelet.delete(old)
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        await another_ends(node, kubelet, new, board)
    running(new)


async def test_of_two_processes_with_a_counted_device_the_one_that_ends_last_is_waited_for(
    node: Node,
) -> None:
    """They share the descriptor, as those of DPDK do."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        old = await later_with_a_node_open(node, kubelet, board)
        another(node, board.group)
        node.host.hold(board.gpu)
        kubelet.delete(old)
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        node.host.tree.remove(f"{OTHER}/fd/7")
        another(node, board.group, flags=ENDING, state="Z")
        node.host.release(board.gpu)
        await ends(node, kubelet, new)
    running(new)


async def test_who_has_a_counted_device_is_waited_for_though_it_took_long_to_see_all_processes(
    node: Node,
) -> None:
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        tasks.start_soon(slow_to_tell, unseen(node), 1.4)
        await forgotten_counted(node, kubelet, board)
        async with anyio.create_task_group() as asking:
            asking.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
            node.host.release(board.gpu)
            await ends(node, kubelet, new)
        tasks.cancel_scope.cancel()
    running(new)


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


async def test_who_begins_to_end_while_processes_are_looked_at_is_waited_for(node: Node) -> None:
    """The look stops at another process, of which nothing is told for a moment; its name comes before."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        kubelet.delete(await later_with_a_node_open(node, kubelet, board))
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        comm = Path(node.host.path("/proc/1900/comm"))
        node.host.write_file("/proc/1900/comm", "helper")
        hang(comm)
        node.host.tree.link("/proc/1900/fd/7", f"/dev/vfio/{board.group}")
        told = await threads.call(os.open, comm, os.O_WRONLY)
        process(node, flags=ENDING, state="D")
        node.host.tree.remove(f"{QEMU}/fd/7")
        node.host.tree.remove("/proc/1900/fd/7")
        answer(comm, told, "helper")
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        process(node, flags=ENDING, state="Z")
    running(new)


async def test_a_sibling_is_waited_for_though_the_device_has_left_by_which_its_group_was_seen(
    node: Node,
) -> None:
    process(node)
    (board,) = boards = usb_boards(node, 1)
    texts: list[str] = []
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        await forgotten_counted(node, kubelet, board)
        await until_health(kubelet, USB, board.usb, "Unhealthy")

        async def ask() -> None:
            texts.append(await refusal(kubelet, USB, board.usb))

        tasks.start_soon(ask)
        await stays(kubelet, lambda: not texts, OLD + 1.0)
        process(node, flags=ENDING, state="D")
        node.host.tree.remove(f"{QEMU}/fd/7")
        node.host.release(board.gpu)
        node.host.unplug(board.gpu)
        await stays(kubelet, lambda: not texts, ENDS)
        process(node, flags=ENDING, state="Z")
    assert texts == [""]


async def test_an_mdev_whose_module_has_none_open_is_given_though_its_process_hangs_as_it_ends(
    node: Node,
) -> None:
    process(node)
    new = pod("new", {MDEVS: 1})
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        await left_open(node, kubelet)
        instances(node, 1)
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        hangs_as_it_ends(node)
        instances(node, 0)
    running(new)


async def test_a_refused_mdev_is_free_when_its_module_has_none_open_though_its_process_hangs(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet:
        device = await left_open(node, kubelet)
        instances(node, 1)
        assert "open" in (await kubelet.admit(pod("refused", {MDEVS: 1}))).message
        await until_health(kubelet, MDEVS, device, "Unhealthy")
        hangs_as_it_ends(node)
        instances(node, 0)
        await until_health(kubelet, MDEVS, device, "Healthy")


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


async def test_a_device_is_given_when_its_count_falls_though_each_look_at_all_processes_takes_its_time(
    node: Node,
) -> None:
    """Its process has the node under another name."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        tasks.start_soon(slow_to_tell, unseen(node), 1.9)
        await forgotten_counted(node, kubelet, board, alias(node, board.group))
        async with anyio.create_task_group() as asking:
            asking.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", OLD)
            node.host.release(board.gpu)
            node.host.tree.remove(f"{QEMU}/fd/7")
        tasks.cancel_scope.cancel()
    running(new)
