# SPDX-License-Identifier: Apache-2.0
"""Counts of opens that prove nothing by themselves: left by a former driver, or there before this daemon.

And mdevs, which have none. What /proc shows of them then is to be looked at again, and of all functions of a
group; of a process that is ending it shows nothing (see test_one_group_dying.py).
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.sim import files
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.blackbox.boards import (
    GPU,
    USB,
    Board,
    all_listed,
    named,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
    what,
)
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_open import (
    LET_GO,
    NOT_ISOLATED,
    waits_until_closed,
)

MDEVS = "nvidia.com/GRID_T4-8A"
QEMU = "/proc/4711"
ENDING, OF_A_KERNEL_THREAD = 0x4, 0x200000  # PF_EXITING and PF_KTHREAD in include/linux/sched.h
OLD = 5.0  # seconds after which no pod is taken for one that was forgotten before the daemon came


def group_of(node: Node, uuid: str) -> str:
    """The number of the mdev's IOMMU group."""
    return Path(node.host.path(f"/sys/bus/mdev/devices/{uuid}/iommu_group")).readlink().name


def process(node: Node, *, flags: int = 0, state: str = "S", threads: int = 1) -> None:
    """A process of the host, which has nothing open; proc_pid_stat(5)."""
    files.directory(node.host.path(f"{QEMU}/fd"))
    node.host.write_file(f"{QEMU}/comm", "qemu-system-x86")
    numbers = f"1 4711 4711 0 -1 {flags} {'0 ' * 10}{threads} 0 0"
    node.host.write_file(f"{QEMU}/stat", f"4711 (qemu (of) x86) {state} {numbers}")


@asynccontextmanager
async def mdevs_offered(node: Node, count: int = 2) -> AsyncIterator[FakeKubelet]:
    """A daemon that has made so many mdevs; one kubelet."""
    card = Card("0000:3b:00.0", (Type("nvidia-228", count, "GRID T4-8A"),))
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    node.configure("mdevs: {manage: true, types: [nvidia-228]}")
    add_card(node.host, card, 10)
    async with simulated_cards(node.host, MdevKernel([card])), node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: list(health(kubelet, MDEVS).values()) == ["Healthy"] * count, PATIENCE)
        yield kubelet


@asynccontextmanager
async def restarted_with(
    node: Node, board: Board, wants: dict[str, int], *, seen: bool = True, then: Callable[[], object] = list
) -> AsyncIterator[tuple[FakeKubelet, Pod]]:
    """A pod got these of the board, its process has them open; the daemon is a new one, without a record.

    ``then`` is done before that is started.
    """
    if seen:
        process(node)
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await all_listed(kubelet, usb_lists([board]))
            old = await kubelet.admit(pod("old", wants))
            running(old)
            if seen:
                node.host.tree.link(f"{QEMU}/fd/7", f"/dev/vfio/{board.group}")
            for resource in wants:
                node.host.hold(board.gpu if resource == GPU else board.usb)
        then()
        async with node.daemon():
            await kubelet.until(lambda: len(kubelet.state.table.healthy.get(next(iter(wants)), ())) == 1)
            yield kubelet, old


def closed(node: Node, *addresses: str) -> None:
    """The process closes the group, with these functions, and goes on without."""
    node.host.tree.remove(f"{QEMU}/fd/7")
    for address in addresses:
        node.host.release(address)


async def test_a_card_whose_driver_left_a_count_is_free_again_when_its_neighbour_is_closed(
    node: Node,
) -> None:
    """The node is the group's: whoever has the neighbour open is seen to have the card open, too."""
    (board,) = usb_boards(node, 1)
    node.host.write(board.usb, "enable", "1")
    async with restarted_with(node, board, {GPU: 1}) as (kubelet, old):
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        closed(node, board.gpu)
        kubelet.delete(old)
        await until_health(kubelet, USB, board.usb, "Healthy")
        await until_health(kubelet, GPU, board.gpu, "Healthy")


async def test_who_has_a_group_open_is_seen_to_have_each_of_its_functions_open(node: Node) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with restarted_with(node, board, {GPU: 1, USB: 1}) as (kubelet, old):
        await named(node, board.gpu, old)
        for address in (board.gpu, board.usb):
            assert "4711 (qemu-system-x86)" in (await node.command("explain", address)).stdout
        kubelet.delete(old)
        await waits_until_closed(node, kubelet, GPU, board.gpu)


@pytest.mark.slow
async def test_an_old_count_is_waited_for_though_the_kubelet_does_not_answer(node: Node) -> None:
    (board,) = usb_boards(node, 1)
    async with restarted_with(node, board, {GPU: 1}, seen=False) as (kubelet, old):
        await named(node, board.gpu, old)
        await anyio.sleep(OLD)
        kubelet.faults.set("pod-resources-exhausted")
        kubelet.delete(old)
        new = pod("new", {GPU: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", 2.5 + LET_GO)
            node.host.release(board.gpu)
        running(new)


@pytest.mark.slow
async def test_a_count_that_a_driver_has_left_between_two_scans_keeps_no_card_from_being_given(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (daemon, kubelet):
        daemon.send(signal.SIGSTOP)
        node.host.bind(board.gpu, "i915")
        node.host.bind(board.gpu, "vfio-pci")
        node.host.write(board.gpu, "enable", "1")
        daemon.send(signal.SIGCONT)
        running(await kubelet.admit(pod("new", {GPU: 1})))
        assert await what(node, board.gpu) == ""


@pytest.mark.slow
async def test_a_count_below_zero_tells_as_well(node: Node) -> None:
    """A driver that disabled once too often: the kernel warns, and writes -1 as %u (``enable_show``)."""
    (board,) = boards = usb_boards(node, 1)
    node.host.write(board.gpu, "enable", "4294967295")
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        node.host.write(board.gpu, "enable", "0")
        await named(node, board.gpu, old)
        kubelet.delete(old)
        new = pod("new", {GPU: 1})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, new)
            await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
            node.host.write(board.gpu, "enable", "4294967295")
        running(new)
        kubelet.delete(new)
        await node.until_told(lambda told: not told["holders"])
        assert await what(node, board.gpu) == ""


async def test_a_card_that_a_driver_of_the_host_has_left_is_not_on_its_way_out(node: Node) -> None:
    """The node of the group is its neighbour's, the count is nobody's: no machine is to be stopped for it."""
    (board,) = boards = usb_boards(node, 1)
    node.host.bind(board.gpu, "radeon")
    async with started(node, listed=usb_lists(boards)):
        node.host.bind(board.gpu, None)
        await node.until_told(lambda told: "no driver" in str(told["resources"]))
        assert "bind 0000:20:00.0 to vfio-pci" in (await node.command("explain", board.gpu)).stdout


@pytest.mark.slow
async def test_while_another_mdev_is_free_none_is_preferred_that_a_pod_had_a_moment_ago(node: Node) -> None:
    """Where no process is seen it would be waited for."""
    async with mdevs_offered(node, 3) as kubelet:
        old = await kubelet.admit(pod("old", {MDEVS: 1}))
        (device,) = old.result.ids[MDEVS]
        await named(node, device, old)
        await anyio.sleep(OLD)
        kubelet.delete(old)
        new = [await kubelet.admit(pod(name, {MDEVS: 1})) for name in ("one", "two")]
        running(*new)
        assert all(device not in each.result.ids[MDEVS] for each in new)
