# SPDX-License-Identifier: Apache-2.0
"""Released is what the host shows, also where a pod has something else of the group, or of its number.

And where its count of opens does not: a process may have the node of a group open, and no device of it yet.
"""

from __future__ import annotations

import anyio
import pytest

from nodeagent.sim import files
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import (
    GPU,
    RULES,
    USB,
    Board,
    named,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.facts import names

RDMA = "rdma/hca_shared"
NOT_ISOLATED = RULES.replace("}]}", "}], isolation: none}")
LET_GO = 1.0  # seconds after which the old container ends here; 2.7 of a real one
SLOW = 2.0  # seconds that the kubelet takes to say who holds what
QEMU = "/proc/4711"


async def forgotten(node: Node, kubelet: FakeKubelet, old: Pod, device: str) -> None:
    """The kubelet forgets a pod that was deleted by force; its container has the device open."""
    running(old)
    node.host.hold(device)
    await named(node, device, old)
    kubelet.delete(old)


async def waits_until_closed(node: Node, kubelet: FakeKubelet, resource: str, device: str) -> None:
    """The next pod gets the device when the old container has closed it, and not before."""
    new = pod("new", {resource: 1})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        node.host.release(device)
    running(new)


async def test_what_is_not_isolated_is_waited_for_though_another_pod_has_its_neighbour(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("neighbour", {USB: 1})))
        await forgotten(node, kubelet, await kubelet.admit(pod("old", {GPU: 1})), board.gpu)
        await waits_until_closed(node, kubelet, GPU, board.gpu)


async def test_what_is_not_isolated_is_given_though_its_neighbour_is_open(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten(node, kubelet, await kubelet.admit(pod("old", {USB: 1})), board.usb)
        running(await kubelet.admit(pod("new", {GPU: 1})))


async def test_a_device_is_waited_for_though_a_pod_has_a_share_of_the_number_of_its_group(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        foreign.serving(kubelet, board.group, resource=RDMA, socket="rdma-hca.sock"),
    ):
        running(await kubelet.admit(pod("shares", {RDMA: 1})))
        await forgotten(node, kubelet, await kubelet.admit(pod("old", {GPU: 1})), board.gpu)
        await waits_until_closed(node, kubelet, GPU, board.gpu)


@pytest.mark.slow
@pytest.mark.parametrize("when", [0.3, 1.5])
async def test_what_an_old_container_opens_while_the_kubelet_is_asked_is_waited_for(
    node: Node, when: float
) -> None:
    """Its pod was deleted as it started; opening raises no event."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        await named(node, board.gpu, old)
        kubelet.delete(old)
        kubelet.faults.set("pod-resources-delay", SLOW)
        new = pod("new", {GPU: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
            await anyio.sleep(when)
            node.host.hold(board.gpu)
            await stays(kubelet, lambda: new.phase == "Pending", SLOW + LET_GO)
            node.host.release(board.gpu)
        running(new)


def opened(node: Node, path: str) -> None:
    """A process has that node open, and no device."""
    files.directory(node.host.path(f"{QEMU}/fd"))
    node.host.write_file(f"{QEMU}/comm", "qemu-system-x86")
    node.host.tree.link(f"{QEMU}/fd/7", path)


async def with_a_node_open(node: Node, kubelet: FakeKubelet, board: Board, path: str = "") -> Pod:
    """A pod with the GPU, whose process has the node of the group open, and no device."""
    old = await kubelet.admit(pod("old", {GPU: 1}))
    opened(node, path or f"/dev/vfio/{board.group}")
    await named(node, board.gpu, old)
    return old


@pytest.mark.slow
async def test_a_group_whose_node_an_old_container_has_open_is_waited_for_without_an_open_device(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        kubelet.delete(await with_a_node_open(node, kubelet, board))
        for asked in (board.gpu, board.usb):
            text = await refusal(kubelet, GPU if asked == board.gpu else USB, asked)
            names(text, "4711", "qemu-system-x86")
        node.host.tree.remove(f"{QEMU}/fd/7")
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        running(await kubelet.admit(pod("new", {GPU: 1})))


async def test_a_device_whose_own_node_somebody_has_open_is_given(node: Node) -> None:
    """Any number of processes may have that open; it is bound to one iommufd, which the kernel counts."""
    node.host = SimulatedHost(node.root, cdev=True)
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        opened(node, "/dev/vfio/devices/vfio0")
        await named(node, board.gpu, old)
        kubelet.delete(old)
        running(await kubelet.admit(pod("new", {GPU: 1})))


async def test_the_node_of_a_group_says_nothing_of_what_is_not_isolated(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old, await kubelet.admit(pod("neighbour", {USB: 1})))
        opened(node, f"/dev/vfio/{board.group}")
        await named(node, board.gpu, old)
        kubelet.delete(old)
        running(await kubelet.admit(pod("new", {GPU: 1})))
