# SPDX-License-Identifier: Apache-2.0
"""What a process keeps open whose pod is forgotten, and no count tells of: refused once, then listed so.

An mdev, a vendor's vGPU, the node of a group without a device. The kubelet takes what is Healthy for free: it
would send one pod after the other there, each of which holds up all admissions of the node for nine seconds.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.sim import files
from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox.boards import GPU, USB, named, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import Node, health, pod, until_health
from tests.blackbox.test_one_group_counts import MDEVS, OLD, QEMU, mdevs_offered, process
from tests.blackbox.test_one_group_open import LET_GO, with_a_node_open
from tests.blackbox.test_one_group_plugins import group_of
from tests.blackbox.test_one_group_torn import hang

pytestmark = pytest.mark.slow

LOOK = 2.0  # seconds for a look at all processes


async def left_open(node: Node, kubelet: Kubelet) -> str:
    """An mdev that a process has open whose pod was forgotten some time ago."""
    old = await kubelet.admit(pod("old", {MDEVS: 1}))
    (device,) = old.result.ids[MDEVS]
    node.host.tree.link(f"{QEMU}/fd/7", f"/dev/vfio/{group_of(node, device)}")
    await named(node, device, old)
    kubelet.delete(old)
    await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Healthy", OLD + 1.0)
    return device


async def test_after_a_refusal_an_mdev_that_a_process_keeps_open_is_preferred_to_nothing_that_is_free(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node) as kubelet:
        device = await left_open(node, kubelet)
        refused = await kubelet.admit(pod("refused", {MDEVS: 1}))
        assert "4711 (qemu-system-x86)" in refused.message
        await until_health(kubelet, MDEVS, device, "Unhealthy")
        running(await kubelet.admit(pod("new", {MDEVS: 1})))
        await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Unhealthy", 1.0)
        node.host.tree.remove(f"{QEMU}/fd/7")
        await until_health(kubelet, MDEVS, device, "Healthy")
        running(await kubelet.admit(pod("next", {MDEVS: 1})))


async def test_after_a_refusal_a_group_whose_node_a_process_keeps_open_is_preferred_to_none_that_is_free(
    node: Node,
) -> None:
    board, _ = boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        kubelet.delete(await with_a_node_open(node, kubelet, board))
        refused = await kubelet.admit(pod("refused", {GPU: 2}))
        assert "4711 (qemu-system-x86)" in refused.message
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        running(await kubelet.admit(pod("new", {GPU: 1, USB: 1})))
        node.host.tree.remove(f"{QEMU}/fd/7")
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        running(await kubelet.admit(pod("next", {GPU: 1, USB: 1})))


async def test_what_was_open_is_free_when_its_process_lets_go_though_another_one_cannot_be_looked_at(
    node: Node,
) -> None:
    """One open file of a dead file system, in any process, keeps a look at all of them from ending."""
    process(node)
    async with mdevs_offered(node, 1) as kubelet:
        device = await left_open(node, kubelet)
        assert (await kubelet.admit(pod("refused", {MDEVS: 1}))).phase == "Failed"
        await until_health(kubelet, MDEVS, device, "Unhealthy")
        node.host.write_file("/proc/4712/stat", "")
        files.directory(node.host.path("/proc/4712/fd"))
        hang(Path(node.host.path("/proc/4712/stat")))
        await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Unhealthy", OLD)
        node.host.tree.remove(f"{QEMU}/fd/7")
        await until_health(kubelet, MDEVS, device, "Healthy")


async def slow_to_tell(path: Path, seconds: float) -> None:
    """Whoever reads the file waits so long, each time."""
    while True:
        writer = await threads.call(os.open, path, os.O_WRONLY)
        await anyio.sleep(seconds)
        os.close(writer)


async def test_what_is_open_is_listed_so_after_a_refusal_also_where_a_look_at_all_processes_takes_long(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node) as kubelet, anyio.create_task_group() as tasks:
        device = await left_open(node, kubelet)
        node.host.write_file("/proc/4712/stat", "")
        files.directory(node.host.path("/proc/4712/fd"))
        hang(Path(node.host.path("/proc/4712/stat")))
        tasks.start_soon(slow_to_tell, Path(node.host.path("/proc/4712/stat")), 1.4)
        refused = await kubelet.admit(pod("refused", {MDEVS: 1}))
        assert device in refused.message
        await until_health(kubelet, MDEVS, device, "Unhealthy")
        assert '"held-outside-kubernetes"' in json.dumps((await node.status())["resources"])
        running(await kubelet.admit(pod("new", {MDEVS: 1})))
        tasks.cancel_scope.cancel()


async def test_what_a_process_was_seen_to_have_open_is_waited_for_though_the_next_look_does_not_end(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        await left_open(node, kubelet)
        node.host.write_file("/proc/4712/stat", "")
        new = pod("new", {MDEVS: 1})
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        files.directory(node.host.path("/proc/4712/fd"))
        hang(Path(node.host.path("/proc/4712/stat")))
        await stays(kubelet, lambda: new.phase == "Pending", 2.0 * LOOK)
        node.host.tree.remove(f"{QEMU}/fd/7")
    running(new)
