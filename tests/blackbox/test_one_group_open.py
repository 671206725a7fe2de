# SPDX-License-Identifier: Apache-2.0
"""Released is what the host shows, also where a pod has something else of the group, or of its number."""

from __future__ import annotations

import anyio

from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import GPU, RULES, USB, named, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import Node, pod

RDMA = "rdma/hca_shared"
NOT_ISOLATED = RULES.replace("}]}", "}], isolation: none}")
LET_GO = 1.0  # seconds after which the old container ends here; 2.7 of a real one


async def forgotten(node: Node, kubelet: Kubelet, old: Pod, device: str) -> None:
    """The kubelet forgets a pod that was deleted by force; its container has the device open."""
    running(old)
    node.host.hold(device)
    await named(node, device, old)
    kubelet.delete(old)


async def waits_until_closed(node: Node, kubelet: Kubelet, resource: str, device: str) -> None:
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
