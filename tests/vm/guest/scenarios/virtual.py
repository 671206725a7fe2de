# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: an NVMe controller makes virtual functions and takes them away."""

from __future__ import annotations

import anyio.to_thread

from tests.vm.guest import pci, vfio
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node, until


def _make(node: Node, count: int) -> None:
    pci.path(node.physical, "sriov_drivers_autoprobe").write_text("0")
    pci.path(node.physical, "sriov_numvfs").write_text(str(count))


def _functions(node: Node) -> list[str]:
    return [pci.path(node.physical, f"virtfn{index}").readlink().name for index in range(2)]


async def virtual_functions_come_and_go_with_their_number(node: Node) -> None:
    """Each is offered when it is bound, and gone with the others."""
    await node.change(_make, node, 2)
    one, two = _functions(node)
    for address in (one, two):
        done = await node.change(pci.bind, address, pci.VFIO)
        await node.promised(address, HEALTHY, done)
    done = await node.change(_make, node, 0)
    await node.promised(one, ABSENT, done)
    await node.promised(two, ABSENT, done)


async def virtual_functions_that_cannot_go_stop_no_scan(node: Node) -> None:
    """One is open while their number is set to 0: the write waits, and other devices are still followed."""
    await node.change(_make, node, 2)
    one, two = _functions(node)
    for address in (one, two):
        await node.change(pci.bind, address, pci.VFIO)
        await node.until(address, HEALTHY)
    with vfio.held(one, pci.group(one)):
        waiting = pci.provoke(pci.path(node.physical, "sriov_numvfs"), "0")
        await node.until_reason(one, "going-away")
        done = await node.change(pci.unbind, node.alone)
        await node.promised(node.alone, UNHEALTHY, done)
        assert waiting.poll() is None
    await anyio.to_thread.run_sync(waiting.wait, 20)
    await until(lambda: not pci.exists(one) and not pci.exists(two), "both have gone")
    await node.until(one, ABSENT)
    await node.until(two, ABSENT)
