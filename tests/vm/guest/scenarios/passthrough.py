# SPDX-License-Identifier: Apache-2.0
"""``passthrough`` rules: the daemon itself gives functions to vfio-pci, and gives them back.

Where a scenario starts, functions are on vfio-pci by an administrator's hand; so each begins by giving its
function to the host's driver, without an override, as after a boot.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio import to_thread

from tests.vm.guest import nested, pci, vfio
from tests.vm.guest.node import ABSENT, HEALTHY, LOOK, PATIENCE, UNHEALTHY, Mode, Node, until

_HOST_DRIVER = "e1000e"
_ADDRESS = "192.0.2.1/24"  # for documentation (RFC 5737)
_MOUNTED = Path("/run/data")
_STUBBORN = Path("/job/samples/stubborn.ko")
_HOLD = Path("/sys/module/stubborn/parameters/hold")
_AT_ONCE = 2.0  # seconds
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
            assert _late((await node.status())["changes"]) == []
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
    await _carried_out(
        node, lambda: all(pci.driver(address) == pci.VFIO for address in trio), "all are bound"
    )
    for address in trio:
        await node.until(address, HEALTHY)
    await node.wish(None)
    await until(lambda: [pci.driver(address) for address in trio] == before, "all are as before")
    assert [pci.override(address) for address in trio] == [None, None, None]


async def a_card_that_is_plugged_is_bound_by_its_rule(node: Node) -> None:
    """What is plugged in is new to the kernel: without override, and on the host's driver at first."""
    async with _on_the_hosts_driver(node, node.plugged):
        await _bound(node, node.plugged)
        await node.until(node.plugged, HEALTHY)
        await node.ask_monitor("device_del plugged")
        await until(lambda: not pci.exists(node.plugged), "unplugged")
        await node.until(node.plugged, ABSENT)
        await node.plug()
        await until(lambda: pci.exists(node.plugged), "plugged")
        await until(lambda: pci.driver(node.plugged) == pci.VFIO, "it is bound again")
        await node.until(node.plugged, HEALTHY)
        await _given_back(node, node.plugged)


async def a_virtual_machine_that_runs_keeps_what_no_rule_wants_any_more(node: Node) -> None:
    """It is refused at once, no write is begun that would sleep in the kernel, and it ends by itself."""
    async with _on_the_hosts_driver(node, node.alone):
        await _bound(node, node.alone)
        await node.until(node.alone, HEALTHY)
        async with nested.machine(node.alone):
            before = (await node.status())["changes"]["writes"]
            await node.wish(None)
            await _until_said(node, f"a process on this host has {node.alone} open")
            await anyio.sleep(_RETRIES)
            changes = (await node.status())["changes"]
            assert (changes["writes"], changes["inProgress"], _late(changes)) == (before, [], [])
            assert pci.driver(node.alone) == pci.VFIO
        await _until_host_driver(node.alone)


async def a_group_with_a_mounted_disk_is_left_to_the_host(node: Node) -> None:
    """Another function of the group is picked; the mount point is named, and what ends it is seen."""
    both = (node.disk, node.beside_disk)
    await until(lambda: [pci.driver(each) for each in both] == ["nvme", _HOST_DRIVER], "all are the host's")
    name = pci.disk(node.disk)
    await node.change(_mount, f"/dev/{name}")
    try:
        await node.wish(None, passthrough=[node.beside_disk])
        await _until_said(node, f"in use by the host ({name}, mounted on {_MOUNTED})")
        await anyio.sleep(_RETRIES)
        assert [pci.driver(each) for each in both] == ["nvme", _HOST_DRIVER]
        assert [pci.override(each) for each in both] == [None, None]
    finally:
        with anyio.CancelScope(shield=True):
            await node.change(_run, "umount", str(_MOUNTED))
    await until(lambda: all(pci.driver(each) == pci.VFIO for each in both), "both are bound", 60.0)
    await node.wish(None)
    await until(lambda: [pci.driver(each) for each in both] == ["nvme", _HOST_DRIVER], "both are as before")


async def an_unbind_that_the_kernel_does_not_end_is_told_and_holds_up_nothing_else(node: Node) -> None:
    """A driver of the host that does not let go: the write is late, and ends when the driver does."""
    async with _unbind_that_sleeps(node):
        await node.change(pci.unbind, node.alone)
        await node.until(node.alone, UNHEALTHY)
        change = f"bind {node.third} to vfio-pci"
        assert change in (await node.status())["changes"]["inProgress"]
        await _until_late(node, change)
        assert node.logged("action-waiting") > 0
        await node.change(pci.bind, node.alone, pci.VFIO)
        await node.until(node.alone, HEALTHY)
    await until(lambda: pci.driver(node.third) == pci.VFIO, "it is bound")
    await node.until(node.third, HEALTHY)
    assert _late((await node.status())["changes"]) == []
    await node.wish(None)
    await until(lambda: pci.driver(node.third) == "stubborn", "it is given back")
    await node.change(_run, "rmmod", "stubborn")


