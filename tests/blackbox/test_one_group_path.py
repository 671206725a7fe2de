# SPDX-License-Identifier: Apache-2.0
"""The path of an Allocate when all goes wrong: who asks, what was never named, what leaves the host."""

from __future__ import annotations

import anyio
import pytest

from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    LONE,
    REST,
    RULES,
    USB,
    all_listed,
    apart,
    groups,
    named,
    refusal,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.foreign import NIC, serving
from tests.blackbox.harness import PATIENCE, Node, health, pod, until_health

BUNDLES = """
resources:
  - {name: example.com/gpu, pci: [{devices: ["1eb8"]}], isolation: bundle}
  - {name: example.com/usb, pci: [{devices: ["1ad8"]}], isolation: bundle}
  - {name: example.com/lone, pci: [{devices: ["1ad9"]}]}
"""


@pytest.mark.parametrize("flags", [(), FOR_EVER], ids=["300 ms", "60 s"])
async def test_a_pod_that_takes_a_lone_function_between_gpu_and_usb_of_a_board_gets_all_three(
    node: Node, flags: tuple[str, ...]
) -> None:
    boards = usb_boards(node, 1)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}, {LONE: 1}, {USB: 1}))
        running(vm)


@pytest.mark.parametrize("before", [{"web": {}, "dns": {}}, {"other": {LONE: 1}}], ids=["two without", "one"])
async def test_what_a_plain_init_container_has_stays_its_pod_s_whoever_was_admitted_right_before(
    node: Node, before: dict[str, dict[str, int]]
) -> None:
    """Of several new names none is the pod's for certain; GetPreferredAllocation sees its name first."""
    boards = usb_boards(node, 1)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        for name, limits in before.items():
            running(await kubelet.admit(pod(name, limits)))
        first = await kubelet.admit(pod("first", {}, init_containers=[{GPU: 1}]))
        late = await kubelet.admit(pod("late", {USB: 1}))
        running(first)
        assert late.phase == "Failed"


async def test_what_a_plain_init_container_has_stays_its_pod_s_when_the_next_pod_asks_twice(
    node: Node,
) -> None:
    boards = usb_boards(node, 2)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        first = await kubelet.admit(pod("first", {}, init_containers=[{GPU: 1}]))
        running(first)
        late = await kubelet.admit(pod("late", {GPU: 1}, {USB: 1}))
        running(late)
        assert groups(late) == {boards[1].group}
        assert await refusal(kubelet, USB, boards[0].usb) != ""


