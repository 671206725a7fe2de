# SPDX-License-Identifier: Apache-2.0
"""Unknown is held: a silent, young or cut-off kubelet frees nothing, and its checkpoint only adds.

What it has named and names no more is free at once, however young it is; what ended unseen is so in the end.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    REST,
    USB,
    Board,
    all_listed,
    apart,
    end,
    groups,
    named,
    refusal,
    running,
    started,
    stays,
    until_all_healthy,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health

AN_HOUR, LONG = 3600.0, 600.0
SILENT = "pod-resources-exhausted"
CUT_OFF = "pod-resources-unnamed"
EMPTY = "pod-resources-empty"


async def first_list(kubelet: FakeKubelet, resource: str, seen: int) -> dict[str, str]:
    """The health in the list of the resource that follows the first ``seen`` ones."""
    lists = kubelet.statistics.lists
    await kubelet.until(lambda: len(lists.get(resource, ())) > seen, PATIENCE)
    return lists[resource][seen].health


def lists_of(kubelet: FakeKubelet, resource: str) -> int:
    """How many lists of the resource have come."""
    return len(kubelet.statistics.lists.get(resource, ()))


@pytest.mark.slow
@pytest.mark.parametrize("flags", [FOR_EVER, HARDLY], ids=["60 s", "50 ms"])
@pytest.mark.parametrize("silence", ["no answer", "first seconds"])
async def test_a_holder_that_is_only_remembered_does_not_let_two_pods_share_what_it_had(
    node: Node, silence: str, flags: tuple[str, ...]
) -> None:
    """The pod that had both has ended unseen; the kubelet gives one on, then the other to somebody else."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        both = await kubelet.admit(pod("both", {GPU: 1, USB: 1}))
        running(both)
        for device in (board.gpu, board.usb):
            await named(node, device, both)
        if silence == "no answer":
            kubelet.faults.set(SILENT)
            kubelet.delete(both)
        else:
            kubelet.delete(both)
            await kubelet.restart()
            await all_listed(kubelet, usb_lists(boards))
        one = await kubelet.admit(pod("one", {GPU: 1}))
        other = await kubelet.admit(pod("other", {USB: 1}))
        assert "Failed" in (one.phase, other.phase)
        if one.phase == "Running":
            await until_health(kubelet, USB, board.usb, "Unhealthy")


@pytest.mark.slow
@pytest.mark.parametrize("since", ["before", "after"])
@pytest.mark.parametrize("fault", [SILENT, EMPTY])
async def test_a_sibling_of_another_resource_is_refused_to_anybody_while_nobody_says_who_asks(
    node: Node, fault: str, since: str
) -> None:
    """An answer that does not even name the pod that asks tells no more than none."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        if since == "before":
            kubelet.faults.set(fault, LONG)
        running(await kubelet.admit(pod("one", {GPU: 1})))
        kubelet.faults.set(fault, LONG)
        assert (await kubelet.admit(pod("other", {USB: 1}))).phase == "Failed"
        kubelet.faults.clear(fault)
        assert (await kubelet.admit(pod("another", {USB: 1}))).phase == "Failed"
        await until_health(kubelet, USB, board.usb, "Unhealthy")


@pytest.mark.slow
@pytest.mark.parametrize("outage", [(CUT_OFF, LONG), (EMPTY, LONG), (SILENT, True)], ids=lambda each: each[0])
async def test_a_new_daemon_keeps_apart_what_only_the_checkpoint_tells(
    node: Node, outage: tuple[str, object]
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        first = await give_and_kill(node, kubelet, boards)
        kubelet.faults.set(*outage)
        await kubelet.restart()
        seen = lists_of(kubelet, USB)
        async with node.daemon():
            assert await first_list(kubelet, USB, seen) == {board.usb: "Unhealthy"}
            await all_listed(kubelet, usb_lists(boards))
            assert "in use by" in await refusal(kubelet, USB, board.usb)
            assert (await kubelet.admit(pod("other", {USB: 1}))).phase == "Failed"
            await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 1.0)
            kubelet.faults.clear(outage[0])
            await named(node, board.gpu, first)
            await end(node, kubelet, first)


async def give_and_kill(node: Node, kubelet: FakeKubelet, boards: list[Board]) -> Pod:
    """Pod ``first`` gets the GPU of the first board; then the daemon is killed."""
    async with node.daemon() as daemon:
        await all_listed(kubelet, usb_lists(boards))
        for board in boards[1:]:  # the choice is the kubelet's
            node.host.bind(board.gpu, None)
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        first = await kubelet.admit(pod("first", {GPU: 1}))
        assert groups(first) == {boards[0].group}
        for board in boards[1:]:
            node.host.bind(board.gpu, "vfio-pci")
        await daemon.end(signal.SIGKILL)
    return first


async def test_a_kubelet_that_is_cut_off_gives_a_new_pod_another_board(node: Node) -> None:
    boards = usb_boards(node, 2)
    async with node.kubelet() as kubelet:
        await give_and_kill(node, kubelet, boards)
        kubelet.faults.set(CUT_OFF, LONG)
        await kubelet.restart()
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            static = await kubelet.admit(pod("static", {USB: 1, GPU: 1}))
            running(static)
            assert groups(static) == {boards[1].group}


async def test_a_young_kubelet_that_has_named_a_holder_and_names_it_no_more_has_released_it(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards), age=0.0) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        await named(node, board.gpu, first)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        kubelet.delete(first)
        began = time.monotonic()
        await until_health(kubelet, USB, board.usb, "Healthy")
        assert time.monotonic() - began < 5.0
        running(await kubelet.admit(pod("next", {USB: 1})))


@pytest.mark.parametrize("restart", ["daemon", "kubelet", "both"])
async def test_a_stale_entry_of_the_checkpoint_ends_by_itself(node: Node, restart: str) -> None:
    """Its pod has ended, and the kubelet writes the file at lists and allocations only."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await all_listed(kubelet, usb_lists(boards))
            first = await kubelet.admit(pod("first", {GPU: 1}))
            await until_health(kubelet, USB, board.usb, "Unhealthy")
            if restart != "kubelet":
                await daemon.end(signal.SIGKILL)
            if restart != "daemon":
                await kubelet.stop()
            kubelet.delete(first)
            if restart != "daemon":
                kubelet.faults.set(CUT_OFF, 1.0)
                await kubelet.start()
            if restart == "kubelet":
                await until_all_healthy(kubelet, GPU, USB, within=REST)
        if restart != "kubelet":
            async with node.daemon():
                await all_listed(kubelet, usb_lists(boards))
                await until_all_healthy(kubelet, GPU, USB)
                running(await kubelet.admit(pod("next", {USB: 1})))


