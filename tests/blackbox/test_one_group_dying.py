# SPDX-License-Identifier: Apache-2.0
"""Released is what the host shows, also of a process that is ending: /proc shows none of its files any more.

The kernel takes the table of descriptors off a process first (``exit_files`` in fs/file.c), and closes what was
open later: memory is unpinned and the function is reset by then, and a thread that sleeps in the kernel keeps
all of it open for as long as it sleeps, though ``/proc/PID/fd``, which is that of the first thread, is empty.
"""

from __future__ import annotations

from nodeagent.sim import files
from tests.blackbox.boards import GPU, started, usb_boards, usb_lists
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_one_group_open import forgotten, waits_until_closed


async def test_a_device_that_a_process_closes_as_it_ends_is_waited_for(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    files.directory(node.host.path("/proc/4711/fd"))
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten(node, kubelet, await kubelet.admit(pod("old", {GPU: 1})), board.gpu)
        await waits_until_closed(node, kubelet, GPU, board.gpu)
