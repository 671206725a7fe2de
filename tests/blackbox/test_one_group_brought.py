# SPDX-License-Identifier: Apache-2.0
"""What is known of an answer to an Allocate ends with it: no longer, and under no other name."""

from __future__ import annotations

import signal

import pytest

from tests.blackbox import foreign
from tests.blackbox.boards import (
    GPU,
    LONE,
    LONE_AT,
    USB,
    named,
    refusal,
    running,
    started,
    until_all_healthy,
    usb_boards,
)
from tests.blackbox.harness import PATIENCE, Node, pod, until_health
from tests.facts import names

ALL, SOUND = "example.com/all", "example.com/sound"
BUNDLE = 'resources: [{name: example.com/all, pci: [{devices: ["1eb8", "1ad8"]}], isolation: bundle}]'
NARROWED = """
resources:
  - {name: example.com/all, pci: [{devices: ["1eb8"]}], isolation: none}
  - {name: example.com/usb, pci: [{devices: ["1ad8"]}], isolation: none}
"""
SILENT = "pod-resources-exhausted"


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True], ids=["answering", "silent"])
async def test_the_rest_of_a_bundle_is_free_when_its_pod_has_ended_although_another_one_has_the_id(
    node: Node, silent: bool
) -> None:
    (board,) = usb_boards(node, 1)
    node.configure(BUNDLE)
    async with started(node, listed={ALL: 1}) as (daemon, kubelet):
        one = await kubelet.admit(pod("one", {ALL: 1}))
        running(one)
        await named(node, board.gpu, one)
        node.configure(NARROWED)
        await daemon.logged("config-reloaded")
        await until_health(kubelet, USB, board.usb, "Unhealthy")
        if silent:
            kubelet.faults.set(SILENT)
        kubelet.delete(one)
        two = await kubelet.admit(pod("two", {ALL: 1}))
        running(two)
        kubelet.faults.clear(SILENT)
        await named(node, board.gpu, two)
        await until_all_healthy(kubelet, USB)
        running(await kubelet.admit(pod("three", {USB: 1})))


async def test_what_virt_handler_gave_and_its_pod_has_open_is_refused_with_that_pod(node: Node) -> None:
    """Nothing is waited for: it is no container that lives on after its pod."""
    (board,) = usb_boards(node, 1)
    node.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}], isolation: none}]')
    socket = "kubevirt-example.com-sound.sock"
    async with (
        started(node, listed={GPU: 1}) as (_, kubelet),
        foreign.serving(kubelet, board.group, resource=SOUND, socket=socket) as virt_handler,
    ):
        virt_handler.env = {"PCI_RESOURCE_EXAMPLE_COM_SOUND": board.gpu}
        running(await kubelet.admit(pod("one", {SOUND: 1})))
        node.host.hold(board.gpu)
        names(await refusal(kubelet, GPU, board.gpu), "ns/one", SOUND)


@pytest.mark.parametrize("number", [8, 9], ids=["comes again", "stays free"])
async def test_a_group_number_that_came_again_is_known_to_be_another_group_by_a_new_daemon_too(
    node: Node, number: int
) -> None:
    """The kernel gives the lowest free one; what had it was closed and is away, and its pod lives on."""
    usb_boards(node, 1)
    other = "0000:70:00.0"
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(LONE, 1, PATIENCE)
            vm = await kubelet.admit(pod("vm", {LONE: 1}))
            await named(node, LONE_AT, vm)
            node.host.unplug(LONE_AT)
            await until_health(kubelet, LONE, LONE_AT, "Unhealthy")
            node.add_gpu(other, number)
            await until_health(kubelet, GPU, other, "Healthy")
            await daemon.end(signal.SIGKILL)
        async with node.daemon() as daemon:
            await daemon.logged("resource-registered", resource=GPU)
            await kubelet.until(lambda: len(kubelet.state.table.healthy[GPU]) == 2, PATIENCE)
            running(await kubelet.admit(pod("late", {GPU: 2})))
