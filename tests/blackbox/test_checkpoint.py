# SPDX-License-Identifier: Apache-2.0
"""A kubelet's checkpoint that cannot be read, or is of another format: the last known allocations count.

So they do for 30 s; then PodResources alone tells which pod uses which device.
"""

from __future__ import annotations

import os

import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import (
    GPU,
    USB,
    named,
    refusal,
    running,
    started,
    stays,
    until_all_healthy,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import Node, eventually, health, pod, until_health
from tests.blackbox.test_behind import HEAD, SERIAL, STICKS, with_a_serial_card
from tests.blackbox.test_behind_midway import bound

SCALE = 0.1
COUNTS = SCALE * Timeouts().unreadable_checkpoint  # seconds for which the last known allocations count
A_MINUTE = SCALE * 60.0
SOON = 0.8 * COUNTS
CHECKPOINT = "kubelet_internal_checkpoint"
DAMAGE = {
    "garbage": "\\x00\\x00",
    "another format": '{"Data": {"Version": 3, "Entries": [{"Pod": "uid"}]}, "Checksum": 1}',
    "part of it in another format": '{"Data": {"PodDeviceEntries": [{"Pod": "uid"}]}, "Checksum": 1}',
    "missing": None,
    "a directory": None,
}
KINDS = pytest.mark.parametrize("kind", DAMAGE)
pytestmark = [pytest.mark.slow, pytest.mark.time_scale(SCALE)]


def damage(node: Node, kubelet: FakeKubelet, kind: str) -> None:
    """The file is of this kind from now on; the kubelet remembers all, and does not write."""
    path, text = node.plugins / CHECKPOINT, DAMAGE[kind]
    kubelet.state.table.full = True
    path.unlink(missing_ok=True)
    if kind == "a directory":
        path.mkdir()
    elif text is not None:
        beside = path.with_name(".damaged")
        beside.write_text(text)
        beside.rename(path)


def mend(node: Node, kubelet: FakeKubelet, kind: str) -> None:
    """The kubelet writes its file again."""
    if kind == "a directory":
        (node.plugins / CHECKPOINT).rmdir()
    kubelet.state.table.full = False
    kubelet.state.table.save()


@KINDS
async def test_what_pod_resources_lists_is_in_use_though_the_checkpoint_is_unreadable_for_a_minute(
    node: Node, kind: str
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        await named(node, board.gpu, vm)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        damage(node, kubelet, kind)
        await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, A_MINUTE)
        assert vm.key in await refusal(kubelet, USB, board.usb)
        kubelet.delete(vm)
        await until_all_healthy(kubelet, GPU, USB, within=SOON)
        mend(node, kubelet, kind)
        following = await kubelet.admit(pod("next", {GPU: 1, USB: 1}))
        running(following)
        await named(node, board.gpu, following)
        kubelet.delete(following)
        await until_all_healthy(kubelet, GPU, USB, within=SOON)


@KINDS
async def test_without_a_readable_checkpoint_a_device_that_is_not_listed_is_in_use_for_30_seconds(
    node: Node, kind: str
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        await named(node, board.gpu, vm)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        damage(node, kubelet, kind)
        kubelet.delete(vm)
        await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, SOON)
        await until_all_healthy(kubelet, GPU, USB)


@pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
async def test_a_driver_change_waits_until_the_checkpoint_can_be_read(node: Node) -> None:
    async with with_a_serial_card(node, STICKS) as drivers, node.kubelet() as kubelet, node.daemon():
        damage(node, kubelet, "another format")
        node.configure(bound(SERIAL))
        await node.until_told(lambda told: bool(told["changes"]["waiting"]))
        assert not drivers.writes
        mend(node, kubelet, "another format")
        await eventually(lambda: drivers.driver(SERIAL) == "vfio-pci", SOON)
        node.configure(HEAD + STICKS)
        await eventually(lambda: drivers.driver(SERIAL) == "serial")
