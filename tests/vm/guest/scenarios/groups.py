# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: the daemon's verdict against the kernel's own flag."""

from __future__ import annotations

import itertools

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber
from nodeagent.policy import groups
from tests.vm.guest import pci, vfio
from tests.vm.guest.node import HEALTHY, UNHEALTHY, Node

_NIC = (pci.VFIO, None, "e1000e", "pci-stub")
_TEST = (pci.VFIO, None)  # no driver of the host knows it


async def viability_is_what_the_kernel_says_in_every_combination(node: Node) -> None:
    """All combinations of drivers in a group of three that has a node; the daemon's list agrees."""
    pci.modprobe("pci-stub")
    trio = (node.first, node.second, node.third)
    seen = set()
    for drivers in itertools.product(_NIC, _NIC, _TEST):
        for address, driver in zip(trio, drivers, strict=True):
            await node.change(pci.put, address, driver)
        if pci.VFIO in drivers:
            seen.add(await _agreement(node, dict(zip(trio, drivers, strict=True))))
    assert seen == {True, False}


async def _agreement(node: Node, drivers: dict[str, str | None]) -> bool:
    """Compare; the kernel's verdict."""
    number = pci.group(node.first)
    kernel = vfio.viable(number)
    members = (await _scan()).members(GroupNumber(number))
    assert (not groups.find_blockers(members)) == kernel, drivers
    for address, driver in drivers.items():
        if driver != pci.VFIO:
            await node.until_reason(address, "driver-changed", driver or "no driver")
        elif not kernel:
            await node.until_reason(address, "group-not-viable")
        usable = driver == pci.VFIO and kernel
        await node.until(address, HEALTHY if usable else UNHEALTHY)
    return kernel


async def a_port_in_the_group_does_not_hinder_it(node: Node) -> None:
    """A root port without ACS shares the group of what is below it; its driver lets VFIO in."""
    number = pci.group(node.below_port)
    members = (await _scan()).members(GroupNumber(number))
    assert "pcieport" in {member.driver for member in members}
    assert vfio.viable(number)
    assert node.health(node.below_port) == HEALTHY


async def _scan() -> Host:
    return await Scanner(Root(), ScanRequests(), deadline=2.0, timeouts=Timeouts()).scan(None, Host(), (), {})
