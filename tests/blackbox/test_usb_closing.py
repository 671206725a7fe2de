# SPDX-License-Identifier: Apache-2.0
"""A USB device is given when whoever had it has let go, whatever the kubelet says, and however he ends."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import named, refusal, running, stays
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.blackbox.plugs import ONE, SINGLE, all_seen, configured, opened, plugged, stick
from tests.blackbox.test_one_group_counts import ENDING, OLD, process

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
DEVICE = "46f4:0001-A"
REFUSED = 9.0  # seconds within which an Allocate that waits for a USB device is answered


def silent(kubelet: FakeKubelet) -> None:
    kubelet.faults.set("pod-resources-exhausted", True)


def slow(kubelet: FakeKubelet) -> None:
    kubelet.faults.set("pod-resources-delay", 60.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", [silent, slow, None], ids=["refuses", "is slow", "answers"])
async def test_it_is_waited_for_though_the_kubelet(
    node: Node, how: Callable[[FakeKubelet], None] | None
) -> None:
    configured(node, SINGLE)
    all_seen(node)
    path = plugged(node, "1-1", stick("A"), 4)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(ONE, 1)
        old = await kubelet.admit(pod("old", {ONE: 1}))
        running(old)
        await named(node, DEVICE, old)
        descriptor = opened(node, path)
        if how is not None:
            how(kubelet)
        kubelet.delete(old)
        new = pod("new", {ONE: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
            await stays(kubelet, lambda: new.phase == "Pending", 4.0)
            descriptor.unlink()
        running(new)


async def ends_while_it_is_seen(node: Node, kubelet: FakeKubelet, path: str) -> None:
    """Somebody was seen with the device at an Allocate, and has no table of descriptors since."""
    descriptor = opened(node, path)
    assert "4711" in await refusal(kubelet, ONE, DEVICE)
    process(node, flags=ENDING, state="D")
    descriptor.unlink()


@pytest.mark.slow
@pytest.mark.time_scale(0.3)
async def test_another_one_with_the_number_of_what_he_had_is_not_his(node: Node) -> None:
    """Numbers begin again when the controller is bound anew."""
    configured(node, SINGLE)
    process(node)
    path = plugged(node, "1-1", stick("A"), 4)
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(ONE, 1)
        await ends_while_it_is_seen(node, kubelet, path)
        node.usb.unplug("1-1")
        await until_health(kubelet, ONE, DEVICE, None)
        plugged(node, "1-2", stick("B"), 4)
        await until_health(kubelet, ONE, "46f4:0001-B", "Healthy")
        await stays(kubelet, lambda: True, OLD)
        assert await refusal(kubelet, ONE, "46f4:0001-B") == ""
