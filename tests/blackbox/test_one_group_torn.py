# SPDX-License-Identifier: Apache-2.0
"""A function that is bound anew while it is read: its count of opens and its binding are of one moment.

And one of which the count cannot be read for a moment.
"""

from __future__ import annotations

import os

import anyio
import pytest

from nodeagent.base import threads
from tests.blackbox.boards import GPU, named, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.blackbox.test_one_group_counts import OLD
from tests.blackbox.test_one_group_open import LET_GO
from tests.sim import fifos

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("attribute", ["modalias", "numa_node", "power_state"])
async def test_the_count_of_a_former_binding_is_not_taken_for_the_lowest_one_of_the_next(
    node: Node, attribute: str
) -> None:
    """i915 leaves a count: what was read before it came says nothing of what vfio-pci has now."""
    (board,) = boards = usb_boards(node, 1)
    path = node.host.attribute(board.gpu, attribute)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        node.host.bind(board.gpu, None)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        fifos.hang(node.host, board.gpu, attribute)
        with anyio.fail_after(PATIENCE):
            writer = await threads.call(os.open, path, os.O_WRONLY)  # returns when the daemon reads
        node.host.bind(board.gpu, "i915")
        node.host.bind(board.gpu, "vfio-pci")
        node.host.write(board.gpu, "enable", "1")
        fifos.unhang(node.host, board.gpu, attribute)
        os.close(writer)
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        running(await kubelet.admit(pod("new", {GPU: 1})))


async def test_a_count_that_cannot_be_read_is_no_closed_device_and_the_lowest_one_stays_known(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old, new = await kubelet.admit(pod("old", {GPU: 1})), pod("new", {GPU: 1})
        running(old)
        node.host.hold(board.gpu)
        await named(node, board.gpu, old)
        node.host.write(board.gpu, "enable", "?")
        kubelet.delete(old)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
            node.host.hold(board.gpu)
            await stays(kubelet, lambda: new.phase == "Pending", OLD)
            node.host.release(board.gpu)
        running(new)
