# SPDX-License-Identifier: Apache-2.0
"""The times of the kubelet's files say little of what lies between them.

Some file systems keep whole seconds only (ext4 with inodes of 128 bytes: ``ext4_fill_super`` sets
``s_time_gran`` in fs/ext4/super.c), and the clock may be set. So two old files that follow each other at once
(see ``test_one_group_stale``) may have times that lie far apart.
"""

from __future__ import annotations

import os
import time

import anyio
import pytest

from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox.boards import GPU, USB, running, started, usb_boards, usb_lists
from tests.blackbox.harness import Node, pod

FILE = "kubelet_internal_checkpoint"


def written_late(node: Node, content: bytes, at: float) -> None:
    """A list's write, begun before the container got its device, ends now, at that time of the clock."""
    aside = node.plugins / ".late"
    aside.write_bytes(content)
    os.utime(aside, (at, at))
    aside.rename(node.plugins / FILE)


@pytest.mark.parametrize("later", [1, 3600, -3600], ids=["whole seconds", "set forward", "set back"])
async def test_files_that_follow_each_other_at_once_count_as_one_whatever_their_times(
    node: Node, later: int
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        before = (node.plugins / FILE).read_bytes()
        running(await kubelet.admit(pod("one", {}, init_containers=[{GPU: 1}])))

        second = int(time.time())
        written_late(node, before, second)
        tasks.start_soon(as_the_next_list_comes, node, kubelet, before, second + later)
        assert (await kubelet.admit(pod("late", {USB: 1}))).phase == "Failed"
        assert (await kubelet.admit(pod("later", {USB: 1}))).phase == "Failed"


async def as_the_next_list_comes(node: Node, kubelet: Kubelet, content: bytes, at: float) -> None:
    """As many as are written within a tenth of a second."""
    lists = kubelet.statistics.lists_total
    await kubelet.until(lambda: kubelet.statistics.lists_total > lists)
    with anyio.move_on_after(0.1):
        while True:
            written_late(node, content, at)
            await anyio.sleep(0.001)
