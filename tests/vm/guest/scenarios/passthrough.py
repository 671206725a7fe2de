# SPDX-License-Identifier: Apache-2.0
"""``passthrough`` rules: the daemon itself gives functions to vfio-pci, and gives them back.

Where a scenario starts, functions are on vfio-pci by an administrator's hand; so each begins by giving its
function to the host's driver, without an override, as after a boot.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from tests.vm.guest import pci, vfio
from tests.vm.guest.node import HEALTHY, LOOK, PATIENCE, UNHEALTHY, Node, until

_HOST_DRIVER = "e1000e"
_ADDRESS = "192.0.2.1/24"  # for documentation (RFC 5737)
_RETRIES = 4.0  # seconds in which a refusal would have been tried again, twice


async def a_rule_binds_a_function_and_gives_its_driver_back(node: Node) -> None:
    """The kubelet has it as soon as it is bound; no override is left behind."""
    async with _on_the_hosts_driver(node, node.alone):
        await _bound(node, node.alone)
        assert pci.override(node.alone) == pci.VFIO
        await node.until(node.alone, HEALTHY)
        with vfio.held(node.alone, pci.group(node.alone)):
            pass
        await _given_back(node, node.alone)


async def a_function_that_was_removed_and_found_again_is_bound_again(node: Node) -> None:
    """The new one has no override, so the host's driver takes it first."""
    async with _on_the_hosts_driver(node, node.alone):
        await _bound(node, node.alone)
        await node.change(pci.remove, node.alone)
        await node.change(pci.rescan)
        await until(lambda: pci.exists(node.alone), "it is there again")
        await until(lambda: pci.driver(node.alone) == pci.VFIO, "it is bound again")
        await node.until(node.alone, HEALTHY)
        await _given_back(node, node.alone)


async def a_function_that_is_open_is_given_back_when_it_is_closed(node: Node) -> None:
    """The write would sleep in the kernel until then: it is not begun."""
    async with _on_the_hosts_driver(node, node.alone):
        await _bound(node, node.alone)
        await node.until(node.alone, HEALTHY)
        with vfio.held(node.alone, pci.group(node.alone)):
            await node.wish(None)
            await anyio.sleep(_RETRIES)
            assert pci.driver(node.alone) == pci.VFIO
            assert (await node.status())["changes"].get("late", []) == []
        await _until_host_driver(node.alone)


async def a_network_interface_with_an_address_is_left_to_the_host(node: Node) -> None:
    """It is said why, nothing is written, and it is bound when the address has gone."""
    async with _on_the_hosts_driver(node, node.alone):
        interface = pci.interface(node.alone)
        await node.change(_ip, "address", "add", _ADDRESS, "dev", interface)
        await node.change(_ip, "link", "set", interface, "up")
        await node.wish(None, passthrough=[node.alone])
        await _until_said(node, f"in use by the host ({interface}")
        await anyio.sleep(_RETRIES)
        assert pci.driver(node.alone) == _HOST_DRIVER
        assert pci.override(node.alone) is None
        await node.change(_ip, "link", "set", interface, "down")
        await node.change(_ip, "address", "flush", "dev", interface)
        await until(lambda: pci.driver(node.alone) == pci.VFIO, "it is bound", 60.0)
        await _given_back(node, node.alone)


async def a_group_is_bound_whole(node: Node) -> None:
    """One function of three is picked; each goes back to what it had: the host's driver, or none."""
    trio = (node.first, node.second, node.third)
    for address in trio:
        await node.change(pci.home, address)
        await node.until(address, UNHEALTHY)
    before = [_HOST_DRIVER, _HOST_DRIVER, None]
    await until(lambda: [pci.driver(address) for address in trio] == before, "all are the host's")
    await node.wish(None, passthrough=[node.second])
    await until(lambda: all(pci.driver(address) == pci.VFIO for address in trio), "all are bound")
    for address in trio:
        await node.until(address, HEALTHY)
    await node.wish(None)
    await until(lambda: [pci.driver(address) for address in trio] == before, "all are as before")
    assert [pci.override(address) for address in trio] == [None, None, None]


@asynccontextmanager
async def _on_the_hosts_driver(node: Node, address: str) -> AsyncIterator[None]:
    await node.change(pci.home, address)
    await _until_host_driver(address)
    await node.until(address, UNHEALTHY)
    yield
    await _until_host_driver(address)


async def _until_host_driver(address: str) -> None:
    await until(lambda: pci.driver(address) == _HOST_DRIVER, f"{address} is on {_HOST_DRIVER}")
    await until(lambda: pci.override(address) is None, f"{address} has no override")


async def _bound(node: Node, address: str) -> None:
    """A rule for it is in force, and carried out."""
    await node.wish(None, passthrough=[address])
    await until(lambda: pci.driver(address) == pci.VFIO, f"{address} is bound")


async def _given_back(node: Node, address: str) -> None:
    """No rule is in force any more, and that is carried out."""
    await node.wish(None)
    await _until_host_driver(address)
    await node.until(address, UNHEALTHY)


async def _until_said(node: Node, text: str) -> None:
    """Until the daemon says so of its changes."""
    deadline = time.monotonic() + PATIENCE
    while text not in (said := json.dumps((await node.status())["changes"])):
        assert time.monotonic() < deadline, said
        await anyio.sleep(LOOK)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
