# SPDX-License-Identifier: Apache-2.0
"""What ends after it was in doubt for long does not wait for the pauses that have grown meanwhile.

What only a plain init container has is told by the kubelet's file alone, which is not written when its pod
ends. But PodResources names all pods of the node: that one of them has gone is seen.
"""

from __future__ import annotations

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    GPU,
    USB,
    all_listed,
    running,
    started,
    stays,
    until_all_healthy,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import Node, health, pod

pytestmark = pytest.mark.slow

LONG = 8.5  # seconds: lists again at 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5
SOON = 4.0  # seconds: holders are asked for each 0.2 s here, and two files are 0.5 s apart


async def test_what_a_plain_init_container_had_for_long_is_free_soon_after_its_pod(node: Node) -> None:
    """One of two pods that came at once: the file decides, and twice."""
    boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("without", {})))
        old = await kubelet.admit(pod("old", {}, init_containers=[{GPU: 1}]))
        await freed(kubelet, old)


async def test_what_a_new_daemon_knows_from_the_file_is_free_soon_after_its_pod(node: Node) -> None:
    """It has not given it itself: one file decides."""
    boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await all_listed(kubelet, usb_lists(boards))
            old = await kubelet.admit(pod("old", {}, init_containers=[{GPU: 1}]))
            assert await daemon.end() == 0
        async with node.daemon():
            await freed(kubelet, old)


async def test_what_a_pod_had_that_comes_again_under_its_name_is_free_soon(node: Node) -> None:
    """The kubelet is not asked in between; it removes the directory of the one that has ended.

    Each 2 s (``cleanupOrphanedPodDirs``, called by ``HandlePodCleanups`` in pkg/kubelet/kubelet_pods.go).
    """
    boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("without", {})))
        old = await kubelet.admit(pod("old", {}, init_containers=[{GPU: 1}]))
        await held_for_long(kubelet, old)
        kubelet.delete(old)
        running(await kubelet.admit(pod("old", {})))
        (kubelet.paths.pods / old.uid).rmdir()
        await until_all_healthy(kubelet, USB, within=SOON)
        running(await kubelet.admit(pod("next", {GPU: 1, USB: 1})))


async def freed(kubelet: FakeKubelet, old: Pod) -> None:
    """The pod has its GPU for long, then ends; the sibling is free soon after that."""
    await held_for_long(kubelet, old)
    kubelet.delete(old)
    await until_all_healthy(kubelet, USB, within=SOON)
    running(await kubelet.admit(pod("next", {GPU: 1, USB: 1})))


async def held_for_long(kubelet: FakeKubelet, old: Pod) -> None:
    """The pod has its GPU until the pauses have grown."""
    running(old)
    await kubelet.until(lambda: "Unhealthy" in health(kubelet, USB).values(), 8.0)
    await stays(kubelet, lambda: "Unhealthy" in health(kubelet, USB).values(), LONG)
