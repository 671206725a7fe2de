# SPDX-License-Identifier: Apache-2.0
"""Boards of which several functions share a group: what pods get of them that come at once, or one by one."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox.boards import (
    FOR_EVER,
    GPU,
    HARDLY,
    RULES,
    USB,
    all_listed,
    apart,
    end,
    groups,
    pair_boards,
    pair_lists,
    refusal,
    running,
    started,
    usb_boards,
    usb_lists,
)
from tests.blackbox.harness import T4, Node, client_of, health, pod, until_health

SETTLES = pytest.mark.parametrize("flags", [(), FOR_EVER, HARDLY], ids=["300 ms", "60 s", "50 ms"])


async def admit_at_once(kubelet: FakeKubelet, *pods: Pod) -> None:
    """Have the pods come while none of them has been admitted."""
    async with anyio.create_task_group() as tasks:
        for each in pods:
            tasks.start_soon(kubelet.admit, each)


@pytest.mark.parametrize("seed", range(3))
async def test_two_pods_at_once_get_a_board_each_ten_times_of_ten(node: Node, seed: int) -> None:
    boards = pair_boards(node, 2)
    async with started(node, listed=pair_lists(boards), seed=seed) as (_, kubelet):
        for _ in range(10):
            pods = pod("one", {T4: 1}), pod("two", {T4: 1})
            await admit_at_once(kubelet, *pods)
            running(*pods)
            apart(*pods)
            await end(node, kubelet, *pods)


@SETTLES
async def test_pods_that_come_one_by_one_never_share_a_board_and_what_is_too_much_is_refused(
    node: Node, flags: tuple[str, ...]
) -> None:
    boards = pair_boards(node, 2)
    async with started(node, *flags, listed=pair_lists(boards)) as (_, kubelet):
        pods = [await kubelet.admit(pod(f"vm{number}", {T4: 1})) for number in range(3)]
        running(*pods[:2])
        apart(*pods[:2])
        assert pods[2].phase == "Failed"


@SETTLES
async def test_the_other_gpu_of_a_board_is_unhealthy_at_once_and_not_given(
    node: Node, flags: tuple[str, ...]
) -> None:
    (board,) = boards = pair_boards(node, 1)
    async with started(node, *flags, listed=pair_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        (given,) = vm.result.ids[T4]
        (left,) = {board.first, board.second} - {given}
        assert "IOMMU group" in await refusal(kubelet, T4, left)
        await until_health(kubelet, T4, left, "Unhealthy")
        assert kubelet.statistics.lists[T4][-1].when - kubelet.statistics.allocations[0].when < 0.2
        assert health(kubelet, T4)[given] == "Healthy"


async def test_one_pod_may_still_have_a_whole_board_by_one_allocate(node: Node) -> None:
    boards = pair_boards(node, 2)
    async with started(node, listed=pair_lists(boards)) as (_, kubelet):
        for _ in range(5):
            pods = pod("one", {T4: 2}), pod("two", {T4: 2})
            await admit_at_once(kubelet, *pods)
            running(*pods)
            assert [len(groups(each)) for each in pods] == [1, 1]
            await end(node, kubelet, *pods)


async def test_where_nothing_is_to_be_isolated_two_pods_may_share_a_board(node: Node) -> None:
    boards = pair_boards(node, 1)
    node.configure(f"resources: [{{name: {T4}, pci: [{{devices: ['1eb8']}}], isolation: none}}]")
    async with started(node, listed=pair_lists(boards)) as (_, kubelet):
        pods = [await kubelet.admit(pod(f"vm{number}", {T4: 1})) for number in range(2)]
        running(*pods)
        assert set(health(kubelet, T4).values()) == {"Healthy"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("broken", [GPU, USB])
async def test_pods_get_whole_boards_as_long_as_there_are_any_and_then_what_is_left_of_the_others(
    node: Node, broken: str, seed: int
) -> None:
    """The first board by address lacks one of its functions; which resource is asked for first is random."""
    boards = usb_boards(node, 3)
    lacks, left = (boards[0].gpu, USB) if broken == GPU else (boards[0].usb, GPU)
    node.host.bind(lacks, None)
    async with node.kubelet(seed=seed) as kubelet, node.daemon():
        await all_listed(kubelet, usb_lists(boards))
        for board in boards[1:]:
            await until_health(kubelet, GPU, board.gpu, "Healthy")
            await until_health(kubelet, USB, board.usb, "Healthy")
        pods = [await kubelet.admit(pod(f"vm{number}", {GPU: 1, USB: 1})) for number in range(2)]
        running(*pods)
        apart(*pods)
        assert [len(groups(each)) for each in pods] == [1, 1]
        rest = await kubelet.admit(pod("rest", {left: 1}))
        running(rest)
        assert groups(rest) == {"20"}


@pytest.mark.parametrize("known", [True, False], ids=["it is known", "nobody has asked since"])
@pytest.mark.parametrize("first", [GPU, USB])
async def test_a_pod_that_is_started_anew_gets_its_whole_board_again_and_no_parts_of_two(
    node: Node, first: str, known: bool
) -> None:
    """The other board lacks what the pod asks for last; no event tells that the one before has ended."""
    lacking, whole = boards = usb_boards(node, 2)
    last = USB if first == GPU else GPU
    node.host.bind(lacking.gpu if last == GPU else lacking.usb, None)
    async with node.kubelet() as kubelet, node.daemon():
        await all_listed(kubelet, usb_lists(boards))
        for number in range(3):
            await until_health(kubelet, GPU, whole.gpu, "Healthy")
            await until_health(kubelet, USB, whole.usb, "Healthy")
            vm = await kubelet.admit(Pod("ns", f"vm{number}", [{first: 1}, {last: 1}]))
            running(vm)
            assert groups(vm) == {whole.group}
            kubelet.delete(vm)
            if known:
                await node.until_told(lambda told: not told["holders"])


@SETTLES
async def test_a_pod_that_wants_a_gpu_and_its_usb_function_gets_both_from_one_board_twenty_times_of_twenty(
    node: Node, flags: tuple[str, ...]
) -> None:
    boards = usb_boards(node, 3)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        for number in range(20):
            vm = await kubelet.admit(pod(f"vm{number}", {GPU: 1, USB: 1}))
            running(vm)
            assert len(groups(vm)) == 1
            await end(node, kubelet, vm)


async def test_a_resource_of_a_node_that_becomes_one_of_functions_is_asked_for_a_preference_from_then_on(
    node: Node,
) -> None:
    """The kubelet reads a plugin's options when it registers."""
    boards = usb_boards(node, 3)
    node.host.node("/dev/kvm")
    node.configure(RULES.replace('pci: [{devices: ["1eb8"]}]', "node: {path: /dev/kvm}"))
    async with node.kubelet() as kubelet, node.daemon():
        await kubelet.until_listed(GPU, 1)
        node.configure(RULES)
        await all_listed(kubelet, usb_lists(boards))
        for number in range(10):
            vm = await kubelet.admit(pod(f"vm{number}", {GPU: 1, USB: 1}))
            running(vm)
            assert len(groups(vm)) == 1
            await end(node, kubelet, vm)


