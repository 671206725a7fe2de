# SPDX-License-Identifier: Apache-2.0
"""The kubelet gives one device to two pods by itself, and the second one must not get it.

Whoever asks PodResources makes the kubelet count anew what is not free, if a pod has ended since, and what it
is giving away at that moment is not among that (``UpdateAllocatedDevices`` and ``allocateContainerResources``
in pkg/kubelet/cm/devicemanager/manager.go; seen on a real one of 1.35.4). A refusal makes it count again.
A device of a plain init container is listed for no pod, and may be allocated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    LONE_AT,
    RULES,
    named,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.facts import names

UNGROUPED = RULES.replace('["1ad9"]}]}', '["1ad9"]}], isolation: none}')
FREE = "Requested: 1, Available: 0"


async def admitted_and_forgotten(
    node: Node, kubelet: FakeKubelet, device: str, vm: Pod, old: Pod, before: Pod
) -> None:
    """The pod is given the device while another one ends and somebody asks who holds what."""
    node.host.hold(device)
    kubelet.delete(before)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kubelet.admit, vm)
        await kubelet.until(lambda: device in kubelet.state.allocating, PATIENCE)
        kubelet.delete(old)
        socket = str(kubelet.paths.pod_resources / "kubelet.sock")
        virt_handler, limit = VirtHandler(str(node.plugins)), Timeouts().pod_resources_rpc
        with closing(PodReader(socket, virt_handler, limit)) as reader:
            await reader.pods()
        node.host.release(device)
    running(vm)


@pytest.mark.parametrize("rules", [RULES, UNGROUPED], ids=["group", "none"])
@pytest.mark.parametrize("flags", [FOR_EVER, HARDLY], ids=["60 s", "50 ms"])
async def test_a_device_that_the_kubelet_has_forgotten_while_it_was_given_is_not_given_to_the_next_pod(
    node: Node, flags: Sequence[str], rules: str
) -> None:
    boards = usb_boards(node, 1)
    node.configure(rules)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        before = await kubelet.admit(pod("before", {LONE: 1}))
        await named(node, LONE_AT, before)
        old = await kubelet.admit(pod("old", {GPU: 1}))
        vm = pod("vm", {LONE: 1})
        await admitted_and_forgotten(node, kubelet, LONE_AT, vm, old, before)
        await until_health(kubelet, LONE, LONE_AT, "Healthy")  # it was listed as open, if there was time
        other = await kubelet.admit(pod("other", {LONE: 1}))
        assert other.phase == "Failed"
        assert f"{LONE_AT}: in use by " in other.message
        third = await kubelet.admit(pod("third", {LONE: 1}))
        assert FREE in third.message, "a refusal makes the kubelet count again"
        kubelet.delete(vm)
        running(await kubelet.admit(pod("next", {LONE: 1})))


async def test_of_a_board_that_the_kubelet_has_forgotten_nothing_is_given_to_the_next_pod(node: Node) -> None:
    """The pod that the kubelet names with the asked device was taken for the one that asks."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, *HARDLY, listed=usb_lists(boards)) as (_, kubelet):
        before = await kubelet.admit(pod("before", {GPU: 1}))
        await named(node, board.gpu, before)
        old = await kubelet.admit(pod("old", {LONE: 1}))
        vm = pod("vm", {GPU: 1})
        await admitted_and_forgotten(node, kubelet, board.gpu, vm, old, before)
        other = await kubelet.admit(pod("other", {GPU: 1}))
        names(other.message, board.gpu, "ns/vm")
        assert FREE in (await kubelet.admit(pod("third", {GPU: 1}))).message
