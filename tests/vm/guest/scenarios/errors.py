# SPDX-License-Identifier: Apache-2.0
"""PCIe errors (AER): the kernel tells of them by uevents only. Loss of power: it tells nobody."""

from __future__ import annotations

import anyio

from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import pci, vfio
from tests.vm.guest.node import HEALTHY, LOOK, UNHEALTHY, Node, until


def _counted(node: Node) -> int:
    """Non-fatal errors so far."""
    return int(pci.path(node.faulty, "aer_dev_nonfatal").read_text().split()[-1])


async def a_recovered_error_leaves_the_device_healthy(node: Node) -> None:
    """A poisoned packet: the kernel recovers within milliseconds, and says so."""
    before, events = _counted(node), (await node.events())["events"]
    await node.ask_monitor("pcie_aer_inject_error faulty POISON_TLP")
    await until(lambda: _counted(node) > before, "the kernel counts the error")
    await node.until_events(events + 2)  # its begin and its end
    await node.until(node.faulty, HEALTHY)
    assert (await node.told(node.faulty))["healthy"]


async def a_fatal_error_makes_the_device_unhealthy_over_a_restart_until_it_is_bound_again(node: Node) -> None:
    """A protocol error on the link: the recovery fails, of which the kernel shows nothing afterwards.

    It can be shown once for each boot: of a second one the emulated port does not tell.
    """
    await node.ask_monitor("pcie_aer_inject_error faulty DLP")
    await node.until(node.faulty, UNHEALTHY)
    await node.until_reason(node.faulty, "failed-recovery", "could not recover")
    await _restarted(node)
    await node.until_reason(node.faulty, "failed-recovery", "could not recover")
    await _bound_again(node)


async def a_device_without_power_is_refused_at_allocate_until_it_is_bound_anew(node: Node) -> None:
    """The kernel notices nothing, nobody looks at a sleeping device: the first who does is an Allocate."""
    pci.power(node.faulty, on=False)
    try:
        await node.change(pci.synthetic, node.faulty)
        assert node.health(node.faulty) == HEALTHY
        pod = await node.kubelet.admit(Pod("ns", "late", [{"example.com/net": 1}]))
        node.kubelet.delete(pod)
        assert pod.phase == "Failed"
        assert node.faulty in pod.message
        await node.until_reason(node.faulty, "fallen-off-the-bus")
    finally:
        pci.power(node.faulty, on=True)
    await _bound_again(node)


async def a_pod_is_told_that_its_device_has_lost_its_power(node: Node) -> None:
    """Open and awake, so a look costs nothing; when it answers again, the pod is told that, too."""
    pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/net": 1}]))
    assert pod.phase == "Running", pod.message
    with vfio.held(node.faulty, pci.group(node.faulty)):
        await until(lambda: pci.opened(node.faulty) == 1, "it is open")
        pci.power(node.faulty, on=False)
        try:
            await node.until_reason(node.faulty, "fallen-off-the-bus")
        finally:
            pci.power(node.faulty, on=True)
        await node.until(node.faulty, HEALTHY)


async def looks_wake_no_sleeping_device(node: Node) -> None:
    """By the kernel's own counters of runtime power management, over many scans."""
    asleep = [each for each in node.offered if pci.sleeps(each)]
    assert asleep, "devices on vfio-pci that nobody has open sleep"
    before = {each: pci.awake_for(each) for each in asleep}
    scans = await _scans(node)
    for each in asleep:
        await node.change(pci.synthetic, each, 20)
    while await _scans(node) < scans + 4:  # noqa: ASYNC110 - a status gives no event
        await anyio.sleep(LOOK)
    assert {each: pci.awake_for(each) for each in asleep} == before
    assert all(pci.sleeps(each) for each in asleep)


async def _scans(node: Node) -> int:
    return sum((await node.status())["host"]["scans"]["counts"])


async def _bound_again(node: Node) -> None:
    """What ends a verdict at once."""
    await node.change(pci.unbind, node.faulty)
    done = await node.change(pci.bind, node.faulty, pci.VFIO)
    await node.promised(node.faulty, HEALTHY, done)


async def _restarted(node: Node) -> None:
    """The daemon is stopped and runs again, in the same mode."""
    assert node.mode is not None
    mode = node.mode
    await node.stop_daemon()
    await node.run_daemon(mode)
