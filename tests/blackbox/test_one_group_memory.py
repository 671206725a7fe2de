# SPDX-License-Identifier: Apache-2.0
"""Who was seen with a device is remembered, whoever he is and however many they are; of that device alone.

And what cannot be found out of him hides nobody else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.sim.mdev_kernel import Type
from tests.blackbox import silentfs
from tests.blackbox.boards import GPU, USB, refusal, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_counts import (
    ENDING,
    OLD,
    QEMU,
    closed,
    process,
    restarted_with,
    slow_to_tell,
)
from tests.blackbox.test_one_group_ending import (
    another,
    forgotten_counted,
)
from tests.blackbox.test_one_group_looks import OTHER, unseen
from tests.blackbox.test_one_group_seen import ENDS

pytestmark = pytest.mark.slow

TYPES = (Type("nvidia-228", 1, "GRID T4-8A"), Type("nvidia-222", 1, "GRID T4-1B"))


def wished(node: Node, wish: Type) -> None:
    node.configure(f"mdevs: {{manage: true, types: [{wish.id}]}}")


def lasts(node: Node, first: str, state: str) -> None:
    """The other one is ending."""
    if first == OTHER:
        process(node, flags=ENDING, state=state)
    else:
        another(node, "", flags=ENDING, state=state)


@contextmanager
def unanswered(node: Node, below: Path) -> Iterator[None]:
    """The process has a file open that hangs whoever looks at it, as each does without statx(2)."""
    place = below / "home/dead"
    place.mkdir(parents=True)
    if not silentfs.possible(place):
        pytest.skip("no FUSE")
    os.symlink(place / "file", node.host.path(f"{QEMU}/fd/9"))
    with silentfs.silent(place):
        yield


@pytest.mark.parametrize("how", ["lives", "ends"])
async def test_a_device_is_given_when_its_count_falls_though_its_process_has_a_file_that_hangs(
    node: Node, tmp_path: Path, how: str
) -> None:
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten_counted(node, kubelet, board)
        with unanswered(node, tmp_path):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.admit, new)
                await stays(kubelet, lambda: new.phase == "Pending", OLD)
                node.host.release(board.gpu)
                if how == "lives":
                    node.host.tree.remove(f"{QEMU}/fd/7")
                else:
                    shutil.rmtree(node.host.path(QEMU))
    running(new)


async def test_a_group_is_free_again_when_its_neighbour_is_closed_though_each_look_takes_its_time(
    node: Node,
) -> None:
    """A driver has left the count of the sibling, so who has the group open was seen with that, too."""
    (board,) = usb_boards(node, 1)
    node.host.write(board.usb, "enable", "1")
    async with restarted_with(node, board, {GPU: 1}) as (kubelet, old), anyio.create_task_group() as tasks:
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        tasks.start_soon(slow_to_tell, unseen(node), 1.4)
        closed(node, board.gpu)
        kubelet.delete(old)
        await kubelet.until(lambda: health(kubelet, GPU)[board.gpu] == "Healthy", OLD + PATIENCE)
        running(await kubelet.admit(pod("new", {GPU: 1})))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("first", [QEMU, OTHER])
async def test_of_two_processes_that_were_there_before_the_daemon_the_one_that_ends_last_is_waited_for(
    node: Node, first: str
) -> None:
    """The count was never lower, so it is what is seen of processes that tells."""
    (board,) = usb_boards(node, 1)
    both = restarted_with(node, board, {GPU: 1}, then=lambda: another(node, board.group))
    async with both as (kubelet, old):
        kubelet.delete(old)
        await stays(kubelet, lambda: True, OLD + 1.0)
        assert health(kubelet, GPU)[board.gpu] == "Unhealthy"
        for each in (QEMU, OTHER):
            node.host.tree.remove(f"{each}/fd/7")
        shutil.rmtree(node.host.path(first))
        lasts(node, first, "D")
        await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Unhealthy", ENDS)
        assert await refusal(kubelet, GPU, board.gpu)
        lasts(node, first, "Z")
        await until_health(kubelet, GPU, board.gpu, "Healthy")
