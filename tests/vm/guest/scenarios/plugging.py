# SPDX-License-Identifier: Apache-2.0
"""Cards that are plugged and unplugged while the machine runs, through QEMU's monitor."""

from __future__ import annotations

import time

from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import pci, vfio
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node, release, until


async def an_idle_device_that_is_unplugged_leaves_the_list_and_comes_back_when_plugged(node: Node) -> None:
    """What is plugged in is a new device: on the host's driver, until somebody binds it."""
    await node.ask_monitor("device_del plugged")
    gone = await until(lambda: not pci.exists(node.plugged), "unplugged")
    await node.promised(node.plugged, ABSENT, gone)
    await _plug(node)
    done = await node.change(pci.bind, node.plugged, pci.VFIO)
    await node.promised(node.plugged, HEALTHY, done)


async def an_unplug_that_waits_for_the_holder_shows_as_going_away(node: Node) -> None:
    """The kernel waits until the device is closed; then it leaves the list."""
    with vfio.held(node.plugged, pci.group(node.plugged)):
        await node.until_reason(node.plugged, "held-outside-kubernetes")
        await node.ask_monitor("device_del plugged")
        await node.until_reason(node.plugged, "going-away")
        assert pci.exists(node.plugged)
    gone = await until(lambda: not pci.exists(node.plugged), "unplugged")
    await node.promised(node.plugged, ABSENT, gone)
    await _plug(node)


async def a_card_unplugged_from_a_virtual_machine_stays_listed_until_its_pod_has_gone(node: Node) -> None:
    """From events alone: newer kernels tell at once, 6.1 only when the machine has let go."""
    pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/hot": 1}]))
    assert pod.phase == "Running", pod.message
    with vfio.held(node.plugged, pci.group(node.plugged)):
        asked = time.monotonic()
        await node.ask_monitor("device_del plugged")
        if release() >= (6, 12):
            await node.promised(node.plugged, UNHEALTHY, asked)
            assert (await node.told(node.plugged))["reason"] == "going-away"
    gone = await until(lambda: not pci.exists(node.plugged), "unplugged")
    await node.promised(node.plugged, UNHEALTHY, gone)
    await node.until_reason(node.plugged, "fallen-off-the-bus", "ns/vm")
    node.kubelet.delete(pod)
    await node.until(node.plugged, ABSENT)
    await _plug(node)


async def _plug(node: Node) -> None:
    await node.plug()
    came = await until(lambda: pci.driver(node.plugged) == "e1000e", "plugged, on the host's driver")
    await node.promised(node.plugged, UNHEALTHY, came)
