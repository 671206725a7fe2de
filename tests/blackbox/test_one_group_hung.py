# SPDX-License-Identifier: Apache-2.0
"""A look in /proc that does not end: one file of a dead file system, open in any process, is enough."""

from __future__ import annotations

import os

from nodeagent.sim import files
from tests.blackbox.boards import named, running
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_one_group_counts import MDEVS, mdevs_offered

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
