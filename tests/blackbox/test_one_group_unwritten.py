# SPDX-License-Identifier: Apache-2.0
"""The kubelet's file has an old entry of what was given anew, and nothing makes the kubelet write it.

A pod that ends writes nothing, nor does an Allocate that fails: ``allocateContainerResources`` in
pkg/kubelet/cm/devicemanager/manager.go returns before ``writeCheckpoint`` then.
"""

from __future__ import annotations

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.boards import GPU, LONE, REST, running, started, stays, until_all_healthy, usb_boards
from tests.blackbox.foreign import NIC, serving
from tests.blackbox.harness import PATIENCE, Node, pod

pytestmark = pytest.mark.slow

ONE_RESOURCE = """
resources:
  - {name: example.com/gpu, pci: [{devices: ["1eb8", "1ad8"]}]}
  - {name: example.com/lone, pci: [{devices: ["1ad9"]}]}
"""


async def test_what_a_refused_pod_got_of_one_that_has_ended_is_free_again(node: Node) -> None:
    """The other pod that came could be the one that was given it: only the file tells."""
    usb_boards(node, 1)
    node.configure(ONE_RESOURCE)
    async with (
        started(node, listed={GPU: 2}) as (_, kubelet),
        serving(kubelet, "n0", refusal="no"),
    ):
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        await kubelet.until(lambda: len(kubelet.state.table.healthy[GPU]) == 1, PATIENCE)
        await stays(kubelet, lambda: len(kubelet.state.table.healthy[GPU]) == 1, 0.5)
        running(await kubelet.admit(pod("without", {})))
        kubelet.delete(old)
        await refused_half_way(kubelet)
        await until_all_healthy(kubelet, GPU, within=REST)
        running(await kubelet.admit(pod("next", {GPU: 2})))


async def test_what_a_refused_pod_got_does_not_wait_for_what_nobody_shows_for_long(node: Node) -> None:
    """The file is written anew ever more seldom for what only a plain init container has."""
    usb_boards(node, 1)
    node.configure(ONE_RESOURCE)
    async with (
        started(node, listed={GPU: 2, LONE: 1}) as (_, kubelet),
        serving(kubelet, "n0", refusal="no"),
    ):
        running(await kubelet.admit(pod("long", {}, init_containers=[{LONE: 1}])))
        old = await kubelet.admit(pod("old", {GPU: 1}))
        running(old)
        await kubelet.until(lambda: len(kubelet.state.table.healthy[GPU]) == 1, PATIENCE)
        await stays(kubelet, lambda: len(kubelet.state.table.healthy[GPU]) == 1, 4.0)
        running(await kubelet.admit(pod("without", {})))
        kubelet.delete(old)
        await refused_half_way(kubelet)
        await until_all_healthy(kubelet, GPU, within=REST)


async def refused_half_way(kubelet: FakeKubelet) -> None:
    """A pod gets a device, and is refused by another plugin; which of the two is asked first is random."""
    seen = kubelet.state.statistics.allocations
    for number in range(50):
        before = len(seen)
        assert (await kubelet.admit(pod(f"half{number}", {GPU: 1, NIC: 1}))).phase == "Failed"
        if seen[before].resource == GPU:
            assert seen[before].error is None
            return
    raise AssertionError
