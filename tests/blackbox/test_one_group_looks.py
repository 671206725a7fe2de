# SPDX-License-Identifier: Apache-2.0
"""Who has an mdev open is known whatever else hangs or is slow: a process, another opener, a look before.

And what the daemon before this one saw is seen again.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from nodeagent.sim import files
from tests.blackbox import silentfs
from tests.blackbox.boards import (
    GPU,
    USB,
    named,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_alone import rules
from tests.blackbox.test_one_group_counts import OLD, group_of
from tests.blackbox.test_one_group_lent import BY_USB
from tests.blackbox.test_one_group_open import with_a_node_open
from tests.sim.usb import STICK

pytestmark = pytest.mark.slow

OTHER = "/proc/4713"


def opener(node: Node, device: str) -> str:
    """A second process, which has the mdev open as well; the path of its descriptor."""
    files.directory(node.host.path(f"{OTHER}/fd"))
    node.host.write_file(f"{OTHER}/comm", "qemu-kvm")
    node.host.write_file(f"{OTHER}/stat", f"4713 (qemu-kvm) S 1 4713 4713 0 -1 0 {'0 ' * 10}1 0 0")
    node.host.tree.link(f"{OTHER}/fd/7", f"/dev/vfio/{group_of(node, device)}")
    return f"{OTHER}/fd/7"


def dead_file(node: Node, below: Path, by: str) -> AbstractContextManager[None]:
    """That process has one open, until the end of the block; its directory has a name as nodes have."""
    place = below / "home/dev/dead"
    place.mkdir(parents=True)
    if not silentfs.possible(place):
        pytest.skip("no FUSE")
    files.directory(node.host.path(f"{by}/fd"))
    os.symlink(place, node.host.path(f"{by}/fd/9"))
    return silentfs.silent(place)


async def test_a_group_whose_node_a_process_has_under_another_name_is_not_given(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        files.directory(node.host.path("/host/dev"))
        os.link(node.host.path(f"/dev/vfio/{board.group}"), node.host.path("/host/dev/alias"))
        kubelet.delete(await with_a_node_open(node, kubelet, board, "/host/dev/alias"))
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, GPU, board.gpu)


async def test_a_group_is_not_given_while_its_node_is_open_though_the_function_has_left_that_a_pod_had(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await with_a_node_open(node, kubelet, board)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        await stays(kubelet, lambda: health(kubelet, USB)[board.usb] == "Unhealthy", OLD + 1.0)
        kubelet.delete(old)
        await until_health(kubelet, USB, board.usb, "Healthy")
        node.host.unplug(board.gpu)
        await kubelet.until(lambda: board.gpu not in health(kubelet, GPU), PATIENCE)
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, USB, board.usb)


async def test_a_usb_device_that_is_free_comes_before_one_that_was_left_beside_one_that_is_held(
    node: Node,
) -> None:
    for number, serial in enumerate("ABC"):
        node.usb.plug(f"1-{number + 1}", STICK._replace(serial=serial), 4 + number)
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 3)
        await stays(kubelet, lambda: True, OLD + 1.0)
        old, keeper, new = (pod(name, {GPU: 1}) for name in ("old", "keeper", "new"))
        running(await kubelet.admit(old))
        running(await kubelet.admit(keeper))
        await named(node, "46f4:0001-A", old)
        await named(node, "46f4:0001-B", keeper)
        kubelet.delete(old)
        running(await kubelet.admit(new))
        assert new.result.ids[GPU] == ("46f4:0001-C",)
