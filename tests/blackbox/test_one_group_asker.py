# SPDX-License-Identifier: Apache-2.0
"""Who asks: the pod that is being admitted gets the siblings of what it has, whoever comes after it does not.

No clock tells them apart: the settle time is set to a minute, so that every sibling is still offered, or to
almost nothing, so that it is over before the next question.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod, SidecarsFirst
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    USB,
    all_listed,
    apart,
    end,
    groups,
    named,
    running,
    started,
    stays,
    stays_taken,
    usb_boards,
    usb_lists,
)
from tests.blackbox.foreign import NIC, serving
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health

SETTLES = pytest.mark.parametrize("flags", [FOR_EVER, HARDLY], ids=["60 s", "50 ms"])
SHAPES: dict[str, dict[str, Any]] = {
    "two containers": {"containers": [{GPU: 1}, {USB: 1}]},
    "sidecar": {"containers": [{GPU: 1}], "sidecars": [{USB: 1}]},
    "init container": {"containers": [{USB: 1}], "init_containers": [{GPU: 1}]},
    "init container and again": {"containers": [{GPU: 1, USB: 1}], "init_containers": [{GPU: 1}]},
    "init container, sidecar": {
        "containers": [{USB: 1}],
        "init_containers": [{USB: 1}],
        "sidecars": [{GPU: 1}],
    },
}


def refused_for(kubelet: FakeKubelet, late: Pod, holder: Pod) -> None:
    """Check that the pod was not admitted; if the daemon was asked, that it has named the holder."""
    assert late.phase == "Failed"
    last = kubelet.statistics.allocations[-1]
    if last.error is not None:
        assert holder.key in last.error


@pytest.mark.slow
@pytest.mark.parametrize("boards", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
async def test_every_container_of_a_pod_may_have_a_sibling_of_what_the_pod_has(
    node: Node, shape: str, boards: int
) -> None:
    made = usb_boards(node, boards)
    async with started(node, *FOR_EVER, listed=usb_lists(made)) as (_, kubelet):
        for number in range(5):
            vm = await kubelet.admit(Pod("ns", f"vm{number}", **SHAPES[shape]))
            running(vm)
            assert len(groups(vm)) == 1
            await end(node, kubelet, vm)


@SETTLES
async def test_a_new_pod_is_refused_what_the_pod_before_it_left_of_its_group(
    node: Node, flags: tuple[str, ...]
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        late = await kubelet.admit(pod("late", {USB: 1}))
        running(first)
        refused_for(kubelet, late, first)
        await until_health(kubelet, USB, boards[0].usb, "Unhealthy")


async def test_a_refusal_turns_the_sibling_unhealthy_so_that_the_next_pod_is_not_sent_here(
    node: Node,
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        refused_for(kubelet, await kubelet.admit(pod("late", {USB: 1})), first)
        await until_health(kubelet, USB, boards[0].usb, "Unhealthy")
        assert (await kubelet.admit(pod("later", {USB: 1}))).phase == "Failed"
        assert len([seen for seen in kubelet.statistics.allocations if seen.error]) <= 1


async def test_what_a_plain_init_container_had_is_not_given_to_another_pod_before_its_own_has_ended(
    node: Node,
) -> None:
    """It is never listed: names tell that its pod's admission is over, the checkpoint that it lives."""
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {}, init_containers=[{GPU: 1}]))
        late = await kubelet.admit(pod("late", {USB: 1}))
        running(first)
        assert late.phase == "Failed"
        await until_health(kubelet, USB, boards[0].usb, "Unhealthy")
        await stays(kubelet, lambda: health(kubelet, USB)[boards[0].usb] == "Unhealthy", 1.0)
        await end(node, kubelet, first)


@pytest.mark.slow
async def test_what_an_init_container_got_after_its_pod_s_sidecar_stays_held_when_another_pod_ends(
    node: Node,
) -> None:
    """The kubelet was asked while another plugin gave to the sidecar: no name was new then, nor bare.

    So the only pod without any was taken for the one that asked.
    """
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet), serving(kubelet, "n0", takes=1.0):
        quiet = await kubelet.admit(pod("quiet", {}))
        vm = SidecarsFirst("ns", "vm", [{}], sidecars=[{NIC: 1}], init_containers=[{GPU: 1}])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kubelet.admit, vm)
            await kubelet.until(lambda: "n0" in kubelet.state.allocating, PATIENCE)
            kubelet.state.table.save()  # has the kubelet asked
        running(vm)
        await stays_taken(kubelet, board, quiet)


