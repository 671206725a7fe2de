# SPDX-License-Identifier: Apache-2.0
"""USB devices that are plugged in and pulled out through QEMU's monitor: a stick, and a keyboard."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import nested, pci
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node, until

_STICK, _KEYS = "46f4:0001-S9", "0627:0001"  # QEMU's own ids; the second without a serial number
_MODULES = ("xhci-pci", "usb-storage", "sd_mod", "usbhid")  # which udev would load
_DEVICES = Path("/sys/bus/usb/devices")
_STATE = Path("/run/nodeagent/state.json")
_MOUNTED = Path("/run/mounted-stick")
_ROOT, _QEMU = (0, 0), (107, 107)


def _is_lent() -> bool:
    """True if a USB device of a pod is in the saved state."""
    return _STATE.exists() and "usb" in json.loads(_STATE.read_text())


async def a_stick_is_qemus_until_its_pod_has_let_go(node: Node) -> None:
    """A machine opens it as the user that it was lent to, from what Allocate has answered."""
    async with _stick(node):
        pod = await _given(node)
        lent = _node()
        assert pod.result.envs == {"USB_RESOURCE_EXAMPLE_COM_STICK": _place()}
        assert [host for host, _, _ in pod.result.devices] == [str(lent)]
        assert _owner(lent) == _QEMU
        async with nested.with_usb(lent):
            assert node.health(_STICK) == HEALTHY, await node.seen_of(_STICK)
        assert _owner(lent) == _QEMU
        node.kubelet.delete(pod)
        await until(lambda: _owner(lent) == _ROOT and not _is_lent(), "given back")
        await node.until(_STICK, HEALTHY)


async def a_stick_that_is_pulled_from_a_machine_stays_listed_and_comes_back_by_another_number(
    node: Node,
) -> None:
    """From events alone; what the next pod is given is the number of then."""
    async with _stick(node):
        pod = await _given(node)
        before, lent = _place(), _node()
        async with nested.with_usb(lent):
            await node.ask_monitor("device_del stick")
            await node.promised(_STICK, UNHEALTHY, await until(lambda: not lent.exists(), "pulled"))
            await node.until_reason(_STICK, "fallen-off-the-bus", "ns/vm")
            await node.ask_monitor(_PLUG_STICK)
            await node.until_reason(_STICK, "re-enumerated", f"its pod got {before}")
        assert _place() != before
        assert _owner(_node()) == _ROOT
        node.kubelet.delete(pod)
        await node.until(_STICK, HEALTHY)
        await until(lambda: not _is_lent(), "given back")
        again = await _given(node)
        assert again.result.envs == {"USB_RESOURCE_EXAMPLE_COM_STICK": _place()}
        assert _owner(_node()) == _QEMU
        node.kubelet.delete(again)


async def a_mounted_stick_is_the_hosts(node: Node) -> None:
    """The mount point is named, and what ends it is seen."""
    async with _stick(node):
        disk = (await _until_disk()).name
        await node.change(_mount, f"/dev/{disk}")
        try:
            await node.until_reason(_STICK, "used-by-host", str(_MOUNTED))
            pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/stick": 1}]))
            node.kubelet.delete(pod)
            assert pod.phase == "Failed"
            assert _owner(_node()) == _ROOT
        finally:
            await node.change(_run, "umount", str(_MOUNTED))
        await node.until(_STICK, HEALTHY)


async def a_stick_that_was_mounted_a_moment_ago_is_refused_at_allocate(node: Node) -> None:
    """Mounting raises no event, so the list still says Healthy: Allocate looks once more."""
    async with _stick(node):
        disk = (await _until_disk()).name
        await node.change(_mount, f"/dev/{disk}")
        try:
            assert node.health(_STICK) == HEALTHY
            pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/stick": 1}]))
            node.kubelet.delete(pod)
            assert str(_MOUNTED) in pod.message
            assert _owner(_node()) == _ROOT
        finally:
            await node.change(_run, "umount", str(_MOUNTED))


async def the_keyboard_of_the_console_is_the_hosts(node: Node) -> None:
    """From events alone, although its input device comes long after the driver of its interface."""
    async with _plugged(node, "keys", "device_add usb-kbd,id=keys,bus=xhci.0", _KEYS):
        listed = await _listed(node, "example.com/keys")
        await until(lambda: "usbhid" in _drivers(), "it has its driver")
        await node.until(listed, HEALTHY)
        await node.change(pci.modprobe, "hid-generic")
        assert _console_reads(_at(_KEYS))
        await node.until_reason(listed, "used-by-host", "the keyboard of the console")
        pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/keys": 1}]))
        node.kubelet.delete(pod)
        assert pod.phase == "Failed"
    await node.until(listed, ABSENT)


_PLUG_STICK = "device_add usb-storage,id=stick,bus=xhci.0,drive=stick,serial=S9"


@asynccontextmanager
async def _stick(node: Node) -> AsyncIterator[None]:
    """A stick that is plugged in, and pulled at the end."""
    async with _plugged(node, "stick", _PLUG_STICK, "46f4:0001"):
        await node.until(_STICK, HEALTHY)
        yield
    await node.until(_STICK, ABSENT)


@asynccontextmanager
async def _plugged(node: Node, name: str, command: str, ids: str) -> AsyncIterator[None]:
    await node.change(pci.modprobe, "-a", *_MODULES)
    await until(lambda: any(_DEVICES.glob("usb*")), "the controller is there")
    said = await node.ask_monitor(command)
    try:
        await until(lambda: _at(ids) is not None, f"plugged in: {said}")
        yield
    finally:
        await node.ask_monitor(f"device_del {name}")
        await until(lambda: _at(ids) is None, "pulled")


def _at(ids: str) -> Path | None:
    """Where the device with this vendor and product is."""
    for each in _DEVICES.glob("[0-9]*-[0-9]*"):
        if ":" not in each.name and _text(each, "idVendor") + ":" + _text(each, "idProduct") == ids:
            return each
    return None


def _text(at: Path, name: str) -> str:
    try:
        return (at / name).read_text().strip()
    except OSError:
        return ""


def _place() -> str:
    at = _at("46f4:0001")
    assert at is not None
    return f"{_text(at, 'busnum')}:{_text(at, 'devnum')}"


def _node() -> Path:
    bus, _, number = _place().partition(":")
    return Path(f"/dev/bus/usb/{int(bus):03}/{int(number):03}")


def _owner(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_uid, status.st_gid


async def _given(node: Node) -> Pod:
    pod = await node.kubelet.admit(Pod("ns", "vm", [{"example.com/stick": 1}]))
    assert pod.phase == "Running", pod.message
    return pod


async def _until_disk() -> Path:
    """The disk that the driver makes of the stick, a second after it was plugged in."""
    found: list[Path] = []

    def seen() -> bool:
        at = _at("46f4:0001")
        found[:] = at.glob("*:1.0/host*/target*/*/block/sd*") if at is not None else ()
        return bool(found)

    await until(seen, "a disk")
    return found[0]


def _drivers() -> set[str]:
    return {each.resolve().name for each in _DEVICES.glob("*:1.0/driver")}


def _console_reads(at: Path | None) -> bool:
    """True if what is typed there goes to the virtual terminals."""
    blocks = Path("/proc/bus/input/devices").read_text().split("\n\n")
    return any(at is not None and f"/{at.name}/" in block and "kbd" in block for block in blocks)


async def _listed(node: Node, resource: str) -> str:
    """The one device that the kubelet was told of."""
    lists = node.kubelet.statistics.lists
    await node.kubelet.until(lambda: bool(lists[resource][-1].health))
    (found,) = lists[resource][-1].health
    return found


def _mount(device: str) -> None:
    _run("mkfs.ext4", "-qF", device)
    _MOUNTED.mkdir(exist_ok=True)
    _run("mount", device, str(_MOUNTED))


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
