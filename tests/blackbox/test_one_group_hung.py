# SPDX-License-Identifier: Apache-2.0
"""What hangs on a host: a look in /proc, and a thread of a process that was killed.

One file of a dead file system, open in any process, is enough for the former.
"""

from __future__ import annotations

import os

import anyio
import pytest

from nodeagent.sim import files
from tests.blackbox.boards import named, running, stays
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_one_group_counts import ENDING, MDEVS, OLD, QEMU, mdevs_offered, process

pytestmark = pytest.mark.slow

LOOKED_AT = "/proc/4712/stat"


async def test_an_mdev_is_given_though_some_process_cannot_be_looked_at(node: Node) -> None:
    """To look at a file of an NFS or FUSE server that is away does not end; neither does this one."""
    files.directory(node.host.path("/proc/4712/fd"))
    os.mkfifo(node.host.path(LOOKED_AT))
    async with mdevs_offered(node) as kubelet:
        first = await kubelet.admit(pod("first", {MDEVS: 1}))
        running(first)
        running(await kubelet.admit(pod("second", {MDEVS: 1})))
        await named(node, first.result.ids[MDEVS][0], first)
        kubelet.delete(first)
        running(await kubelet.admit(pod("third", {MDEVS: 1})))


async def test_an_mdev_is_waited_for_as_long_as_a_thread_has_it_that_was_killed_and_sleeps_in_the_kernel(
    node: Node,
) -> None:
    """The first thread has ended and shows nothing; the one that sleeps has the table of descriptors."""
    async with mdevs_offered(node) as kubelet:
        old = await kubelet.admit(pod("old", {MDEVS: 2}))
        await named(node, old.result.ids[MDEVS][0], old)
        process(node, flags=ENDING, state="Z", threads=2)
        nodes = [path for path, _, _ in old.result.devices if path.rpartition("/")[2].isdecimal()]
        node.host.tree.link(f"{QEMU}/task/4712/fd/7", nodes[0])
        kubelet.delete(old)
        new = pod("new", {MDEVS: 2})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
            node.host.tree.remove(f"{QEMU}/task/4712/fd/7")
            process(node, flags=ENDING, state="Z")
        running(new)
