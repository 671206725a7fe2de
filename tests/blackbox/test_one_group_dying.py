# SPDX-License-Identifier: Apache-2.0
"""Released is what the host shows, also where its count of opens alone does not tell.

Of a process that is ending /proc shows no open file any more: the kernel takes the table of descriptors
off it first (``exit_files`` in fs/file.c), and closes what was in it later. Memory is unpinned then, and the
function is reset; and a thread that sleeps in the kernel keeps all of it open until it wakes, though
``/proc/PID/fd``, which is that of the first thread, is empty. In a pod no other processes are seen, and a
count that was there before any daemon may be a former driver's.
"""

from __future__ import annotations

from nodeagent.sim import files
from tests.blackbox.boards import (
    GPU,
    all_listed,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_one_group_open import forgotten, waits_until_closed


async def test_a_device_that_a_process_closes_as_it_ends_is_waited_for(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    files.directory(node.host.path("/proc/4711/fd"))
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten(node, kubelet, await kubelet.admit(pod("old", {GPU: 1})), board.gpu)
        await waits_until_closed(node, kubelet, GPU, board.gpu)


async def test_a_device_that_was_open_before_the_daemon_started_is_waited_for_after_its_pod(
    node: Node,
) -> None:
    """No process is seen, and the daemon has never seen a lower count."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            old = await kubelet.admit(pod("old", {GPU: 1}))
            node.host.hold(board.gpu)
        async with node.daemon():
            await kubelet.until(lambda: len(kubelet.state.table.healthy[GPU]) == 1)
            await forgotten(node, kubelet, old, board.gpu)
            await waits_until_closed(node, kubelet, GPU, board.gpu)
