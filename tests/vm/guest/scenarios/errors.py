# SPDX-License-Identifier: Apache-2.0
"""PCIe errors (AER): the kernel tells of them by uevents only."""

from __future__ import annotations

from tests.vm.guest import pci
from tests.vm.guest.node import HEALTHY, UNHEALTHY, Node, until


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


async def a_fatal_error_makes_the_device_unhealthy_until_it_is_bound_again(node: Node) -> None:
    """A protocol error on the link: the recovery fails."""
    await node.ask_monitor("pcie_aer_inject_error faulty DLP")
    await node.until(node.faulty, UNHEALTHY)
    await node.until_reason(node.faulty, "failed-recovery", "could not recover")
    await node.change(pci.unbind, node.faulty)
    done = await node.change(pci.bind, node.faulty, pci.VFIO)
    await node.promised(node.faulty, HEALTHY, done)
