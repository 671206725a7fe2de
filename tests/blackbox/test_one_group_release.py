# SPDX-License-Identifier: Apache-2.0
"""Released is what the host shows: force deletion, where the old container has the device for seconds yet.

And a pod that is refused half-way, where nothing was opened and the next pod need not wait.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.abc import Process

from nodeagent.sim import files
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    LONE_AT,
    USB,
    apart,
    end,
    groups,
    named,
    pair_boards,
    pair_lists,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.foreign import NIC, serving
from tests.blackbox.harness import PATIENCE, T4, Node, health, pod, until_health

LET_GO = 1.0  # seconds after which the old container ends here; 2.7 of a real one
MDEVS = "nvidia.com/GRID_T4-8A"


async def forced(node: Node, kubelet: FakeKubelet, old: Pod, device: str) -> None:
    """The pod has the device open, the daemon knows of it, and the kubelet forgets the pod."""
    running(old)
    node.host.hold(device)
    await named(node, device, old)
    kubelet.delete(old)


async def test_after_a_forced_deletion_the_next_pod_waits_until_the_device_is_closed(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        anyio.create_task_group() as tasks,
    ):
        await forced(node, kubelet, await kubelet.admit(pod("old", {GPU: 1})), board.gpu)
        new = pod("new", {GPU: 1})
        tasks.start_soon(kubelet.admit, new)
        await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        node.host.release(board.gpu)
        await kubelet.until(lambda: new.phase != "Pending", 2.0)
        running(new)


async def test_after_a_forced_deletion_the_sibling_is_not_given_while_the_device_is_open(node: Node) -> None:
    """The sibling is open for nobody; its group is."""
    (board,) = boards = pair_boards(node, 1)
    async with (
        started(node, listed=pair_lists(boards)) as (_, kubelet),
        anyio.create_task_group() as tasks,
    ):
        old = await kubelet.admit(pod("old", {T4: 2}))
        await forced(node, kubelet, old, board.first)
        answers: list[str] = []

        async def ask() -> None:
            answers.append(await refusal(kubelet, T4, board.second))
            kubelet.state.changed()

        tasks.start_soon(ask)
        await stays(kubelet, lambda: not answers, LET_GO)
        node.host.release(board.first)
        await kubelet.until(lambda: answers == [""], 2.0)


@pytest.mark.slow
async def test_a_device_that_is_never_closed_is_refused_in_time_and_disturbs_nobody(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        async with opened(node, f"/dev/vfio/{board.group}") as process, anyio.create_task_group() as tasks:
            await forced(node, kubelet, old, board.gpu)
            new, began = pod("new", {GPU: 1}), time.monotonic()
            tasks.start_soon(kubelet.admit, new)
            await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
            times = [await seconds(kubelet) for _ in range(20)]
            assert sorted(times)[10] < 1.0
            assert new.phase == "Pending"
            await kubelet.until(lambda: new.phase == "Failed", PATIENCE)
            assert 5.0 < time.monotonic() - began < 10.0
            assert board.gpu in new.message
            assert str(process.pid) in new.message
            assert "sleep" in new.message
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")
            node.host.release(board.gpu)
            await until_health(kubelet, GPU, board.gpu, "Healthy")


async def seconds(kubelet: FakeKubelet) -> float:
    """How long an Allocate of another resource takes."""
    began = time.monotonic()
    assert await refusal(kubelet, LONE, LONE_AT) == ""
    return time.monotonic() - began


@asynccontextmanager
async def opened(node: Node, path: str) -> AsyncIterator[Process]:
    """A process that has the node open, and is to be seen in the host's /proc."""
    file = os.open(node.host.path(path), os.O_RDONLY)
    try:
        process = await anyio.open_process(["sleep", "60"], stdin=file, stdout=subprocess.DEVNULL)
    finally:
        os.close(file)
    seen = f"/proc/{process.pid}"
    try:
        files.link(node.host.path(seen), seen)
        yield process
    finally:
        files.remove(node.host.path(seen))
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.aclose()


@pytest.mark.slow
async def test_an_mdev_that_a_forgotten_pod_has_open_is_waited_for(node: Node) -> None:
    """Nothing but the open node tells of it: an mdev has no ``enable``."""
    card = Card("0000:3b:00.0", (Type("nvidia-228", 2, "GRID T4-8A"),))
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    node.configure("mdevs: {manage: true, types: [nvidia-228]}")
    add_card(node.host, card, 10)
    async with (
        simulated_cards(node.host, MdevKernel([card])) as made,
        node.kubelet() as kubelet,
        node.daemon(),
        anyio.create_task_group() as tasks,
    ):
        await kubelet.until(lambda: list(health(kubelet, MDEVS).values()) == ["Healthy"] * 2, PATIENCE)
        old = await kubelet.admit(pod("old", {MDEVS: 2}))
        device = old.result.ids[MDEVS][0]
        made.hold(device)
        await named(node, device, old)
        kubelet.delete(old)
        new = pod("new", {MDEVS: 2})
        tasks.start_soon(kubelet.admit, new)
        await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        made.release(device)
        await kubelet.until(lambda: new.phase != "Pending", 2.0)
        running(new)


async def test_while_an_old_container_has_a_board_the_preference_leads_to_another(node: Node) -> None:
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        (device,) = old.result.ids[GPU]
        await forced(node, kubelet, old, device)
        new = await kubelet.admit(pod("new", {GPU: 1, USB: 1}))
        running(new)
        apart(old, new)
        assert len(groups(new)) == 1


@pytest.mark.parametrize("flags", [FOR_EVER, HARDLY], ids=["60 s", "50 ms"])
@pytest.mark.parametrize(("takes", "wanted"), [(0.0, GPU), (0.5, GPU), (0.0, USB)])
async def test_what_a_pod_got_that_was_refused_half_way_and_its_sibling_are_for_the_very_next_one(
    node: Node, takes: float, wanted: str, flags: tuple[str, ...]
) -> None:
    boards = usb_boards(node, 1)
    async with (
        started(node, *flags, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0", takes=takes, refusal="no"),
    ):
        for number in range(3):
            half = await kubelet.admit(pod(f"half{number}", {GPU: 1}, {NIC: 1}))
            assert (half.phase, groups(half)) == ("Failed", set())
            following = await kubelet.admit(pod(f"next{number}", {wanted: 1}))
            running(following)
            await end(node, kubelet, following)


async def test_a_refused_pod_opens_its_board_to_one_pod_only(node: Node) -> None:
    boards = usb_boards(node, 1)
    async with (
        started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0", refusal="no"),
    ):
        assert (await kubelet.admit(pod("half", {GPU: 1}, {NIC: 1}))).phase == "Failed"
        following = await kubelet.admit(pod("next", {USB: 1}))
        running(following)
        assert (await kubelet.admit(pod("late", {GPU: 1}))).phase == "Failed"
