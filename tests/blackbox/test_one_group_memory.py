# SPDX-License-Identifier: Apache-2.0
"""Who was seen with a device is remembered, whoever he is and however many they are; of that device alone.

And what cannot be found out of him hides nobody else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.sim import cards, files
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.mdev_kernel import Card, MdevKernel, Type
from tests.blackbox import silentfs
from tests.blackbox.boards import GPU, USB, named, refusal, running, started, stays, usb_boards, usb_lists
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_counts import (
    ENDING,
    MDEVS,
    OLD,
    QEMU,
    closed,
    mdevs_offered,
    process,
    restarted_with,
)
from tests.blackbox.test_one_group_ending import (
    another,
    forgotten_counted,
    hangs_as_it_ends,
)
from tests.blackbox.test_one_group_left_open import left_open, slow_to_tell
from tests.blackbox.test_one_group_looks import OTHER, unseen
from tests.blackbox.test_one_group_open import LET_GO
from tests.blackbox.test_one_group_plugins import group_of
from tests.blackbox.test_one_group_seen import ENDS, alias

pytestmark = pytest.mark.slow

CUT = "приложение".encode()[:15]  # as the kernel cuts it (TASK_COMM_LEN): half of the eighth letter is left
TYPES = (Type("nvidia-228", 1, "GRID T4-8A"), Type("nvidia-222", 1, "GRID T4-1B"))


def cut_short(node: Node, *, flags: int = 0, state: bytes = b"S") -> None:
    """A process of the host; one that ends has nothing open."""
    files.directory(node.host.path(f"{QEMU}/fd"))
    Path(node.host.path(f"{QEMU}/comm")).write_bytes(CUT + b"\n")
    numbers = f" 1 4711 4711 0 -1 {flags} {'0 ' * 10}1 0 0\n".encode()
    Path(node.host.path(f"{QEMU}/stat")).write_bytes(b"4711 (" + CUT + b") " + state + numbers)
    if flags:
        node.host.tree.remove(f"{QEMU}/fd/7")


async def test_a_process_is_waited_for_as_it_ends_whose_name_is_no_utf_8(node: Node) -> None:
    cut_short(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        await forgotten_counted(node, kubelet, board)
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        cut_short(node, flags=ENDING, state=b"D")
        node.host.release(board.gpu)
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        cut_short(node, flags=ENDING, state=b"Z")
    running(new)


async def test_a_process_with_an_mdev_is_waited_for_as_it_ends_whose_name_is_no_utf_8(node: Node) -> None:
    cut_short(node)
    new = pod("new", {MDEVS: 1})
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        await left_open(node, kubelet)
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        cut_short(node, flags=ENDING, state=b"D")
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        cut_short(node, flags=ENDING, state=b"Z")
    running(new)


@asynccontextmanager
async def mdevs_of_two_types(node: Node) -> AsyncIterator[Kubelet]:
    """A daemon that has made the one mdev of the first type for which there is room."""
    node.host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
    wished(node, TYPES[0])
    card = Card("0000:3b:00.0", TYPES)
    cards.add_card(node.host, card, 10)
    async with cards.simulated(node.host, MdevKernel([card])), node.kubelet() as kubelet, node.daemon():
        await kubelet.until(lambda: list(health(kubelet, MDEVS).values()) == ["Healthy"], PATIENCE)
        yield kubelet


def wished(node: Node, wish: Type) -> None:
    node.configure(f"mdevs: {{manage: true, types: [{wish.id}]}}")


async def test_an_mdev_that_was_made_anew_is_given_though_the_process_hangs_that_had_the_one_before(
    node: Node,
) -> None:
    """The kernel takes no mdev away that is open. Both have one UUID, as all that are made to order."""
    process(node)
    async with mdevs_of_two_types(node) as kubelet:
        device = await left_open(node, kubelet)
        assert "open" in (await kubelet.admit(pod("refused", {MDEVS: 1}))).message
        await until_health(kubelet, MDEVS, device, "Unhealthy")
        hangs_as_it_ends(node)
        wished(node, TYPES[1])
        await kubelet.until(lambda: not health(kubelet, MDEVS), PATIENCE)
        wished(node, TYPES[0])
        await kubelet.until(lambda: health(kubelet, MDEVS) == {device: "Healthy"}, PATIENCE)
        await stays(kubelet, lambda: health(kubelet, MDEVS) == {device: "Healthy"}, OLD)
        running(await kubelet.admit(pod("new", {MDEVS: 1})))


@pytest.mark.parametrize("first", [QEMU, OTHER])
async def test_of_two_processes_with_a_node_of_another_name_the_one_that_ends_last_is_waited_for(
    node: Node, first: str
) -> None:
    """They share the descriptor, as those of DPDK do. ``first``: who closes it at once."""
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), anyio.create_task_group() as tasks:
        await forgotten_counted(node, kubelet, board, alias(node, board.group))
        another(node, board.group)
        node.host.tree.remove(f"{OTHER}/fd/7")
        node.host.tree.link(f"{OTHER}/fd/7", "/host-dev/alias")
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", OLD + 1.0)
        for each in (QEMU, OTHER):
            node.host.tree.remove(f"{each}/fd/7")
        shutil.rmtree(node.host.path(first))
        lasts(node, first, "D")
        node.host.release(board.gpu)
        await stays(kubelet, lambda: new.phase == "Pending", ENDS)
        lasts(node, first, "Z")
    running(new)


def lasts(node: Node, first: str, state: str) -> None:
    """The other one is ending."""
    if first == OTHER:
        process(node, flags=ENDING, state=state)
    else:
        another(node, "", flags=ENDING, state=state)


@contextmanager
def unanswered(node: Node, below: Path) -> Iterator[None]:
    """The process has a file open that hangs whoever looks at it, as each does without statx(2)."""
    place = below / "home/dead"
    place.mkdir(parents=True)
    if not silentfs.possible(place):
        pytest.skip("no FUSE")
    os.symlink(place / "file", node.host.path(f"{QEMU}/fd/9"))
    with silentfs.silent(place):
        yield


@pytest.mark.parametrize("how", ["lives", "ends"])
async def test_a_device_is_given_when_its_count_falls_though_its_process_has_a_file_that_hangs(
    node: Node, tmp_path: Path, how: str
) -> None:
    process(node)
    new = pod("new", {GPU: 1})
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        await forgotten_counted(node, kubelet, board)
        with unanswered(node, tmp_path):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.admit, new)
                await stays(kubelet, lambda: new.phase == "Pending", OLD)
                node.host.release(board.gpu)
                if how == "lives":
                    node.host.tree.remove(f"{QEMU}/fd/7")
                else:
                    shutil.rmtree(node.host.path(QEMU))
    running(new)


async def test_who_has_a_group_by_its_name_is_seen_though_a_file_hangs_of_who_had_another(
    node: Node, tmp_path: Path
) -> None:
    process(node)
    new = pod("new", {GPU: 1})
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        other = await kubelet.admit(pod("other", {GPU: 1}))
        mine, its = sorted(boards, key=lambda board: board.gpu == other.result.ids[GPU][0])
        await forgotten_counted(node, kubelet, mine)
        another(node, its.group)
        await named(node, its.gpu, other)
        with unanswered(node, tmp_path):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kubelet.admit, new)
                await stays(kubelet, lambda: new.phase == "Pending", OLD)
                node.host.release(mine.gpu)
                shutil.rmtree(node.host.path(QEMU))
            kubelet.delete(other)
            await stays(kubelet, lambda: health(kubelet, GPU)[its.gpu] == "Healthy", OLD + 1.0)
            assert "see process 4713" in await refusal(kubelet, GPU, its.gpu)


async def test_a_group_is_free_again_when_its_neighbour_is_closed_though_each_look_takes_its_time(
    node: Node,
) -> None:
    """A driver has left the count of the sibling, so who has the group open was seen with that, too."""
    (board,) = usb_boards(node, 1)
    node.host.write(board.usb, "enable", "1")
    async with restarted_with(node, board, {GPU: 1}) as (kubelet, old), anyio.create_task_group() as tasks:
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        tasks.start_soon(slow_to_tell, unseen(node), 1.4)
        closed(node, board.gpu)
        kubelet.delete(old)
        await kubelet.until(lambda: health(kubelet, GPU)[board.gpu] == "Healthy", OLD + PATIENCE)
        running(await kubelet.admit(pod("new", {GPU: 1})))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("first", [QEMU, OTHER])
async def test_of_two_processes_that_were_there_before_the_daemon_the_one_that_ends_last_is_waited_for(
    node: Node, first: str
) -> None:
    """The count was never lower, so it is what is seen of processes that tells."""
    (board,) = usb_boards(node, 1)
    both = restarted_with(node, board, {GPU: 1}, then=lambda: another(node, board.group))
    async with both as (kubelet, old):
        kubelet.delete(old)
        await stays(kubelet, lambda: True, OLD + 1.0)
        assert health(kubelet, GPU)[board.gpu] == "Unhealthy"
        for each in (QEMU, OTHER):
            node.host.tree.remove(f"{each}/fd/7")
        shutil.rmtree(node.host.path(first))
        lasts(node, first, "D")
        await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Unhealthy", ENDS)
        assert await refusal(kubelet, GPU, board.gpu)
        lasts(node, first, "Z")
        await until_health(kubelet, GPU, board.gpu, "Healthy")


async def under_another_name_refused(node: Node, kubelet: Kubelet) -> str:
    """The mdev, of which the process has the node under a name that is not the host's, after a refusal."""
    old = await kubelet.admit(pod("old", {MDEVS: 1}))
    (device,) = old.result.ids[MDEVS]
    node.host.tree.link(f"{QEMU}/fd/7", alias(node, group_of(node, device)))
    await named(node, device, old)
    kubelet.delete(old)
    await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Healthy", OLD + 1.0)
    assert "see process 4711" in (await kubelet.admit(pod("refused", {MDEVS: 1}))).message
    await until_health(kubelet, MDEVS, device, "Unhealthy")
    return device


async def test_an_mdev_that_a_living_process_has_under_another_name_is_refused_though_no_look_ends_any_more(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        device = await under_another_name_refused(node, kubelet)
        tasks.start_soon(slow_to_tell, unseen(node), 3.0)
        await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Unhealthy", OLD)
        assert (await kubelet.admit(pod("new", {MDEVS: 1}))).phase == "Failed"
        tasks.cancel_scope.cancel()


async def test_an_mdev_that_a_living_process_has_is_refused_though_whoever_looks_at_its_files_hangs(
    node: Node, tmp_path: Path
) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet:
        device = await under_another_name_refused(node, kubelet)
        with unanswered(node, tmp_path):
            await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Unhealthy", OLD)
            assert (await kubelet.admit(pod("new", {MDEVS: 1}))).phase == "Failed"
