# SPDX-License-Identifier: Apache-2.0
"""A kubelet answers who holds what before it has a socket for plugins: until the container runtime is up.

``startKubelet`` in cmd/kubelet/app/server.go serves PodResources at once, while
``initializeRuntimeDependentModules`` in pkg/kubelet/kubelet.go starts the device manager later. What was
given before is no less held because the new kubelet names nobody yet.
"""

from __future__ import annotations

import anyio
import pytest

from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    USB,
    all_listed,
    running,
    started,
    usb_boards,
    usb_lists,
    what,
)
from tests.blackbox.harness import Node, pod, until_health

LONG = 600.0
LATE = 2.0  # seconds until the container runtime is up


@pytest.mark.parametrize("flags", [(), HARDLY], ids=["default", "50 ms"])
async def test_what_an_init_container_has_stays_held_while_a_new_kubelet_has_no_socket_for_plugins(
    node: Node, flags: tuple[str, ...]
) -> None:
    """Nobody shows it, so it was never named; the file of the kubelet has it."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("one", {}, init_containers=[{GPU: 1}])))
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        kubelet.faults.set("pod-resources-unnamed", LONG)
        kubelet.faults.set("plugins-late", LATE)
        told: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.restart)
            await kubelet.until(lambda: not kubelet.life.running)
            while not kubelet.life.running:
                told.append(await what(node, board.usb))
        assert told
        assert all("IOMMU group in use" in each for each in told)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [1.5, 4.0])
@pytest.mark.parametrize("has", ["container", "init container"])
async def test_the_first_list_for_a_kubelet_that_answered_early_shows_no_sibling_of_what_was_just_given(
    node: Node, has: str, delay: float
) -> None:
    """From then on its answers take longer than the list waits for them."""
    (board,) = boards = usb_boards(node, 1)
    one = pod("one", {GPU: 1}) if has == "container" else pod("one", {}, init_containers=[{GPU: 1}])
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(one))
        kubelet.faults.set("pod-resources-unnamed", LONG)
        kubelet.faults.set("plugins-late", LATE)
        seen = len(kubelet.statistics.lists[USB])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.restart)
            await anyio.sleep(LATE / 2)
            kubelet.faults.set("pod-resources-delay", delay)
        await all_listed(kubelet, usb_lists(boards))
        assert (await kubelet.admit(pod("late", {USB: 1}))).phase == "Failed"
        lists = list(kubelet.statistics.lists[USB])[seen:]
        assert [each.health for each in lists if each.health != {board.usb: "Unhealthy"}] == []
