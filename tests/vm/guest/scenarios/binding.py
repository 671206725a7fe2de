# SPDX-License-Identifier: Apache-2.0
"""Drivers come and go: what the kubelet is told, from uevents alone."""

from __future__ import annotations

import os
import stat

from tests.vm.guest import pci
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node

_MODULES = ("vfio_pci", "vfio_iommu_type1")  # what depends on them goes along


async def an_unbind_and_a_bind_reach_the_kubelet_within_a_second(node: Node) -> None:
    """The bare cycle, in a group that keeps its node: uevents alone tell. The others stay Healthy."""
    done = await node.change(pci.unbind, node.second)
    await node.promised(node.second, UNHEALTHY, done)
    assert [each for each in node.offered if node.health(each) != HEALTHY] == [node.second]
    done = await node.change(pci.bind, node.second, pci.VFIO)
    await node.promised(node.second, HEALTHY, done)


async def a_host_driver_makes_the_device_unhealthy_within_a_second(node: Node) -> None:
    """Binding to the host's driver is one change, with an unbind inside; the reason names the driver."""
    done = await node.change(pci.bind, node.alone, "e1000e")
    await node.promised(node.alone, UNHEALTHY, done)
    await node.until_reason(node.alone, "driver-changed", "e1000e")


async def a_removed_function_leaves_the_list_and_a_rescan_brings_it_back(node: Node) -> None:
    """A rescan gives a new function: no override, so the host's driver takes it, and it is not offered."""
    done = await node.change(pci.remove, node.alone)
    await node.promised(node.alone, ABSENT, done)
    done = await node.change(pci.rescan)
    await node.promised(node.alone, UNHEALTHY, done)
    done = await node.change(pci.bind, node.alone, pci.VFIO)
    await node.promised(node.alone, HEALTHY, done)


async def changes_are_seen_from_a_network_namespace_of_its_own(node: Node) -> None:
    """As in a pod without hostNetwork: events come, and the slow timer is off."""
    assert (await node.events())["source"] == "uevents"
    await an_unbind_and_a_bind_reach_the_kubelet_within_a_second(node)


async def without_events_changes_are_found_by_asking(node: Node) -> None:
    """In a user namespace of its own; the daemon says that it has no events."""
    assert (await node.events())["source"] == "poll"
    await node.change(pci.unbind, node.alone)
    await node.until(node.alone, UNHEALTHY)
    await node.change(pci.bind, node.alone, pci.VFIO)
    await node.until(node.alone, HEALTHY)


async def the_list_follows_when_vfio_is_unloaded_and_loaded_again(node: Node) -> None:
    """/dev/vfio vanishes with the modules; the watch on it, which alone sees nodes, must work again."""
    for address in node.offered:
        await node.change(pci.unbind, address)
    await node.change(_unload)
    await node.change(pci.modprobe, "vfio-pci")
    done = await node.change(pci.bind, node.alone, pci.VFIO)
    await node.promised(node.alone, HEALTHY, done)
    await a_node_that_is_deleted_and_made_again_is_noticed_within_a_second(node)


def _unload() -> None:
    pci.modprobe("-r", *_MODULES)
    assert not os.path.exists("/dev/vfio")


async def a_node_that_is_deleted_and_made_again_is_noticed_within_a_second(node: Node) -> None:
    """What udev or a person does in /dev is no uevent. The kernel removes no node that it has not made."""
    path = f"/dev/vfio/{pci.group(node.alone)}"
    number = os.stat(path).st_rdev
    done = await node.change(os.unlink, path)
    try:
        await node.promised(node.alone, UNHEALTHY, done)
        await node.until_reason(node.alone, "node-missing")
    finally:
        done = await node.change(os.mknod, path, stat.S_IFCHR | 0o600, number)
    await node.promised(node.alone, HEALTHY, done)
    await node.change(os.unlink, path)
    await node.change(pci.unbind, node.alone)
    done = await node.change(pci.bind, node.alone, pci.VFIO)
    await node.promised(node.alone, HEALTHY, done)
