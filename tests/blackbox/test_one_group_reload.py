# SPDX-License-Identifier: Apache-2.0
"""What a pod was given stays its own when the rules change, or the daemon, before it has opened anything."""

from __future__ import annotations

import signal

import pytest

from tests.blackbox import foreign
from tests.blackbox.boards import GPU, apart, named, running, started, usb_boards
from tests.blackbox.harness import PATIENCE, Node, pod, until_health

ALL, USB, SOUND = "example.com/all", "example.com/usb", "example.com/sound"
BUNDLE = 'resources: [{name: example.com/all, pci: [{devices: ["1eb8", "1ad8"]}], isolation: %s}]'
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


async def test_while_a_held_function_is_away_its_board_is_given_to_nobody_by_a_new_daemon_either(
    node: Node,
) -> None:
    (board,) = usb_boards(node, 1)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(GPU, 1, PATIENCE)
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
            apart(vm, late)


async def test_what_is_not_isolated_is_not_given_while_virt_handler_has_given_its_group_away(
    node: Node,
) -> None:
    """Which function of the group it gave is in its answer only, which the checkpoint has."""
    (board,) = usb_boards(node, 1)
    node.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}], isolation: none}]')
    socket = "kubevirt-example.com-sound.sock"
    async with (
        started(node, listed={GPU: 1}) as (_, kubelet),
        foreign.serving(kubelet, board.group, resource=SOUND, socket=socket),
    ):
        running(await kubelet.admit(pod("one", {SOUND: 1})))
        two = await kubelet.admit(pod("two", {GPU: 1}))
        assert two.phase == "Failed"
