# SPDX-License-Identifier: Apache-2.0
"""Who has the node of a group open is seen however long ago the pod was forgotten, and while a process ends.

And beside a file of a dead file system, whatever its name is.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest

from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from tests.blackbox import silentfs
from tests.blackbox.boards import (
    GPU,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import Node, health, pod
from tests.blackbox.test_one_group_counts import OLD, QEMU
from tests.blackbox.test_one_group_looks import dead_file
from tests.blackbox.test_one_group_open import with_a_node_open

pytestmark = pytest.mark.slow

ENDS = 1.5  # seconds that a process takes to end here, after its table of descriptors is gone


def alias(node: Node, group: str) -> str:
    """The node of that group under another name."""
    files.directory(node.host.path("/host/dev"))
    os.link(node.host.path(f"/dev/vfio/{group}"), node.host.path("/host/dev/alias"))
    return "/host/dev/alias"


def dead_namesake(node: Node, below: Path, group: str) -> AbstractContextManager[None]:
    """Some process has a file of a dead file system open named like the node, until the block ends."""
    place = below / "backup/vfio" / group  # of files below a ``/dev`` each is looked at
    place.mkdir(parents=True)
    if not silentfs.possible(place):
        pytest.skip("no FUSE")
    files.directory(node.host.path("/proc/4799/fd"))
    os.symlink(place, node.host.path("/proc/4799/fd/9"))
    return silentfs.silent(place)


async def test_a_group_is_waited_for_when_its_device_is_closed_late_and_its_node_later(node: Node) -> None:
    """In between the memory of the guest is given back."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        old = await with_a_node_open(node, kubelet, board)
        node.host.hold(board.gpu)
        kubelet.delete(old)
        new = pod("new", {GPU: 1})
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        node.host.release(board.gpu)
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        node.host.tree.remove(f"{QEMU}/fd/7")
    running(new)


@pytest.mark.parametrize("name", ["another", "the node's"])
async def test_a_group_that_is_open_is_not_given_beside_a_dead_file_whatever_both_are_called(
    node: Node, name: str
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        path = alias(node, board.group) if name == "another" else ""
        old = await with_a_node_open(node, kubelet, board, path)
        with TemporaryDirectory(dir="/var/tmp") as place, dead_namesake(node, Path(place), board.group):
            kubelet.delete(old)
            assert "open" in await refusal(kubelet, GPU, board.gpu)


async def test_a_dead_file_keeps_nobody_waiting_whose_group_nobody_had(node: Node, tmp_path: Path) -> None:
    boards = usb_boards(node, 4)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await stays(kubelet, lambda: "Unhealthy" not in health(kubelet, GPU).values(), OLD + 1.0)
        with dead_file(node, tmp_path, "/proc/4799"):
            began = time.monotonic()
            running(*[await kubelet.admit(pod(f"vm-{number}", {GPU: 1})) for number in range(4)])
            assert time.monotonic() - began < 2.0


async def test_who_has_the_node_of_the_group_is_named_and_nobody_who_has_another_one(node: Node) -> None:
    node.host = SimulatedHost(node.root, cdev=True)
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await with_a_node_open(node, kubelet, board)
        files.directory(node.host.path("/proc/4799/fd"))
        node.host.tree.link("/proc/4799/fd/7", "/dev/vfio/devices/vfio0")
        kubelet.delete(old)
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, GPU, board.gpu)


async def test_who_is_seen_with_a_counted_device_is_named_whatever_he_calls_its_node(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await with_a_node_open(node, kubelet, board, alias(node, board.group))
        node.host.hold(board.gpu)
        kubelet.delete(old)
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, GPU, board.gpu)
