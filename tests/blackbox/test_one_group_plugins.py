# SPDX-License-Identifier: Apache-2.0
"""Other plugins that give away what we offer, or what is beside it: right before we are asked for it.

virt-handler's own plugin goes by group numbers, others by addresses. Nobody tells us of their Allocates, and
the kubelet asks for the next pod some milliseconds later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox import foreign
from tests.blackbox.boards import GPU, Board, started, until_all_healthy, usb_boards
from tests.blackbox.harness import Node, pod
from tests.machines.capture import materialise

CAPTURED = Path(__file__).parent.parent / "machines/hosts/6.12-mdev.json"
MDEV = "00000004-0000-4000-8000-000000000004"
SOUND = "example.com/sound"
ONLY_GPU = 'resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}]'
SOCKETS = {"group": "kubevirt-example.com-sound.sock"}  # virt-handler's; the others name theirs as they like


def what_it_gives(board: Board, how: str) -> str:
    """The id under which another plugin gives the device away, or the one beside it."""
    return {"group": board.group, "sibling": board.usb, "device": board.gpu}[how]


@asynccontextmanager
async def beside_another(node: Node, how: str) -> AsyncIterator[Kubelet]:
    """A kubelet with the daemon, which offers the GPU of a board, and with another plugin."""
    (board,) = usb_boards(node, 1)
    node.configure(ONLY_GPU)
    async with (
        started(node, listed={GPU: 1}) as (_, kubelet),
        foreign.serving(
            kubelet, what_it_gives(board, how), resource=SOUND, socket=SOCKETS.get(how, "sound.sock")
        ),
    ):
        yield kubelet


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0, 0.5], ids=["", "slow"])
@pytest.mark.parametrize("how", ["group", "sibling", "device"])
async def test_what_another_plugin_has_just_given_away_is_not_given_to_the_next_pod(
    node: Node, how: str, delay: float
) -> None:
    async with beside_another(node, how) as kubelet:
        kubelet.faults.set("pod-resources-delay", delay)
        for number in range(4):
            one = await kubelet.admit(pod(f"one{number}", {SOUND: 1}))
            two = await kubelet.admit(pod(f"two{number}", {GPU: 1}))
            assert (one.phase, two.phase) == ("Running", "Failed")
            assert one.key in two.message
            kubelet.delete(one)
            kubelet.delete(two)
            await node.until_told(lambda told: not told["holders"])
            await until_all_healthy(kubelet, GPU)


@pytest.mark.slow
@pytest.mark.time_scale(0.3)
@pytest.mark.parametrize("silence", ["pod-resources-exhausted", "pod-resources-delay"])
@pytest.mark.parametrize("how", ["group", "sibling"])
async def test_while_the_kubelet_does_not_answer_its_file_tells_what_another_plugin_has_just_given_away(
    node: Node, how: str, silence: str
) -> None:
    async with beside_another(node, how) as kubelet:
        kubelet.faults.set(silence, 600.0)
        one = await kubelet.admit(pod("one", {SOUND: 1}))
        two = await kubelet.admit(pod("two", {GPU: 1}))
        assert (one.phase, two.phase) == ("Running", "Failed")
        assert "IOMMU group" in two.message
        kubelet.faults.clear(silence)
        kubelet.delete(one)
        await until_all_healthy(kubelet, GPU)


@pytest.fixture
def captured(tmp_path: Path, loop_may_block: None) -> Node:
    """A captured host with mdevs."""
    materialise(CAPTURED, tmp_path)
    return Node(tmp_path)


def group_of(node: Node, uuid: str) -> str:
    """The number of the mdev's IOMMU group."""
    return Path(node.host.path(f"/sys/bus/mdev/devices/{uuid}/iommu_group")).readlink().name


async def test_an_mdev_that_virt_handler_has_given_away_is_not_given_to_the_next_pod(captured: Node) -> None:
    """Its plugin of mdevs leaves the vendor out of the socket's name (``NewMediatedDevicePlugin``)."""
    group = group_of(captured, MDEV)
    async with (
        captured.running(listed={"mdev.nodeagent/mdpy-vga": 1}) as (_, kubelet),
        foreign.serving(kubelet, group, resource="other.example/mdpy-vga", socket="kubevirt-mdpy-vga.sock"),
    ):
        one = await kubelet.admit(pod("one", {"other.example/mdpy-vga": 1}))
        two = await kubelet.admit(pod("two", {"mdev.nodeagent/mdpy-vga": 1}))
        assert (one.phase, two.phase) == ("Running", "Failed")
        assert one.key in two.message