@pytest.mark.parametrize("seed", range(3))
async def test_two_pods_at_once_get_gpu_and_usb_function_of_a_board_each(node: Node, seed: int) -> None:
    boards = usb_boards(node, 2)
    async with started(node, listed=usb_lists(boards), seed=seed) as (_, kubelet):
        for _ in range(5):
            pods = pod("one", {GPU: 1, USB: 1}), pod("two", {GPU: 1, USB: 1})
            await admit_at_once(kubelet, *pods)
            running(*pods)
            apart(*pods)
            assert [len(groups(each)) for each in pods] == [1, 1]
            await end(node, kubelet, *pods)


@SETTLES
async def test_a_pod_is_not_led_to_the_board_of_another_while_one_is_free(
    node: Node, flags: tuple[str, ...]
) -> None:
    boards = usb_boards(node, 2)
    async with started(node, *flags, listed=usb_lists(boards)) as (_, kubelet):
        for _ in range(10):
            pods = pod("one", {GPU: 1}), pod("two", {USB: 1})
            await admit_at_once(kubelet, *pods)
            running(*pods)
            apart(*pods)
            await end(node, kubelet, *pods)


async def preferred(kubelet: FakeKubelet, resource: str, available: list[str]) -> list[str]:
    """What is preferred if one of these is wanted."""
    wish = v1beta1.ContainerPreferredAllocationRequest(available, [], 1)
    async with client_of(kubelet, resource) as channel:
        stub = v1beta1.DevicePluginStub(channel)
        answer = await stub.get_preferred_allocation(v1beta1.PreferredAllocationRequest([wish]), timeout=10)
    return list(answer.container_responses[0].device_ids)


async def test_among_equal_boards_the_lowest_address_is_preferred_in_whatever_order_they_come(
    node: Node,
) -> None:
    boards = usb_boards(node, 3)
    one, two, three = (board.gpu for board in boards)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        for order in ([one, two, three], [three, two, one], [two, three, one]):
            assert await preferred(kubelet, GPU, order) == [one]
        assert await preferred(kubelet, GPU, [three, two]) == [two]
