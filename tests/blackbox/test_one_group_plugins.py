# SPDX-License-Identifier: Apache-2.0
"""Other device plugins allocate a device that we offer, or another one of its group: it is in use.

virt-handler's own plugin has numbers of groups for ids, others have addresses. The kubelet's checkpoint has
what they allocated, also while PodResources does not answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox import foreign
from tests.blackbox.boards import GPU, Board, refusal, running, started, until_all_healthy, usb_boards
from tests.blackbox.harness import Node, pod, until_health
from tests.blackbox.test_one_group_counts import group_of
from tests.machines.capture import materialise

CAPTURED = Path(__file__).parent.parent / "machines/hosts/6.12-mdev.json"
MDEV, MDEVS = "00000004-0000-4000-8000-000000000004", "mdev.nodeagent/mdpy-vga"
SOUND = "example.com/sound"
ONLY_GPU = 'resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}]'
SOCKETS = {"group": "kubevirt-example.com-sound.sock"}  # virt-handler's; the others name theirs as they like


def id_of(board: Board, how: str) -> str:
    """The id under which the other plugin has the device, or the one beside it."""
    return {"group": board.group, "sibling": board.usb, "device": board.gpu}[how]


@asynccontextmanager
async def beside_another(node: Node, how: str) -> AsyncIterator[tuple[Board, FakeKubelet]]:
    """A kubelet with the daemon, which offers the GPU of a board, and with another plugin."""
    (board,) = usb_boards(node, 1)
    node.configure(ONLY_GPU)
    socket = SOCKETS.get(how, "sound.sock")
    async with (
        started(node, listed={GPU: 1}) as (_, kubelet),
        foreign.serving(kubelet, id_of(board, how), resource=SOUND, socket=socket),
    ):
        yield board, kubelet


@pytest.mark.parametrize("how", ["group", "sibling", "device"])
async def test_a_device_is_refused_while_a_pod_of_another_plugin_uses_its_group(node: Node, how: str) -> None:
    async with beside_another(node, how) as (board, kubelet):
        one = await kubelet.admit(pod("one", {SOUND: 1}))
        running(one)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        assert one.key in await refusal(kubelet, GPU, board.gpu)
        kubelet.delete(one)
        await until_all_healthy(kubelet, GPU)
        running(await kubelet.admit(pod("two", {GPU: 1})))


@pytest.mark.slow
@pytest.mark.time_scale(0.3)
@pytest.mark.parametrize("silence", ["pod-resources-exhausted", "pod-resources-delay"])
@pytest.mark.parametrize("how", ["group", "sibling"])
async def test_the_checkpoint_tells_what_another_plugin_allocated_while_pod_resources_is_silent(
    node: Node, how: str, silence: str
) -> None:
    async with beside_another(node, how) as (board, kubelet):
        kubelet.faults.set(silence, 600.0)
        one = await kubelet.admit(pod("one", {SOUND: 1}))
        running(one)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        assert (await kubelet.admit(pod("two", {GPU: 1}))).phase == "Failed"
        kubelet.faults.clear(silence)
        kubelet.delete(one)
        await until_all_healthy(kubelet, GPU)


@pytest.fixture
def captured(tmp_path: Path, loop_may_block: None) -> Node:
    """A captured host with mdevs."""
    materialise(CAPTURED, tmp_path)
    return Node(tmp_path)


async def test_an_mdev_that_virt_handler_allocated_is_in_use(captured: Node) -> None:
    """Its plugin of mdevs leaves the vendor out of the socket's name (``NewMediatedDevicePlugin``)."""
    resource, group = "other.example/mdpy-vga", group_of(captured, MDEV)
    async with (
        captured.running(listed={MDEVS: 1}) as (_, kubelet),
        foreign.serving(kubelet, group, resource=resource, socket="kubevirt-mdpy-vga.sock"),
    ):
        one = await kubelet.admit(pod("one", {resource: 1}))
        running(one)
        await until_health(kubelet, MDEVS, MDEV, "Unhealthy")
        assert one.key in await refusal(kubelet, MDEVS, MDEV)
