# SPDX-License-Identifier: Apache-2.0
"""What is known of holders when all goes wrong: slow and cut-off kubelets, lost files, names that stay."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import (
    GPU,
    HARDLY,
    LONE,
    REST,
    USB,
    Board,
    all_listed,
    apart,
    groups,
    named,
    pair_boards,
    pair_lists,
    refusal,
    running,
    started,
    stays,
    until_all_healthy,
    usb_boards,
    usb_lists,
)
from tests.blackbox.foreign import NIC
from tests.blackbox.harness import PATIENCE, T4, Node, health, pod, until_health
from tests.blackbox.test_one_group_others import SOUND
from tests.blackbox.test_one_group_unknown import CUT_OFF, LONG, first_list, give_and_kill, lists_of
from tests.sim import plugin


async def admitted_at_last(kubelet: FakeKubelet, resource: str) -> Pod:
    """A pod that gets one, as a controller makes them: one after the other, and not in a tight loop."""
    with anyio.fail_after(PATIENCE):
        for number in itertools.count():
            made = await kubelet.admit(pod(f"again{number}", {resource: 1}))
            if made.phase == "Running":
                return made
            await anyio.sleep(1.0)
    raise AssertionError


@pytest.mark.parametrize("delay", [3.0, 4.5])
async def test_a_new_daemon_that_waits_for_a_slow_pod_resources_keeps_apart_what_the_checkpoint_tells(
    node: Node, delay: float
) -> None:
    """The file is there to be read at once; the answer comes after the first list."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        first = await give_and_kill(node, kubelet, boards)
        kubelet.faults.set("pod-resources-delay", delay)
        seen = lists_of(kubelet, USB)
        async with node.daemon():
            health_first = await first_list(kubelet, USB, seen)
            await all_listed(kubelet, usb_lists(boards))
            other = await kubelet.admit(pod("other", {USB: 1}))
            apart(first, other)
            assert other.phase == "Failed"
            assert health_first == {board.usb: "Unhealthy"}


async def test_a_new_daemon_that_waits_for_a_slow_pod_resources_gives_no_second_gpu_of_a_group(
    node: Node,
) -> None:
    """As before with one resource: nobody is even asked."""
    boards = pair_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await all_listed(kubelet, pair_lists(boards))
            first = await kubelet.admit(pod("first", {T4: 1}))
            running(first)
            await daemon.end(signal.SIGKILL)
        kubelet.faults.set("pod-resources-delay", 3.0)
        seen = lists_of(kubelet, T4)
        async with node.daemon():
            await first_list(kubelet, T4, seen)
            await all_listed(kubelet, pair_lists(boards))
            other = await kubelet.admit(pod("other", {T4: 1}))
            apart(first, other)
            assert other.phase == "Failed"


VIRT_HANDLER = f"kubevirt-{SOUND.replace('/', '-')}.sock"


async def given_by_virt_handler(node: Node, kubelet: FakeKubelet, board: Board) -> None:
    """A pod has the board by the number of its group; then the daemon and virt-handler end."""
    async with (
        node.daemon() as daemon,
        foreign.serving(kubelet, board.group, resource=SOUND, socket=VIRT_HANDLER),
    ):
        await all_listed(kubelet, usb_lists((board,)))
        running(await kubelet.admit(pod("vm", {SOUND: 1})))
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await daemon.end(signal.SIGKILL)


async def test_what_virt_handler_gave_stays_held_while_a_kubelet_is_cut_off(node: Node) -> None:
    """Its entry in the checkpoint is the number of a group."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        await given_by_virt_handler(node, kubelet, board)
        kubelet.faults.set(CUT_OFF, LONG)
        await kubelet.restart()
        serving = foreign.serving(kubelet, board.group, resource=SOUND, socket=VIRT_HANDLER)
        async with serving, node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            assert (await kubelet.admit(pod("static", {GPU: 1}))).phase == "Failed"


async def test_what_virt_handler_gave_is_held_before_its_socket_has_come_back(node: Node) -> None:
    """Both were started anew, and virt-handler takes longer."""
    (board,) = boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        await given_by_virt_handler(node, kubelet, board)
        await kubelet.restart()
        async with node.daemon():
            await all_listed(kubelet, usb_lists(boards))
            assert (await kubelet.admit(pod("other", {GPU: 1}))).phase == "Failed"


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["removed", "truncated", "a number"])
async def test_a_checkpoint_that_cannot_be_read_for_a_moment_frees_nothing(node: Node, loss: str) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}, uid="uid-of-first"))
        await named(node, board.gpu, first)
        kubelet.faults.set(CUT_OFF, LONG)
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        await anyio.sleep(1.0)
        path = node.plugins / "kubelet_internal_checkpoint"
        if loss == "removed":
            path.unlink()
        else:
            path.write_text("" if loss == "truncated" else "7")
        await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 3.0)
        assert (await kubelet.admit(pod("other", {USB: 1}))).phase == "Failed"


async def test_a_refused_pod_that_comes_again_under_its_name_without_devices_leaves_nothing_held(
    node: Node,
) -> None:
    """The name stays in the kubelet's list, for weeks maybe; the device does not."""
    boards = usb_boards(node, 1)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        foreign.serving(kubelet, "nic-0", refusal="no such network"),
    ):
        first = await kubelet.admit(pod("vm", {GPU: 1}, {NIC: 1}, uid="uid-1"))
        assert first.phase == "Failed"
        kubelet.delete(first)
        running(await kubelet.admit(pod("vm", {}, uid="uid-2")))
        await admitted_at_last(kubelet, USB)


