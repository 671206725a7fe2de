# SPDX-License-Identifier: Apache-2.0
"""A process whose open files cannot all be looked at hides no release: the count of opens tells it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tests.blackbox import silentfs
from tests.blackbox.boards import GPU, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import Node, pod
from tests.blackbox.test_one_group_counts import (
    OLD,
    QEMU,
    process,
)
from tests.blackbox.test_one_group_ending import (
    forgotten_counted,
)

pytestmark = pytest.mark.slow


@contextmanager
def unanswered(node: Node, below: Path) -> Iterator[None]:
    """The process has a file open that hangs whoever looks at it, as stat(2) of it does."""
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