async def a_daemon_that_is_killed_while_an_unbind_sleeps_is_replaced_at_once(node: Node) -> None:
    """The write sleeps on as a process of its own; the daemon's process ends, and the next daemon serves."""
    async with _unbind_that_sleeps(node):
        began = time.monotonic()
        await node.kill_daemon()
        ended = time.monotonic()
        await node.start_daemon(Mode.POLL)
        serves = time.monotonic() - ended
        print(f"    ended in {ended - began:.2f} s, the next serves after {serves:.1f} s", flush=True)
        assert ended - began < _AT_ONCE
        assert await to_thread.run_sync(_writers) != []
        await node.until(node.alone, HEALTHY)
    await until(lambda: pci.driver(node.third) == pci.VFIO, "the next daemon has bound it")
    await node.until(node.third, HEALTHY)
    await node.wish(None)
    await until(lambda: pci.driver(node.third) == "stubborn", "it is given back")
    await node.change(_run, "rmmod", "stubborn")


@asynccontextmanager
async def _unbind_that_sleeps(node: Node) -> AsyncIterator[None]:
    """The daemon takes a function from a driver of the host that does not let go until the end."""
    await node.change(_run, "insmod", str(_STUBBORN))
    try:
        await node.change(pci.home, node.third)
        await until(lambda: pci.driver(node.third) == "stubborn", "the host's driver has it")
        await node.change(_hold, "Y")
        await node.wish(None, passthrough=[node.third])
        await until(lambda: pci.driver(node.third) is None, "the unbind has begun")
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await node.change(_hold, "N")


def _writers() -> list[str]:
    """The processes that write to sysfs for a daemon, by their arguments."""
    files = Path("/proc").glob("[0-9]*/cmdline")
    return [command for file in files if "write_file.py" in (command := file.read_text())]


async def virtual_functions_for_vfio_are_never_on_the_hosts_driver(node: Node) -> None:
    """Made and bound by rules that know their addresses before; the kernel's log knows of no other driver."""
    switch = pci.path(node.physical, "sriov_drivers_autoprobe")
    await node.change(_switch_on, switch)
    wanted = pci.coming(node.physical, 2)
    await node.wish(None, {node.physical: 2}, wanted)
    await until(lambda: [pci.driver(each) for each in wanted] == [pci.VFIO] * 2, "both are bound")
    for address in wanted:
        await node.until(address, HEALTHY)
    assert switch.read_text() == "0\n"
    said = await to_thread.run_sync(_kernel_log)
    assert [line for line in said if "nvme" in line and any(each in line for each in wanted)] == []
    await node.wish(None)
    await until(lambda: [pci.driver(each) for each in wanted] == [None] * 2, "both are given back, to none")
    await until(lambda: switch.read_text() == "1\n", "the switch is as it was")


@asynccontextmanager
async def _on_the_hosts_driver(node: Node, address: str) -> AsyncIterator[None]:
    await node.change(pci.home, address)
    await _until_host_driver(address)
    await node.until(address, UNHEALTHY)
    yield
    await _until_host_driver(address)


async def _carried_out(node: Node, look: Callable[[], bool], what: str) -> None:
    """Wait for a change by the daemon, on a slow machine as well; say what is known if it does not come."""
    try:
        await until(look, what, 60.0)
    except AssertionError as error:
        seen = await node.seen_of(node.second)
        raise AssertionError(f"{error}\n{seen}\n{(await node.status())['changes']}") from None


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


async def _until_late(node: Node, change: str) -> None:
    """Until the daemon says that the kernel has not answered in time."""
    deadline = time.monotonic() + PATIENCE
    while change not in (late := _late((await node.status())["changes"])):
        assert time.monotonic() < deadline, late
        await anyio.sleep(LOOK)


def _late(changes: dict[str, list[str]]) -> list[str]:
    """The changes that the kernel has not answered in time."""
    return changes.get("stuck", [])


def _mount(device: str) -> None:
    _run("mkfs.ext4", "-q", device)
    _MOUNTED.mkdir(exist_ok=True)
    _run("mount", device, str(_MOUNTED))


def _hold(flag: str) -> None:
    _HOLD.write_text(flag)


def _switch_on(switch: Path) -> None:
    switch.write_text("1")


def _kernel_log() -> list[str]:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.splitlines()


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)
