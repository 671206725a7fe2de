# SPDX-License-Identifier: Apache-2.0
"""Who has a device open: a virtual machine that the kubelet knows, or somebody else."""

from __future__ import annotations

import time

import anyio.to_thread

from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import nested, pci, vfio
from tests.vm.guest.node import HEALTHY, UNHEALTHY, Node, release, until

_TOLD = 3.0  # seconds until status in an emulated guest says so; 1.1 and 1.6 were seen beside other work
_VARIABLE = "PCI_RESOURCE_EXAMPLE_COM_PAIR"


async def a_device_that_is_open_outside_is_refused_at_allocate(node: Node) -> None:
    """Opening gives no event, so the list still says Healthy: Allocate looks once more."""
    with vfio.held(node.third, pci.group(node.third)):
        assert node.health(node.third) == HEALTHY
        pod = await node.kubelet.admit(Pod("ns", "late", [{"example.com/test": 1}]))
        node.kubelet.delete(pod)
    assert pod.phase == "Failed"
    assert node.third in pod.message, pod.message
    assert "open" in pod.message, pod.message


async def a_device_that_is_open_outside_is_unhealthy_until_it_is_closed(node: Node) -> None:
    """Its group is marked with it; closing ends it, without a restart."""
    with vfio.held(node.first, pci.group(node.first)):
        for address in (node.first, node.second, node.third):
            await node.until(address, UNHEALTHY)
            await node.until_reason(address, "held-outside-kubernetes")
        assert node.health(node.alone) == HEALTHY
    for address in (node.first, node.second, node.third):
        await node.until(address, HEALTHY)


async def an_unbind_under_a_holder_is_known_from_events_when_the_kernel_tells(node: Node) -> None:
    """Newer kernels at once, 6.1 when the holder closes; until then Allocate refuses the device."""
    with vfio.held(node.third, pci.group(node.third)):
        began = time.monotonic()
        waiting = pci.provoke(pci.BUS / "drivers" / pci.VFIO / "unbind", node.third)
        await until(lambda: pci.driver(node.third) is None, "the unbind has begun")
        if release() >= (6, 12):
            await node.promised(node.third, UNHEALTHY, began)
        pod = await node.kubelet.admit(Pod("ns", "late", [{"example.com/test": 1}]))
        node.kubelet.delete(pod)
        assert pod.phase == "Failed"
        await node.until_reason(node.third, "going-away")
    await anyio.to_thread.run_sync(waiting.wait, 20)
    await node.until_reason(node.third, "driver-changed")


async def an_unbind_that_waits_for_the_holder_shows_as_going_away(node: Node) -> None:
    """Meanwhile other devices are followed; Linux 6.1 tells nobody of it, newer ones at once."""
    with vfio.held(node.alone, pci.group(node.alone)):
        await node.until_reason(node.alone, "held-outside-kubernetes")
        waiting = pci.provoke(pci.BUS / "drivers" / pci.VFIO / "unbind", node.alone)
        began = await until(lambda: pci.driver(node.alone) is None, "the unbind has begun")
        await node.until_reason(node.alone, "going-away")
        if release() >= (6, 12):
            took = time.monotonic() - began
            assert took <= _TOLD, f"after {took:.2f} s; {await node.seen_of(node.alone)}"
        done = await node.change(pci.unbind, node.third)
        await node.promised(node.third, UNHEALTHY, done)
        assert waiting.poll() is None
    await anyio.to_thread.run_sync(waiting.wait, 20)
    await node.until_reason(node.alone, "driver-changed")


async def a_virtual_machine_gets_the_device_and_its_siblings_are_marked(node: Node) -> None:
    """A nested QEMU, started from what Allocate answered, shows the device on its bus."""
    pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/pair": 1}]))
    assert pod.phase == "Running", pod.message
    address = pod.result.envs[_VARIABLE]
    nodes = [host for host, _, _ in pod.result.devices]
    assert nodes == ["/dev/vfio/vfio", f"/dev/vfio/{pci.group(address)}"]
    siblings = {node.first, node.second, node.third} - {address}
    async with nested.machine(address):
        assert pci.opened(address) == 1
        for sibling in siblings:
            await node.until_reason(sibling, "group-held", "ns/vm")
        assert node.health(address) == HEALTHY, await node.seen_of(address)
    await until(lambda: pci.opened(address) == 0, "the virtual machine has let go")
    node.kubelet.delete(pod)
    for sibling in siblings:
        await node.until(sibling, HEALTHY)
