# SPDX-License-Identifier: Apache-2.0
"""Pods that share a group all the same, and ids of other plugins: which of them are IOMMU groups."""

from __future__ import annotations

from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.blackbox import foreign
from tests.blackbox.boards import (
    GPU,
    LONE,
    RULES,
    USB,
    all_listed,
    apart,
    named,
    pair_boards,
    refusal,
    running,
    started,
    stays,
    until_all_healthy,
    usb_boards,
    usb_lists,
    what,
)
from tests.blackbox.harness import PATIENCE, T4, Node, health, pod, until_health

SOUND, RDMA = "example.com/sound", "rdma/hca_shared"
NOT_ISOLATED = RULES.replace("}]}", "}], isolation: none}")
BUNDLED = RULES.replace("}]}", "}], isolation: bundle}")


async def two_sharing(node: Node, kubelet: FakeKubelet) -> tuple[Pod, Pod]:
    """Two pods get a function each of one board while that is allowed; then it is allowed no more."""
    one = await kubelet.admit(pod("one", {GPU: 1}))
    two = await kubelet.admit(pod("two", {USB: 1}))
    running(one, two)
    await named(node, one.result.ids[GPU][0], one)
    await named(node, two.result.ids[USB][0], two)
    node.configure(RULES)
    return one, two


async def test_two_pods_that_share_a_group_all_the_same_are_both_named_and_neither_device_is_given(
    node: Node,
) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        one, two = await two_sharing(node, kubelet)
        for resource, device, holder in ((GPU, board.gpu, one), (USB, board.usb, two)):
            await until_health(kubelet, resource, device, "Unhealthy")
            told, refused = await what(node, device), await refusal(kubelet, resource, device)
            assert holder.key in refused
            for key in (one.key, two.key):
                assert key in told


async def test_the_replacement_of_a_pod_that_shared_a_group_does_not_get_its_device_again(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    node.configure(NOT_ISOLATED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        one, two = await two_sharing(node, kubelet)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        kubelet.delete(two)
        assert (await kubelet.admit(pod("two", {USB: 1}))).phase == "Failed"
        await until_health(kubelet, GPU, board.gpu, "Healthy")
        assert health(kubelet, USB) == {board.usb: "Unhealthy"}
        kubelet.delete(one)
        await until_all_healthy(kubelet, GPU, USB)
        running(await kubelet.admit(pod("two", {USB: 1})))


async def test_a_device_of_a_pod_turns_unhealthy_when_another_plugin_gives_its_group_away(node: Node) -> None:
    """The other plugin looks after no groups; it goes by addresses as well."""
    (board,) = boards = usb_boards(node, 1)
    node.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}]')
    async with (
        started(node, listed={GPU: len(boards)}) as (_, kubelet),
        foreign.serving(kubelet, board.usb, resource=SOUND),
    ):
        one = await kubelet.admit(pod("one", {GPU: 1}))
        two = await kubelet.admit(pod("two", {SOUND: 1}))
        running(one, two)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        told = await what(node, board.gpu)
        assert "ns/one" in told
        assert "ns/two" in told
        kubelet.delete(two)
        await until_health(kubelet, GPU, board.gpu, "Healthy")


async def test_one_more_allocate_of_a_held_device_opens_nothing(node: Node) -> None:
    (board,) = boards = usb_boards(node, 1)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {GPU: 1}))
        await named(node, board.gpu, vm)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        running(await kubelet.admit(pod("late", {LONE: 1})))  # the admission of the other is over
        seen = len(kubelet.statistics.lists[USB])
        for _ in range(3):
            await refusal(kubelet, GPU, board.gpu)  # granted or not: its own pod may ask again
            assert await refusal(kubelet, USB, board.usb) != ""
        await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 1.0)
        told = list(kubelet.statistics.lists[USB])[seen:]
        assert [each.health for each in told if each.health != {board.usb: "Unhealthy"}] == []


async def test_numbers_that_another_plugin_gives_its_shares_are_no_groups(node: Node) -> None:
    boards = usb_boards(node, 2)
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        foreign.serving(kubelet, "0", "1", "20", "30", resource=RDMA, socket="rdma-hca.sock"),
    ):
        shares = await kubelet.admit(pod("shares", {RDMA: 4}))
        running(shares)
        await node.until_told(lambda told: told["kubelet"]["podResources"] == "answers")
        await stays(kubelet, lambda: set(health(kubelet, GPU).values()) == {"Healthy"}, 1.0)
        vm = await kubelet.admit(pod("vm", {GPU: 1, USB: 1}))
        running(vm)


