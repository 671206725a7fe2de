# SPDX-License-Identifier: Apache-2.0
"""While an unbind waits for whoever has a function open, the rest of its group is nobody else's.

The driver link has gone, and the count of opens stays. By iommufd nobody has the node of the group.
"""

from __future__ import annotations

import pytest

from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import GPU, USB, Board, named, refusal, running, stays, usb_boards
from tests.blackbox.harness import Node, pod, until_health
from tests.blackbox.test_one_group_counts import OLD, QEMU, process
from tests.blackbox.test_usb import until_device

pytestmark = pytest.mark.slow

GIVEN = pytest.mark.parametrize("given", ["isolation: group", "iommufd: only"])
SEEN = pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen"])


def board_of(node: Node, given: str, *, seen: bool) -> Board:
    """A GPU with its USB function; all processes of the host are ``seen``."""
    node.host = SimulatedHost(node.root, numa_nodes=(0, 1), cdev=True)
    if seen:
        process(node)
    (board,) = usb_boards(node, 1)
    node.configure(
        "resources:\n"
        f"- {{name: {GPU}, pci: [{{devices: ['1eb8']}}], {given}}}\n"
        f"- {{name: {USB}, pci: [{{devices: ['1ad8']}}], {given}}}\n"
    )
    return board


def opens(node: Node, board: Board, given: str, *, seen: bool) -> None:
    node.host.hold(board.gpu)
    if seen:
        own = "devices/vfio0" if given == "iommufd: only" else board.group
        node.host.tree.link(f"{QEMU}/fd/7", f"/dev/vfio/{own}")


async def begins_to_go(node: Node, board: Board) -> None:
    """Somebody unbinds it, which waits."""
    node.host.begin_going_away(board.gpu)
    await until_device(node, GPU, board.gpu, "going-away")


async def refused(kubelet: FakeKubelet, board: Board) -> None:
    """The rest of the group is given to nobody, also after a while, and is listed so."""
    await stays(kubelet, lambda: True, 1.0)
    assert await refusal(kubelet, USB, board.usb) != ""
    await until_health(kubelet, USB, board.usb, "Unhealthy")


@GIVEN
@SEEN
async def test_what_a_forgotten_pod_has_is_not_free(node: Node, given: str, seen: bool) -> None:
    board = board_of(node, given, seen=seen)
    async with node.kubelet() as kubelet, node.daemon():
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        await stays(kubelet, lambda: True, OLD)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        opens(node, board, given, seen=seen)
        await named(node, board.gpu, old)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        await begins_to_go(node, board)
        kubelet.delete(old)  # by force: its container ends later
        await node.until_told(lambda told: board.gpu not in told["holders"])
        await refused(kubelet, board)
        if seen:
            node.host.tree.remove(f"{QEMU}/fd/7")
        node.host.finish_going_away(board.gpu)
        await until_health(kubelet, USB, board.usb, "Healthy")
        running(await kubelet.admit(pod("new", {USB: 1})))


@GIVEN
@SEEN
async def test_what_the_host_itself_has_is_not_free(node: Node, given: str, seen: bool) -> None:
    board = board_of(node, given, seen=seen)
    async with node.kubelet() as kubelet, node.daemon():
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        await stays(kubelet, lambda: True, OLD)
        opens(node, board, given, seen=seen)
        await begins_to_go(node, board)
        await refused(kubelet, board)


@SEEN
async def test_a_bridge_that_is_enabled_for_what_is_behind_it_is_not_open(node: Node, seen: bool) -> None:
    """One from PCI Express to PCI has no driver, and shares the group of what is behind it."""
    if seen:
        process(node)
    bridge = "0000:1f:00.0"
    node.host.add_function(bridge, vendor="1b21", device="1080", pci_class="060401", driver=None, group=20)
    node.host.write(bridge, "enable", "1")
    (board,) = usb_boards(node, 1)
    async with node.kubelet() as kubelet, node.daemon():
        await until_health(kubelet, USB, board.usb, "Healthy")
        await stays(kubelet, lambda: True, OLD)
        running(await kubelet.admit(pod("one", {USB: 1})))


@SEEN
@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_what_a_driver_of_the_host_has_left_keeps_nobody_from_the_rest(
    node: Node, seen: bool, when: str
) -> None:
    """It let go of the GPU before the first daemon came, or between two."""
    if seen:
        process(node)
    (board,) = usb_boards(node, 1)
    node.host.bind(board.gpu, "i915")
    if when == "before":
        node.host.bind(board.gpu, None)
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await kubelet.until_listed(USB, 1)
            node.host.bind(board.gpu, None)
            await until_health(kubelet, USB, board.usb, "Healthy")
        async with node.daemon():
            await stays(kubelet, lambda: True, OLD)
            await until_health(kubelet, USB, board.usb, "Healthy")
            running(await kubelet.admit(pod("one", {USB: 1})))