async def test_a_name_that_comes_again_is_another_pod(node: Node) -> None:
    """No name is new: the pod of that name shows less than before."""
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {LONE: 1}))
        first = await kubelet.admit(pod("first", {GPU: 1}))
        kubelet.delete(old)
        late = await kubelet.admit(pod("vm", {USB: 1}))
        running(first)
        refused_for(kubelet, late, first)


async def test_a_pod_of_the_same_name_as_the_one_before_it_gets_a_free_board(node: Node) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        for _ in range(3):
            vm = await kubelet.admit(pod("vm", {GPU: 1, USB: 1}))
            running(vm)
            kubelet.delete(vm)


async def test_the_sibling_stays_for_the_pod_though_another_one_ends_meanwhile(node: Node) -> None:
    boards = usb_boards(node, 1)
    async with (
        started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0") as nic,
        anyio.create_task_group() as tasks,
    ):
        ending = await kubelet.admit(pod("ending", {LONE: 1}))
        nic.gate = anyio.Event()
        vm = pod("vm", {GPU: 1}, {NIC: 1}, {USB: 1})
        tasks.start_soon(kubelet.admit, vm)
        await kubelet.until(lambda: "n0" in kubelet.state.allocating, PATIENCE)
        kubelet.delete(ending)
        nic.gate.set()
        await kubelet.until(lambda: vm.phase != "Pending", PATIENCE)
        running(vm)
        assert groups(vm) == {boards[0].group}


async def test_two_seconds_of_another_plugin_take_nothing_from_the_pod(node: Node) -> None:
    boards = usb_boards(node, 2)
    async with (
        started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0", takes=2.0),
    ):
        vm = await kubelet.admit(pod("vm", {GPU: 1}, {NIC: 1}, {USB: 1}))
        running(vm)
        assert len(groups(vm)) == 1


@pytest.mark.slow
async def test_while_a_container_waits_for_another_plugin_its_pod_may_still_take_the_sibling(
    node: Node,
) -> None:
    """The kubelet enters a container in its books when it has asked for all that it wants."""
    boards = usb_boards(node, 1)
    async with (
        started(node, *HARDLY, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0", takes=2.0),
    ):
        for number in range(4):  # the kubelet asks for the resources of a container in random order
            vm = await kubelet.admit(pod(f"vm{number}", {GPU: 1, NIC: 1, USB: 1}))
            running(vm)
            await until_health(kubelet, GPU, boards[0].gpu, "Healthy")
            await end(node, kubelet, vm)


async def test_what_is_left_to_time_is_a_sibling_that_the_kubelet_finds_unhealthy_and_the_next_pod_gets_it(
    node: Node,
) -> None:
    boards = usb_boards(node, 1)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        serving(kubelet, "n0", takes=2.0) as nic,
    ):
        vm = await kubelet.admit(pod("vm", {GPU: 1}, {NIC: 1}, {USB: 1}))
        assert kubelet.statistics.allocations[-1].error is None  # it was not us who refused
        if vm.phase == "Failed":
            assert "no healthy devices" in vm.message
            nic.takes = 0.0
            await until_health(kubelet, USB, boards[0].usb, "Healthy")
            running(await kubelet.admit(pod("again", {GPU: 1}, {NIC: 1}, {USB: 1})))


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_restart_of_the_kubelet_no_pod_is_taken_for_the_one_that_asked_before(
    node: Node, seed: int
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards), seed=seed) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        late = await kubelet.admit(pod("late", {USB: 1}))
        running(first)
        refused_for(kubelet, late, first)


async def test_a_pod_that_a_new_kubelet_does_not_name_yet_keeps_its_board_and_the_asker_gets_another(
    node: Node,
) -> None:
    """A pod made early and bound late asks before the running ones are named again."""
    boards = usb_boards(node, 2)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {GPU: 1}))
        kubelet.faults.set("pod-resources-unnamed", {first.key})
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        early = await kubelet.admit(pod("early", {USB: 1, GPU: 1}))
        running(first, early)
        apart(first, early)
        kubelet.faults.clear("pod-resources-unnamed")
        await named(node, first.result.ids[GPU][0], first)
        assert health(kubelet, GPU) == {board.gpu: "Healthy" for board in boards}