async def test_a_bundle_that_loses_its_first_function_is_still_its_pod_s(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.add_gpu("0000:20:00.1", 20)
    node.configure(BUNDLES)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        await named(node, board.gpu, vm)
        node.host.unplug(board.gpu)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await anyio.sleep(0.5)
        late = await kubelet.admit(pod("late", {GPU: 1}))
        assert late.phase == "Failed", late.result.ids


async def test_while_a_held_function_is_unplugged_for_a_moment_its_board_is_given_to_nobody(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        running(vm)
        await named(node, board.gpu, vm)
        node.host.unplug(board.gpu)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await anyio.sleep(0.5)
        late = await kubelet.admit(pod("late", {USB: 1}))
        node.host.plug(board.gpu)
        node.host.bind(board.gpu, "vfio-pci")
        await anyio.sleep(1.0)
        apart(vm, late)


async def test_what_a_killed_kubelet_was_given_for_a_pod_is_free_again_though_the_pod_lives(
    node: Node,
) -> None:
    """The answer was in nobody's books: the pod is admitted anew, and may get another board."""
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        async with serving(kubelet, "n0") as nic, anyio.create_task_group() as tasks:
            nic.gate = anyio.Event()
            vm = pod("vm", {GPU: 1}, {NIC: 1})
            tasks.start_soon(kubelet.admit, vm)
            await kubelet.until(lambda: "n0" in kubelet.state.allocating, PATIENCE)
            kubelet.state.table.held.clear()
            kubelet.state.table.save()
            tasks.cancel_scope.cancel()
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        vm = await kubelet.admit(pod("vm", {GPU: 1}, uid=vm.uid))
        running(vm)
        (given,) = vm.result.ids[GPU]
        await named(node, given, vm)
        other = next(board for board in boards if board.gpu != given)
        await kubelet.until(lambda: health(kubelet, USB)[other.usb] == "Healthy", REST)


async def test_a_pod_under_the_name_of_one_that_a_new_kubelet_never_named_is_not_that_one(
    node: Node,
) -> None:
    """What the dead pod had is remembered under its name: the new one is of that name, too."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {GPU: 1, USB: 1}))
        running(old)
        await named(node, board.gpu, old)
        await named(node, board.usb, old)
        await kubelet.stop()
        kubelet.delete(old)
        kubelet.state.table.held.clear()  # it has freed them and written its file right before it ended
        kubelet.state.table.save()
        await kubelet.start()
        await all_listed(kubelet, usb_lists(boards))
        again = await kubelet.admit(pod("vm", {GPU: 1}))
        await anyio.sleep(1.0)
        late = await kubelet.admit(pod("late", {USB: 1}))
        apart(*(each for each in (again, late) if each.phase == "Running"))


async def test_a_hint_of_the_checkpoint_never_takes_the_name_of_who_has_got_another_part_of_it_since(
    node: Node,
) -> None:
    """A dead pod had both, the GPU in its init container: who gets the USB function has no GPU."""
    (board,) = boards = usb_boards(node, 1)
    async with started(node, *HARDLY, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {USB: 1}, init_containers=[{GPU: 1}]))
        running(old)
        await named(node, board.usb, old)
        await until_health(kubelet, USB, board.usb, "Healthy")
        await kubelet.stop()
        kubelet.delete(old)
        await kubelet.start()
        await all_listed(kubelet, usb_lists(boards))
        one = await kubelet.admit(pod("one", {USB: 1}))
        two = await kubelet.admit(pod("vm", {GPU: 1}))
        apart(*(each for each in (one, two) if each.phase == "Running"))


async def test_what_a_plain_init_container_had_is_free_when_a_pod_comes_again_under_its_name_with_another(
    node: Node,
) -> None:
    """Two names are new at the next Allocate, so it is not told whose that is."""
    boards = usb_boards(node, 2)
    async with started(node, "--timing-holders", "60s", listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {USB: 1}, init_containers=[{GPU: 1}]))
        running(old)
        await named(node, boards[0].usb, old)
        await anyio.sleep(1.0)
        kubelet.delete(old)
        running(await kubelet.admit(pod("web", {})))
        again = await kubelet.admit(pod("vm", {USB: 1}))
        running(again)
        (taken,) = again.result.ids[USB]
        await named(node, taken, again)
        other = next(board for board in boards if board.usb != taken)
        await until_health(kubelet, USB, other.usb, "Healthy")
        await until_health(kubelet, GPU, other.gpu, "Healthy")


async def test_a_pod_that_takes_a_function_that_is_not_isolated_in_between_gets_the_sibling(
    node: Node,
) -> None:
    boards = usb_boards(node, 1)
    text = RULES.replace('["1ad9"]}]}', '["1ad9"]}], isolation: none}')
    node.configure(text)
    async with started(node, *FOR_EVER, listed=usb_lists(boards)) as (_, kubelet):
        running(await kubelet.admit(pod("vm", {GPU: 1}, {LONE: 1}, {USB: 1})))


async def test_a_shared_node_between_gpu_and_usb_of_a_board_takes_nothing_from_the_pod(node: Node) -> None:
    boards = usb_boards(node, 1)
    node.host.node("/dev/kvm2")
    node.configure(RULES + "  - {name: example.com/kvm, node: {path: /dev/kvm2, count: 2}}\n")
    async with started(node, *FOR_EVER, listed={**usb_lists(boards), "example.com/kvm": 2}) as (_, kubelet):
        running(await kubelet.admit(pod("vm", {GPU: 1}, {"example.com/kvm": 1}, {USB: 1})))


async def test_an_allocate_that_is_cancelled_while_it_waits_leaves_no_mark(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
    ):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        node.host.hold(board.gpu)
        await named(node, board.gpu, old)
        kubelet.delete(old)
        with anyio.move_on_after(1.0):
            await refusal(kubelet, GPU, board.gpu)
        node.host.release(board.gpu)
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        await until_health(kubelet, USB, board.usb, "Healthy")
        assert await refusal(kubelet, USB, board.usb) == ""


@pytest.mark.parametrize("flags", [(), FOR_EVER], ids=["300 ms", "60 s"])
@pytest.mark.parametrize("count", [1, 2])
async def test_a_pod_that_comes_again_under_its_name_is_not_the_one_whose_init_container_had_the_sibling(
    node: Node, flags: tuple[str, ...], count: int
) -> None:
    """The old one showed nothing when it asked last: its sibling was its init container's."""
    boards = usb_boards(node, count)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {GPU: 1}, init_containers=[{USB: 1}]))
        running(old)
        kubelet.delete(old)
        again = await kubelet.admit(pod("vm", {GPU: count}))
        late = await kubelet.admit(pod("late", {USB: 1}))
        apart(*(each for each in (again, late) if each.phase == "Running"))
        running(again)


@pytest.mark.slow
async def test_the_next_pod_never_gets_the_sibling_of_a_short_lived_one_that_came_again(node: Node) -> None:
    """Its end came before its time was over: no books have it, and so it counts as still being admitted."""
    boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {GPU: 1}, init_containers=[{USB: 1}]))
        running(old)
        kubelet.delete(old)
        kubelet.state.table.release_all_but(set())
        kubelet.state.table.save()
        await anyio.sleep(5.0)
        again = await kubelet.admit(pod("vm", {GPU: 1}))
        late = await kubelet.admit(pod("late", {USB: 1}))
        apart(*(each for each in (again, late) if each.phase == "Running"))
        running(again)


@pytest.mark.parametrize("life", [0.5, 2.2])
async def test_the_board_of_a_pod_that_is_made_again_under_its_name_is_not_split_between_it_and_the_next(
    node: Node, life: float
) -> None:
    """As in a chaos run: init container with one bundle, container with the other; deleted by force."""
    boards = usb_boards(node, 2)
    node.configure(BUNDLES)
    async with started(node, "--timing-settle", "1s", listed=usb_lists(boards)) as (_, kubelet):
        old = await kubelet.admit(pod("vm", {GPU: 1}, init_containers=[{USB: 1}], uid="u1"))
        running(old)
        await anyio.sleep(life)
        kubelet.delete(old)
        again = await kubelet.admit(pod("vm", {USB: 1}, {GPU: 1}, uid="u2"))
        late = await kubelet.admit(pod("late", {USB: 1}, uid="u3"))
        running(again, late)
        apart(again, late)
        assert len(groups(again)) == 1
