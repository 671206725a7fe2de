# SPDX-License-Identifier: Apache-2.0
"""USB devices that come back at their port with other ids when they are first used, as a Coral TPU does."""

from __future__ import annotations

import pytest

from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import Node, health, pod, until_health
from tests.blackbox.plugs import all_seen, configured
from tests.facts import names
from tests.sim.usb import Plug

NAME = "example.com/tpu"
RULE = "{name: example.com/tpu, usb: [{vendors: ['1a6e'], products: ['089a']}, {vendors: ['18d1']}]}"
BEFORE, AFTER = Plug("1a6e", "089a"), Plug("18d1", "9302")
PORT = "@0000:00:14.0-usb-0:1"
OLD, NEW = f"1a6e:089a{PORT}", f"18d1:9302{PORT}"


async def used(node: Node, kubelet: FakeKubelet) -> None:
    """The device of a pod gets other ids; nobody is allocated it, and all say so."""
    node.usb.unplug("1-1")
    node.usb.plug("1-1", AFTER, 5)
    await until_health(kubelet, NAME, NEW, "Unhealthy")
    status = await node.until_told(lambda told: "ns/vm" in str(told["resources"]))
    (resource,) = status["resources"]
    new, old = sorted(resource["devices"], key=lambda each: str(each["id"]))
    assert (old["reason"], new["reason"]) == ("re-enumerated", "group-held")
    names(old["message"], NEW, "1-1", "ns/vm")
    names(new["message"], OLD, "ns/vm")
    names((await node.command("explain", "1-1")).stdout, OLD, "ns/vm")
    names((await node.command("explain", "ns/vm")).stdout, OLD, NEW)
    other = await kubelet.admit(pod("other", {NAME: 1}))
    assert other.phase != "Running"


@pytest.mark.parametrize("restart", [False, True])
async def test_the_port_of_a_device_is_its_pods_though_it_gets_other_ids(node: Node, restart: bool) -> None:
    all_seen(node)
    configured(node, RULE)
    node.usb.plug("1-1", BEFORE, 4)
    async with node.kubelet() as kubelet:
        async with node.daemon() as first:
            await kubelet.until_listed(NAME, 1)
            vm = await kubelet.admit(pod("vm", {NAME: 1}))
            assert vm.phase == "Running", vm.message
            if not restart:
                await used(node, kubelet)
            await first.end()
        async with node.daemon():
            await used(node, kubelet) if restart else await until_health(kubelet, NAME, NEW, "Unhealthy")
            kubelet.delete(vm)
            await kubelet.until(lambda: health(kubelet, NAME) == {NEW: "Healthy"}, 15)
            again = await kubelet.admit(pod("again", {NAME: 1}))
            assert again.result.ids == {NAME: (NEW,)}