async def test_numbers_of_a_resource_are_groups_only_where_virt_handler_s_own_socket_serves_it(
    node: Node,
) -> None:
    """It names its sockets after the resource; only what it serves so has groups for ids."""
    board, free = boards = usb_boards(node, 2)
    socket = f"kubevirt-{SOUND.replace('/', '-')}.sock"
    async with (
        started(node, listed=usb_lists(boards)) as (_, kubelet),
        foreign.serving(kubelet, board.group, resource=SOUND, socket=socket),
        foreign.serving(kubelet, free.group, resource=RDMA, socket="rdma-hca.sock"),
    ):
        vm = await kubelet.admit(pod("vm", {SOUND: 1}, {RDMA: 1}))
        running(vm)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        assert "ns/vm" in await refusal(kubelet, GPU, board.gpu)
        await stays(kubelet, lambda: health(kubelet, GPU)[free.gpu] == "Healthy", 1.0)
        assert await refusal(kubelet, GPU, free.gpu) == ""


async def test_what_virt_handler_gave_stays_held_when_its_socket_has_gone(node: Node) -> None:
    """It is remembered once seen: virt-handler may be restarted, and a kubelet wipes all sockets."""
    board, _ = boards = usb_boards(node, 2)
    socket = f"kubevirt-{SOUND.replace('/', '-')}.sock"
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        async with foreign.serving(kubelet, board.group, resource=SOUND, socket=socket):
            running(await kubelet.admit(pod("vm", {SOUND: 1})))
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Unhealthy", 1.0)
        await kubelet.restart()
        await all_listed(kubelet, usb_lists(boards))
        await stays(kubelet, lambda: health(kubelet, GPU)[board.gpu] == "Unhealthy", 1.0)
        assert (await kubelet.admit(pod("late", {GPU: 2}))).phase == "Failed"


async def test_bundles_are_given_to_a_pod_each_and_a_sibling_of_a_bundle_to_its_pod_only(node: Node) -> None:
    boards = usb_boards(node, 2)
    node.configure(BUNDLED)
    async with started(node, listed=usb_lists(boards)) as (_, kubelet):
        one = await kubelet.admit(pod("one", {GPU: 1}))
        two = await kubelet.admit(pod("two", {GPU: 1, USB: 1}))
        late = await kubelet.admit(pod("late", {USB: 1}))
        running(one, two)
        apart(one, two)
        assert late.phase == "Failed"


async def test_two_bundles_are_never_given_for_one_board(node: Node) -> None:
    boards = pair_boards(node, 2)
    node.configure(f"resources: [{{name: {T4}, pci: [{{devices: ['1eb8']}}], isolation: bundle}}]")
    async with started(node, listed={T4: len(boards)}) as (_, kubelet):
        pods = [await kubelet.admit(pod(f"vm{number}", {T4: 1})) for number in range(3)]
        running(*pods[:2])
        apart(*pods[:2])
        assert pods[2].phase == "Failed"
        await kubelet.until(lambda: set(health(kubelet, T4).values()) == {"Healthy"}, PATIENCE)


async def test_a_device_that_another_plugin_gives_as_well_is_told_with_whoever_got_it_from_whom(
    node: Node,
) -> None:
    """Two pods have one id, of two resources: nobody knew of the other while the kubelet was silent."""
    (board,) = usb_boards(node, 1)
    node.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}]')
    async with (
        started(node, listed={GPU: 1}) as (daemon, kubelet),
        foreign.serving(kubelet, board.gpu, resource=SOUND),
    ):
        kubelet.faults.set("pod-resources-exhausted")
        one = await kubelet.admit(pod("one", {GPU: 1}))
        two = await kubelet.admit(pod("two", {SOUND: 1}))
        running(one, two)
        await daemon.logged("pod-resources-unavailable")
        kubelet.faults.clear("pod-resources-exhausted")
        await daemon.logged("pod-resources-available")
        told = await node.until_told(lambda told: told["holders"][board.gpu]["pod"].startswith("ns/"))
        holder = told["holders"][board.gpu]
        assert (holder["pod"], holder["resource"]) in ((one.key, GPU), (two.key, SOUND))
        kubelet.delete(one)
        await until_health(kubelet, GPU, board.gpu, "Unhealthy")


async def test_what_an_init_container_has_stays_held_though_a_container_of_another_pod_is_started(
    node: Node,
) -> None:
    """Its pod shows nothing, so it was taken for the one that asks: for another one of its name."""
    (board,) = boards = usb_boards(node, 1)
    node.configure(RULES.replace("example.com/lone", "example.com/later"))
    async with (
        started(node, listed={GPU: 1, USB: 1}) as (_, kubelet),
        foreign.serving(kubelet, "n0", resource=RDMA),
    ):
        old = await kubelet.admit(pod("old", {RDMA: 1, LONE: 1}))
        node.configure(RULES)
        await all_listed(kubelet, usb_lists(boards))
        vm = await kubelet.admit(pod("vm", {}, init_containers=[{GPU: 1}]))
        running(old, vm)
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        await kubelet.admit(old, again=True)
        assert old.message == ""
        await stays(kubelet, lambda: health(kubelet, USB) == {board.usb: "Unhealthy"}, 2.0)
        assert (await kubelet.admit(pod("late", {USB: 1}))).phase == "Failed"
