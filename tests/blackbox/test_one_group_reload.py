# SPDX-License-Identifier: Apache-2.0
"""What a pod was given stays its own when the rules change, or the daemon, before it has opened anything."""

from __future__ import annotations

import signal

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.blackbox import foreign
from tests.blackbox.boards import FOR_EVER, GPU, apart, named, running, started, usb_boards
from tests.blackbox.harness import PATIENCE, Node, pod, until_health

ALL, USB, SOUND = "example.com/all", "example.com/usb", "example.com/sound"
BUNDLE = 'resources:\n  - {name: example.com/all, pci: [{devices: ["1eb8", "1ad8"]}], isolation: %s}'
NARROWED = """
resources:
  - {name: example.com/all, pci: [{devices: ["1eb8"]}], isolation: none}
  - {name: example.com/usb, pci: [{devices: ["1ad8"]}], isolation: none}
"""


@pytest.mark.parametrize("wish", [(BUNDLE % "none", ALL), (NARROWED, USB)], ids=["none", "narrowed"])
async def test_a_part_of_a_bundle_that_a_pod_has_is_not_given_when_bundles_are_no_longer_wanted(
    node: Node, wish: tuple[str, str]
) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(BUNDLE % "bundle")
    text, resource = wish
    async with started(node, listed={ALL: 1}) as (daemon, kubelet):
        one = await kubelet.admit(pod("one", {ALL: 1}))
        running(one)
        await named(node, board.gpu, one)
        node.configure(text)
        await daemon.logged("config-reloaded")
        await kubelet.until(lambda: board.usb in kubelet.state.table.devices.get(resource, {}), PATIENCE)
        two = await kubelet.admit(pod("two", {resource: 1}))
        assert two.phase == "Failed", (one.result.envs, two.result.envs)


async def test_each_pod_gets_a_bundle_and_what_else_is_in_its_group_from_one_board(node: Node) -> None:
    boards = usb_boards(node, 4)
    for board in boards:
        node.host.add_function(
            board.gpu.removesuffix("0") + "1",
            vendor="10de",
            device="10f8",
            pci_class="040300",
            driver="vfio-pci",
            group=int(board.group),
        )
    node.configure(BUNDLE % "bundle" + "\n  - {name: example.com/sound, pci: [{devices: ['10f8']}]}")
    async with started(node, *FOR_EVER, listed={ALL: 4, SOUND: 4}) as (_, kubelet):
        pods = [await kubelet.admit(pod(f"vm{number}", {ALL: 1, SOUND: 1})) for number in range(4)]
        running(*pods)
        apart(*pods)
        await named(node, kubelet.state.table.held[-2].ids[0], pods[-1])
        assert set(kubelet.state.table.devices[ALL]) == {board.gpu for board in boards}
        other = await kubelet.admit(pod("other", {ALL: 1}))
        assert other.phase == "Failed"


@pytest.mark.slow
@pytest.mark.parametrize("given", ["isolation: group", "iommufd: auto"])
async def test_while_a_held_function_is_away_its_board_is_given_to_nobody_by_a_new_daemon_either(
    node: Node, given: str
) -> None:
    """The answer to its Allocate has the node of the group."""
    if "iommufd" in given:
        node.host = SimulatedHost(node.root, numa_nodes=(0, 1), cdev=True)
    (board,) = usb_boards(node, 1)
    node.configure(
        "resources:\n"
        f"- {{name: {GPU}, pci: [{{devices: ['1eb8']}}], {given}}}\n"
        f"- {{name: {USB}, pci: [{{devices: ['1ad8']}}], {given}}}\n"
    )
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await until_health(kubelet, GPU, board.gpu, "Healthy")
            vm = await kubelet.admit(pod("vm", {GPU: 1}))
            running(vm)
            await named(node, board.gpu, vm)
            node.host.unplug(board.gpu)
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")
            await daemon.end(signal.SIGKILL)
        async with node.daemon() as daemon:
            await daemon.logged("resource-registered", resource=USB)
            await kubelet.until_listed(USB, 1, PATIENCE)
            late = await kubelet.admit(pod("late", {USB: 1}))
            node.host.plug(board.gpu)
            node.host.bind(board.gpu, "vfio-pci")
            assert late.phase == "Failed"


@pytest.mark.parametrize("has", ["gpu", "usb"])
async def test_what_virt_handler_gave_is_known_by_its_answer_where_groups_do_not_count(
    node: Node, has: str
) -> None:
    """Its id is the number of a group; which function it gave is told by the variable only."""
    (board,) = usb_boards(node, 1)
    node.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}], isolation: none}]')
    socket = "kubevirt-example.com-sound.sock"
    async with (
        started(node, listed={GPU: 1}) as (_, kubelet),
        foreign.serving(kubelet, board.group, resource=SOUND, socket=socket) as virt_handler,
    ):
        virt_handler.env = {"PCI_RESOURCE_EXAMPLE_COM_SOUND": board.gpu if has == "gpu" else board.usb}
        one = await kubelet.admit(pod("one", {SOUND: 1}))
        running(one)
        await named(node, board.group, one)
        if has == "gpu":
            await until_health(kubelet, GPU, board.gpu, "Unhealthy")
        two = await kubelet.admit(pod("two", {GPU: 1}))
        assert two.phase == ("Failed" if has == "gpu" else "Running"), two.message
