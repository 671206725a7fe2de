# SPDX-License-Identifier: Apache-2.0
"""Who has an mdev open is known whatever else hangs or is slow: a process, another opener, a look before.

And what the daemon before this one saw is seen again.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import anyio
import pytest

from nodeagent.sim import files
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.usb import STICK
from tests.blackbox import silentfs
from tests.blackbox.boards import (
    GPU,
    USB,
    all_listed,
    named,
    refusal,
    running,
    started,
    stays,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health
from tests.blackbox.test_one_group_alone import rules
from tests.blackbox.test_one_group_counts import ENDING, MDEVS, OLD, QEMU, mdevs_offered, process
from tests.blackbox.test_one_group_left_open import LOOK, left_open, slow_to_tell
from tests.blackbox.test_one_group_lent import BY_USB
from tests.blackbox.test_one_group_open import LET_GO, with_a_node_open
from tests.blackbox.test_one_group_plugins import group_of
from tests.blackbox.test_one_group_torn import hang

pytestmark = pytest.mark.slow

OTHER = "/proc/4713"


def opener(node: Node, device: str) -> str:
    """A second process, which has the mdev open as well; the path of its descriptor."""
    files.directory(node.host.path(f"{OTHER}/fd"))
    node.host.write_file(f"{OTHER}/comm", "qemu-kvm")
    node.host.write_file(f"{OTHER}/stat", f"4713 (qemu-kvm) S 1 4713 4713 0 -1 0 {'0 ' * 10}1 0 0")
    node.host.tree.link(f"{OTHER}/fd/7", f"/dev/vfio/{group_of(node, device)}")
    return f"{OTHER}/fd/7"


def unseen(node: Node) -> Path:
    """A process of which nothing can be told from now on; what hangs."""
    files.directory(node.host.path("/proc/4712/fd"))
    node.host.write_file("/proc/4712/stat", "")
    stat = Path(node.host.path("/proc/4712/stat"))
    hang(stat)
    return stat


def dead_file(node: Node, below: Path, by: str) -> AbstractContextManager[None]:
    """That process has one open, until the end of the block; its directory has a name as nodes have."""
    place = below / "home/dev/dead"
    place.mkdir(parents=True)
    if not silentfs.possible(place):
        pytest.skip("no FUSE")
    files.directory(node.host.path(f"{by}/fd"))
    os.symlink(place, node.host.path(f"{by}/fd/9"))
    return silentfs.silent(place)


async def both_left_open(node: Node, kubelet: Kubelet) -> list[str]:
    """Two mdevs, each kept open by a process of its own whose pod was forgotten some time ago."""
    old = [await kubelet.admit(pod(name, {MDEVS: 1})) for name in ("first", "second")]
    devices = [each.result.ids[MDEVS][0] for each in old]
    node.host.tree.link(f"{QEMU}/fd/7", f"/dev/vfio/{group_of(node, devices[0])}")
    opener(node, devices[1])
    for each, device in zip(old, devices, strict=True):
        await named(node, device, each)
        kubelet.delete(each)
    await stays(kubelet, lambda: set(health(kubelet, MDEVS).values()) == {"Healthy"}, OLD + 1.0)
    return devices


async def both_refused(node: Node, kubelet: Kubelet) -> list[str]:
    """The same, after a pod was refused each of them."""
    devices = await both_left_open(node, kubelet)
    for name in ("third", "fourth"):
        assert "open" in (await kubelet.admit(pod(name, {MDEVS: 1}))).message
    for each in devices:
        await until_health(kubelet, MDEVS, each, "Unhealthy")
    return devices


async def test_an_mdev_that_two_processes_have_open_waits_for_both_though_no_look_ends_any_more(
    node: Node,
) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        device = await left_open(node, kubelet)
        second = opener(node, device)
        new = pod("new", {MDEVS: 1})
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        unseen(node)
        node.host.tree.remove(second)
        await stays(kubelet, lambda: new.phase == "Pending", 2.0 * LOOK)
        node.host.tree.remove(f"{QEMU}/fd/7")
    running(new)


async def test_a_process_that_was_seen_with_an_mdev_and_is_ending_has_it_though_no_look_ends_any_more(
    node: Node,
) -> None:
    """Its table is gone, and the kernel closes yet what was in it."""
    process(node)
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        await left_open(node, kubelet)
        new = pod("new", {MDEVS: 1})
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", LET_GO)
        unseen(node)
        process(node, flags=ENDING)
        node.host.tree.remove(f"{QEMU}/fd/7")
        await stays(kubelet, lambda: new.phase == "Pending", 2.0 * LOOK)
        process(node, flags=ENDING, state="Z")
    running(new)


@pytest.mark.parametrize("by", [QEMU, "/proc/4799", ""], ids=["the other opener", "anybody", "nobody"])
async def test_what_a_process_lets_go_of_is_free_though_one_has_a_file_of_a_dead_file_system(
    node: Node, tmp_path: Path, by: str
) -> None:
    process(node)
    async with mdevs_offered(node) as kubelet:
        stays_open, let_go = await both_refused(node, kubelet)
        with dead_file(node, tmp_path, by) if by else nullcontext():
            await stays(kubelet, lambda: health(kubelet, MDEVS)[let_go] == "Unhealthy", 1.0)
            node.host.tree.remove(f"{OTHER}/fd/7")
            await until_health(kubelet, MDEVS, let_go, "Healthy")
            assert health(kubelet, MDEVS)[stays_open] == "Unhealthy"


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "answers"])
async def test_what_a_process_had_that_has_ended_is_free_though_it_could_not_be_looked_at(
    node: Node, tmp_path: Path, hangs: bool
) -> None:
    process(node)
    async with mdevs_offered(node) as kubelet:
        device, _ = await both_refused(node, kubelet)
        with dead_file(node, tmp_path, QEMU) if hangs else nullcontext():
            await stays(kubelet, lambda: health(kubelet, MDEVS)[device] == "Unhealthy", 1.0)
            shutil.rmtree(node.host.path(QEMU))
            await until_health(kubelet, MDEVS, device, "Healthy")


async def test_a_group_whose_node_a_process_has_under_another_name_is_not_given(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        files.directory(node.host.path("/host-dev"))
        os.link(node.host.path(f"/dev/vfio/{board.group}"), node.host.path("/host-dev/alias"))
        kubelet.delete(await with_a_node_open(node, kubelet, board, "/host-dev/alias"))
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, GPU, board.gpu)


async def test_a_group_is_not_given_while_its_node_is_open_though_the_function_has_left_that_a_pod_had(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await with_a_node_open(node, kubelet, board)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        await stays(kubelet, lambda: health(kubelet, USB)[board.usb] == "Unhealthy", OLD + 1.0)
        kubelet.delete(old)
        await until_health(kubelet, USB, board.usb, "Healthy")
        node.host.unplug(board.gpu)
        await kubelet.until(lambda: board.gpu not in health(kubelet, GPU), PATIENCE)
        assert "4711 (qemu-system-x86)" in await refusal(kubelet, USB, board.usb)


async def test_a_refusal_names_the_process_though_looks_hang_from_late_in_the_request(node: Node) -> None:
    process(node)
    async with mdevs_offered(node, 1) as kubelet, anyio.create_task_group() as tasks:
        device = await left_open(node, kubelet)
        new = pod("new", {MDEVS: 1})
        tasks.start_soon(kubelet.admit, new)
        await stays(kubelet, lambda: new.phase == "Pending", 8.2)
        unseen(node)
        await kubelet.until(lambda: new.phase != "Pending", PATIENCE)
        assert "4711 (qemu-system-x86)" in new.message
        await until_health(kubelet, MDEVS, device, "Unhealthy")


async def test_a_look_that_would_end_in_time_is_waited_for_behind_the_one_of_a_refusal(node: Node) -> None:
    process(node)
    async with mdevs_offered(node) as kubelet, anyio.create_task_group() as tasks:
        await both_left_open(node, kubelet)
        tasks.start_soon(slow_to_tell, unseen(node), 1.5)
        for name in ("third", "fourth"):
            assert "open" in (await kubelet.admit(pod(name, {MDEVS: 1}))).message
        tasks.cancel_scope.cancel()


async def test_a_group_whose_node_is_kept_open_is_not_given_by_the_next_daemon(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            kubelet.delete(await with_a_node_open(node, kubelet, board))
            await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Healthy", 1.0)
        kubelet.state.table.save()
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Healthy", OLD + 1.0)
            new = await kubelet.admit(pod("new", {GPU: 1}))
            assert "4711 (qemu-system-x86)" in new.message
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")


async def test_a_usb_device_that_is_free_comes_before_one_that_was_left_beside_one_that_is_held(
    node: Node,
) -> None:
    for number, serial in enumerate("ABC"):
        node.host.usb.plug(f"1-{number + 1}", STICK._replace(serial=serial), 4 + number)
    node.configure(rules(BY_USB))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 3)
        await stays(kubelet, lambda: True, OLD + 1.0)
        old, keeper, new = (pod(name, {GPU: 1}) for name in ("old", "keeper", "new"))
        running(await kubelet.admit(old))
        running(await kubelet.admit(keeper))
        await named(node, "46f4:0001-A", old)
        await named(node, "46f4:0001-B", keeper)
        kubelet.delete(old)
        running(await kubelet.admit(new))
        assert new.result.ids[GPU] == ("46f4:0001-C",)