async def test_an_id_of_the_checkpoint_that_did_not_come_back_is_in_the_first_list(node: Node) -> None:
    """Kubelet 1.36 dereferences nil without it, in a loop of crashes."""
    lost, other = boards = usb_boards(node, 2, numa=0)
    async with node.kubelet(topology_policy="best-effort") as kubelet:
        await give_and_kill(node, kubelet, boards)
        node.host.unplug(lost.gpu)
        kubelet.faults.set(CUT_OFF, LONG)
        await kubelet.restart()
        seen = lists_of(kubelet, GPU)
        async with node.daemon():
            health_first = await first_list(kubelet, GPU, seen)
            assert health_first == {lost.gpu: "Unhealthy", other.gpu: "Healthy"}
            assert not kubelet.life.crashed


async def test_a_file_that_is_no_checkpoint_is_borne(node: Node) -> None:
    usb_boards(node, 1)
    texts = ['{"Data": {"PodDeviceEntries": [7, {"DeviceIDs": "x"}]}}', "", "[]", '{"Data": null}']
    async with node.kubelet() as kubelet:
        for number, text in enumerate(texts):
            write(node, text)
            seen = {resource: lists_of(kubelet, resource) for resource in (GPU, USB)}
            async with node.daemon() as daemon:
                for resource, lists in seen.items():
                    await first_list(kubelet, resource, lists)
                vm = await kubelet.admit(pod(f"vm{number}", {GPU: 1, USB: 1}))
                running(vm)
                await end(node, kubelet, vm)
                assert await daemon.end() == 0


def write(node: Node, text: str) -> None:
    """Put the text where the checkpoint is."""
    (node.plugins / "kubelet_internal_checkpoint").write_text(text)


async def test_a_clock_that_was_set_forward_makes_no_young_kubelet_old(node: Node) -> None:
    """Its sockets seem an hour old, and it does not name its pods yet."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet(age=0.0) as kubelet:
        kubelet.faults.set(EMPTY, LONG)
        for directory in (kubelet.paths.plugins, kubelet.paths.pod_resources):
            set_back(directory / "kubelet.sock", AN_HOUR)
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            running(await kubelet.admit(pod("first", {GPU: 1})))
            await until_health(kubelet, USB, board.usb, "Unhealthy")
            await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 2.0)
            assert "in use by" in await refusal(kubelet, USB, board.usb)


def set_back(path: Path, seconds: float) -> None:
    """Make a file look that much older: what a step of the clock looks like."""
    born = path.lstat().st_mtime - seconds
    os.utime(path, (born, born))


async def test_the_clock_steps_while_a_kubelet_is_young_and_the_daemon_runs(node: Node) -> None:
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        await named(node, first.result.ids[GPU][0], first)
        kubelet.faults.set(CUT_OFF, LONG)
        await kubelet.restart()
        set_back(kubelet.paths.pod_resources / "kubelet.sock", AN_HOUR)
        await all_listed(kubelet, usb_lists(boards))
        others = [await kubelet.admit(pod(f"other{number}", {USB: 1})) for number in range(2)]
        apart(first, *[each for each in others if each.phase == "Running"])
        assert sorted(each.phase for each in others) == ["Failed", "Running"]


@pytest.mark.parametrize("new", ["daemon", "kubelet", "daemon before the kubelet"])
async def test_the_first_list_waits_for_a_pod_resources_that_takes_half_a_second(
    node: Node, new: str
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        first = await give_and_kill(node, kubelet, boards)
        kubelet.faults.set("pod-resources-delay", 0.5)
        seen = lists_of(kubelet, USB)
        if new == "daemon before the kubelet":
            await kubelet.stop()
        elif new == "daemon":  # without a hint: the kubelet that runs remembers without its file
            (node.plugins / "kubelet_internal_checkpoint").unlink()
        async with node.daemon():
            if new == "daemon before the kubelet":
                await kubelet.start()
            elif new == "kubelet":
                await named(node, board.gpu, first)
                seen = lists_of(kubelet, USB)
                await kubelet.restart()
            assert await first_list(kubelet, USB, seen) == {board.usb: "Unhealthy"}
