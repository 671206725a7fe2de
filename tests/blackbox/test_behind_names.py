# SPDX-License-Identifier: Apache-2.0
"""Ids are unique within a resource only: who has the same one of another resource keeps no function."""

from __future__ import annotations

import os

import pytest

from tests.blackbox import foreign
from tests.blackbox.boards import named, running, stays
from tests.blackbox.harness import PATIENCE, Node, eventually, pod
from tests.blackbox.test_behind import HEAD, PORT, SINCE, STICKS, Ports, with_a_serial_card
from tests.sim import plugin

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of nodes are root's to change")
CARD = "0000:08:00.0"


@pytest.mark.slow
@pytest.mark.parametrize("goes", [False, True], ids=["has come", "has come and gone"])
@pytest.mark.parametrize("name", ["aaa", "zzz"])
async def test_a_function_is_bound_though_a_pod_with_another_plugins_id_of_the_same_name(
    node: Node, name: str, goes: bool
) -> None:
    """The kubelet writes nothing when a pod ends, so what its file says stays for long."""
    node.host.add_function(CARD, vendor="10de", device="1eb8", pci_class="030200", driver="nvidia", group=8)
    ports = Ports(plugin.device("port-0"))
    ports.refusal = None
    async with (
        with_a_serial_card(node, STICKS, CARD) as drivers,
        node.kubelet() as kubelet,
        node.daemon(),
        plugin.served(kubelet, ports, "port.sock"),
        foreign.serving(kubelet, "port-0"),
    ):
        await plugin.register(kubelet, "port.sock", PORT)
        await kubelet.until_listed(PORT, 1)
        one = await kubelet.admit(pod("one", {PORT: 1}))
        running(one)
        await named(node, "port-0", one)
        await stays(kubelet, lambda: True, SINCE)
        other = await kubelet.admit(pod(name, {foreign.NIC: 1}))
        running(other)
        await stays(kubelet, lambda: True, SINCE)
        if goes:
            kubelet.delete(other)
            await stays(kubelet, lambda: True, SINCE)
        node.configure(f"{HEAD}{STICKS}passthrough: [{{match: [{{addresses: ['{CARD}']}}]}}]\n")
        await eventually(lambda: drivers.driver(CARD) == "vfio-pci", PATIENCE)
