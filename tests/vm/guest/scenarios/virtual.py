# SPDX-License-Identifier: Apache-2.0
"""SR-IOV: an NVMe controller makes virtual functions and takes them away."""

from __future__ import annotations

import errno
from pathlib import Path

import anyio
import anyio.to_thread

from tests.vm.guest import pci, vfio
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node, until

_RETRIES = 4.0  # seconds in which a refusal would have been tried again, twice
_MAY_MAKE = Path("/sys/module/vfio_pci/parameters/enable_sriov")


def _make(physical: str, count: int) -> None:
    """Have the function make so many, without a driver; the switch is left as it was found."""
    switch = pci.path(physical, "sriov_drivers_autoprobe")
    before = switch.read_text()
    switch.write_text("0")
    try:
        pci.path(physical, "sriov_numvfs").write_text(str(count))
    finally:
        switch.write_text(before)


def _functions(physical: str, count: int = 2) -> list[str]:
    return [pci.path(physical, f"virtfn{index}").readlink().name for index in range(count)]


def _let_vfio_make(flag: str) -> None:
    """Let vfio-pci make virtual functions (Y), or not (N)."""
    _MAY_MAKE.write_text(flag)


def _refusal(address: str) -> int | None:
    """The error number with which the kernel refuses to open a function; None if it opens."""
    try:
        with vfio.held(address, pci.group(address)):
            return None
    except OSError as error:
        return error.errno


async def virtual_functions_come_and_go_with_their_number(node: Node) -> None:
    """Each is offered when it is bound, and gone with the others."""
    await node.change(_make, node.physical, 2)
    one, two = _functions(node.physical)
    for address in (one, two):
        done = await node.change(pci.bind, address, pci.VFIO)
        await node.promised(address, HEALTHY, done)
    done = await node.change(_make, node.physical, 0)
    await node.promised(one, ABSENT, done)
    await node.promised(two, ABSENT, done)


async def virtual_functions_that_cannot_go_stop_no_scan(node: Node) -> None:
    """One is open while their number is set to 0: the write waits, and other devices are still followed."""
    await node.change(_make, node.physical, 2)
    one, two = _functions(node.physical)
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


async def nothing_is_written_to_a_function_that_came_back_without_its_virtual_functions(node: Node) -> None:
    """The driver leaves them behind when it is removed; another write of their number would end the kernel.

    They stay until a reboot, so this takes a controller of its own, and leaves its rule in force for a while.
    """
    await node.change(_make, node.leaving, 2)
    one, two = _functions(node.leaving)
    for address in (one, two):
        await node.change(pci.bind, address, pci.VFIO)
        await node.until(address, HEALTHY)
    await node.change(pci.remove, node.leaving)
    await node.change(pci.rescan)
    await until(lambda: pci.driver(node.leaving) == "nvme", "the driver has it again")
    for address in (one, two):
        await node.until_reason(address, "fallen-off-the-bus", node.leaving)
        print(f"    {address} reads {pci.path(address, 'config').read_bytes()[:4].hex()}", flush=True)
    await node.wish(None, {node.leaving: 2})
    await until(lambda: node.logged("plan-problem") > 0, "a person is told")
    await anyio.sleep(_RETRIES)
    changes = (await node.status())["changes"]
    assert changes["writes"] == 0, changes
    assert any(node.leaving in problem["message"] for problem in changes["problems"]), changes
    assert pci.path(node.leaving, "sriov_numvfs").read_text().strip() == "0"


async def virtual_functions_of_one_on_vfio_are_not_given_as_the_kernel_wants_a_token(node: Node) -> None:
    """Whoever opens one has to show it, and libvirt does not; under the host's driver the same one opens."""
    await node.change(_make, node.physical, 1)
    (one,) = _functions(node.physical, 1)
    await node.change(pci.bind, one, pci.VFIO)
    await node.until(one, HEALTHY)
    assert await anyio.to_thread.run_sync(_refusal, one) is None
    await node.change(_make, node.physical, 0)
    await node.until(one, ABSENT)
    await node.change(_let_vfio_make, "Y")
    try:
        await node.change(pci.bind, node.physical, pci.VFIO)
        await node.change(_make, node.physical, 1)
        await node.change(pci.bind, one, pci.VFIO)
        await node.until_reason(one, "needs-vf-token", f"its PF {node.physical} is on vfio-pci")
        assert await anyio.to_thread.run_sync(_refusal, one) == errno.EACCES
    finally:
        await node.change(_make, node.physical, 0)
        await node.change(_let_vfio_make, "N")
        await node.change(pci.bind, node.physical, "nvme")
    await node.until(one, ABSENT)
