# SPDX-License-Identifier: Apache-2.0
"""A USB device is free as soon as a kubelet has named its pod and names it no more, however young it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import named, running
from tests.blackbox.harness import Node, eventually, health, pod
from tests.blackbox.plugs import BUNDLE, ONE, SET, SINGLE, all_seen, configured, key, plugged, stick

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
STICK = "46f4:0001-A"
SOON = 8.0  # seconds: the kubelet counts as young for thirty


def moved(node: Node, port: str = "1-1") -> None:
    """It is plugged in again, and has another number."""
    node.usb.unplug(port)
    plugged(node, port, stick("A"), 7)


async def free(node: Node, kubelet: FakeKubelet, resource: str) -> None:
    await eventually(lambda: health(kubelet, resource).get(STICK) == "Healthy", SOON)
    await eventually(lambda: not node.state("usb"), SOON)


@contextlib.asynccontextmanager
async def given_before(node: Node, resource: str) -> AsyncIterator[tuple[FakeKubelet, Pod]]:
    """A kubelet, and a pod that has the stick; the daemon that has given it has ended."""
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(resource, 1)
            one = await kubelet.admit(pod("one", {resource: 1}))
            running(one)
            await named(node, STICK, one)
            await daemon.end()
        yield kubelet, one


async def over(node: Node, kubelet: FakeKubelet, one: Pod) -> None:
    """The new kubelet has named the pod, which ends; that is seen at the next resync at the latest."""
    await named(node, STICK, one)
    kubelet.delete(one)
    await node.until_told(lambda told: not told["holders"])


@pytest.mark.parametrize("again", [True, False], ids=["is plugged in again", "stays"])
async def test_the_stick_is_free_after_new_ones_of_both_although_it(node: Node, again: bool) -> None:
    all_seen(node)
    configured(node, SINGLE)
    plugged(node, "1-1", stick("A"), 4)
    async with given_before(node, ONE) as (kubelet, one):
        await kubelet.restart(away=0.2)
        async with node.daemon("--timing-resync", "1s"):
            await kubelet.until_listed(ONE, 1)
            await over(node, kubelet, one)
            if again:
                moved(node)
            await free(node, kubelet, ONE)


async def test_a_set_is_free_after_new_ones_of_both(node: Node) -> None:
    all_seen(node)
    configured(node, BUNDLE)
    plugged(node, "1-1", stick("A"), 4)
    plugged(node, "1-2", key("B"), 5)
    async with given_before(node, SET) as (kubelet, one):
        await kubelet.restart(away=0.2)
        async with node.daemon("--timing-resync", "1s"):
            await kubelet.until_listed(SET, 1)
            await over(node, kubelet, one)
            node.usb.unplug("1-2")
            plugged(node, "1-2", key("B"), 9)
            await free(node, kubelet, SET)