async def test_a_refused_pod_that_comes_again_and_takes_another_board_leaves_the_first_one_free(
    node: Node,
) -> None:
    """The order of resources in a container is random: the second time another plugin is first, and slow."""
    boards = usb_boards(node, 2)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        foreign.serving(kubelet, "nic-0", "nic-1") as nic,
    ):
        nic.refusal = plugin.refused("no such network")
        first = await kubelet.admit(pod("vm", {GPU: 1}, {NIC: 1}, uid="uid-1"))
        assert first.phase == "Failed"
        kubelet.delete(first)
        nic.refusal, nic.takes = None, 1.5
        second = await kubelet.admit(pod("vm", {NIC: 1}, {GPU: 1}, uid="uid-2"))
        running(second)
        (group,) = groups(second)
        other = next(board for board in boards if board.group != group)
        third = await admitted_at_last(kubelet, USB)
        assert groups(third) == {other.group}


async def test_a_pod_that_a_kubelet_s_restart_met_half_way_leaves_nothing_held_but_what_it_has(
    node: Node,
) -> None:
    """The new kubelet admits it once more, under its old name, and may give it another board."""
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        async with foreign.serving(kubelet, "nic-0", "nic-1") as nic, anyio.create_task_group() as tasks:
            nic.takes = 30.0
            half = pod("vm", {GPU: 1}, {NIC: 1})

            async def admit() -> None:
                with contextlib.suppress(Exception):  # the kubelet dies under it
                    await kubelet.admit(half)

            tasks.start_soon(admit)
            await kubelet.until(lambda: len(kubelet.statistics.allocations) == 1, PATIENCE)
            await kubelet.stop()
            tasks.cancel_scope.cancel()
        kubelet.state.table.held.clear()
        kubelet.state.table.save()
        kubelet.delete(half)
        await kubelet.start()
        await all_listed(kubelet, usb_lists(boards))
        await anyio.sleep(2.0)
        again = await kubelet.admit(pod("vm", {GPU: 1}, uid="uid-1"))
        running(again)
        (group,) = groups(again)
        free = next(board for board in boards if board.group != group)
        await kubelet.until(lambda: health(kubelet, USB)[free.usb] == "Healthy", REST)
        other = await kubelet.admit(pod("other", {USB: 1}))
        running(other)
        assert groups(other) == {free.group}


async def test_a_stale_entry_ends_by_itself_although_one_resource_cannot_register(node: Node) -> None:
    boards = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        first = await give_and_kill(node, kubelet, boards)
        await kubelet.stop()
        kubelet.delete(first)
        kubelet.faults.set(CUT_OFF, 1.0)
        kubelet.faults.set(f"refuse-register:{GPU}", "no")
        await kubelet.start()
        async with node.daemon():
            await all_listed(kubelet, {USB: 1, LONE: 1})
            await until_all_healthy(kubelet, USB, within=REST)


@pytest.mark.slow
async def test_what_a_plain_init_container_has_is_held_without_a_gap(node: Node) -> None:
    """The kubelet never lists it."""
    (pair,) = boards = pair_boards(node, 1)
    async with started(node, listed=pair_lists(boards)) as (_, kubelet):
        await anyio.sleep(1.0)
        vm = await kubelet.admit(pod("vm", {}, init_containers=[{T4: 1}], uid="uid-1"))
        running(vm)
        await kubelet.until(lambda: "Unhealthy" in health(kubelet, T4).values(), PATIENCE)
        held = vm.results["init0"].ids[T4][0]
        other = pair.second if held == pair.first else pair.first
        began = time.monotonic()
        given = []
        while time.monotonic() - began < 4.0:
            if health(kubelet, T4)[other] == "Healthy":
                given.append(time.monotonic() - began)
                assert await refusal(kubelet, T4, other), f"given after {given} s"
            await anyio.sleep(0.005)
        assert given == []


async def test_what_a_refused_pod_s_init_container_had_is_free_soon_after_a_restart_of_the_kubelet(
    node: Node,
) -> None:
    """The kubelet that knew of it has ended, and the file of the new one does not have it."""
    boards = usb_boards(node, 1)
    async with started(node, *HARDLY, listed=usb_lists(boards)) as (_, kubelet):
        async with foreign.serving(kubelet, "nic-0", refusal="no"):
            half = await kubelet.admit(pod("half", {NIC: 1}, init_containers=[{GPU: 1}]))
            assert half.phase == "Failed"
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        await until_all_healthy(kubelet, GPU, USB)
        running(await kubelet.admit(pod("next", {GPU: 1, USB: 1})))
