# SPDX-License-Identifier: Apache-2.0
"""USB devices that are plugged in and pulled through QEMU's monitor, and what the kernel shows of them.

The stick is taken as QEMU would take it for a machine of its own: as user 107, through its node, away from
usb-storage. Its disk is a file of the job's folder, so that it can have a file system.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from nodeagent.sim.kubelet.state import Pod
from tests.vm.guest import pci
from tests.vm.guest.node import ABSENT, HEALTHY, UNHEALTHY, Node, until

STICK, KEYBOARD = "46f4:0001-STICK1", "0627:0001"
RESOURCE = "example.com/usb"
_BUS = Path("/sys/bus/usb/devices")
_QEMU = (107, 107)
# USBDEVFS_DISCONNECT_CLAIM of the first interface (include/uapi/linux/usbdevice_fs.h): what libusb does
_TAKE = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, 0x8108551B, struct.pack("II256s", 0, 0, b""))
print("taken", flush=True)
sys.stdin.read()
"""


async def a_stick_is_given_pulled_and_plugged_in_again(node: Node) -> None:
    """From events alone: its pod's guest has to re-attach it, and the next pod gets the number of then."""
    async with _wished(node):
        await _plug(node)
        path = _node()
        assert _owner(path) == (0, 0)
        pod = await node.kubelet.admit(Pod("ns", "vm", [{RESOURCE: 1}]))
        assert pod.phase == "Running", pod.message
        assert _owner(path) == _QEMU
        async with _taken(path):
            await until(lambda: _driver() == "usbfs", "taken from usb-storage")
            await node.ask_monitor("device_del stick")
            await until(lambda: _at() is None, "pulled")
            await node.until(STICK, UNHEALTHY)
            await node.until_reason(STICK, "fallen-off-the-bus", "ns/vm")
        await _add(node)
        await until(lambda: _at() is not None, "plugged in again")
        await node.until_reason(STICK, "re-enumerated", "the guest must re-attach it")
        assert _node() != path
        assert _owner(_node()) == (0, 0)
        node.kubelet.delete(pod)
        await node.until(STICK, HEALTHY)
        again = await node.kubelet.admit(Pod("ns", "again", [{RESOURCE: 1}]))
        assert again.phase == "Running", again.message
        assert _owner(_node()) == _QEMU
        node.kubelet.delete(again)


async def a_stick_that_is_mounted_stays_with_the_host(node: Node) -> None:
    """A mount has no event, so it is asked for; and what the host gives up can be given at once."""
    async with _wished(node):
        await _plug(node)
        await until(lambda: bool(_disks()), "it is a disk")
        disk = f"/dev/{_disks()[0]}"
        await anyio.to_thread.run_sync(_run, "/busybox", "mke2fs", disk)
        await anyio.to_thread.run_sync(_run, "mount", "-t", "ext4", disk, "/mnt")
        try:
            await node.until_reason(STICK, "used-by-host", "/mnt")
            refused = await node.kubelet.admit(Pod("ns", "vm", [{RESOURCE: 1}]))
            assert refused.phase == "Failed"
        finally:
            await anyio.to_thread.run_sync(_run, "umount", "/mnt")
        await node.until(STICK, HEALTHY)
        pod = await node.kubelet.admit(Pod("ns", "vm", [{RESOURCE: 1}]))
        assert pod.phase == "Running", pod.message
        assert _owner(_node()) == _QEMU
        node.kubelet.delete(pod)
        await until(lambda: _owner(_node()) == (0, 0), "given back")
        await node.ask_monitor("device_del stick")
        await node.until(STICK, ABSENT)


async def the_keyboard_of_the_console_stays_with_the_host(node: Node) -> None:
    """The kernel says of an input device who reads it."""
    async with _wished(node):
        await node.ask_monitor("device_add usb-kbd,id=keys,bus=xhci.0,port=2")
        try:
            await until(lambda: "kbd" in Path("/proc/bus/input/devices").read_text(), "it can be typed on")
            await node.kubelet.until(lambda: any(map(_is_keyboard, _listed(node))))
            keyboard = next(filter(_is_keyboard, _listed(node)))
            await node.until_reason(keyboard, "used-by-host", "the keyboard of the console")
        finally:
            await node.ask_monitor("device_del keys")
        await node.until(keyboard, ABSENT)


@asynccontextmanager
async def _wished(node: Node) -> AsyncIterator[None]:
    await anyio.to_thread.run_sync(pci.modprobe, "-a", "xhci-pci", "usb-storage", "sd_mod", "ext4", "usbhid")
    await until(lambda: any(_BUS.glob("usb*")), "a bus")
    registered = len(node.kubelet.statistics.registrations)
    await node.wish(None, usb=(("46f4", "0001"), ("0627", "0001")))
    await until(lambda: len(node.kubelet.statistics.registrations) > registered, "registered")
    try:
        yield
    finally:
        await node.ask_monitor("device_del stick")  # says only that it is not there, if it is not
        await until(lambda: _at() is None, "pulled at last")


async def _plug(node: Node) -> None:
    await _add(node)
    await until(lambda: _at() is not None and _driver() is not None, "plugged in")
    await node.until(STICK, HEALTHY)


async def _add(node: Node) -> None:
    await node.ask_monitor("device_add usb-storage,id=stick,bus=xhci.0,port=1,drive=stick,serial=STICK1")


@asynccontextmanager
async def _taken(path: str) -> AsyncIterator[None]:
    """A process of QEMU's user has the device as its own."""
    user = ("setpriv", "--reuid=107", "--regid=107", "--clear-groups", "--inh-caps=-all")
    command = [*user, sys.executable, "-c", _TAKE, path]
    async with await anyio.open_process(command) as process:
        assert process.stdout is not None
        said = await process.stdout.receive()
        assert said == b"taken\n", said
        try:
            yield
        finally:
            process.kill()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _at() -> Path | None:
    """The directory of the stick in sysfs."""
    serials = (path.parent for path in _BUS.glob("*/serial"))
    return next((each for each in serials if _text(each / "serial") == "STICK1"), None)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _node() -> str:
    at = _at()
    assert at is not None
    return f"/dev/bus/usb/{int(_text(at / 'busnum')):03}/{int(_text(at / 'devnum')):03}"


def _driver() -> str | None:
    at = _at()
    links = [] if at is None else [path / "driver" for path in at.glob(f"{at.name}:*")]
    return next((link.readlink().name for link in links if link.is_symlink()), None)


def _disks() -> list[str]:
    at = _at()
    return [] if at is None else [path.name for path in at.resolve().glob("*/host*/target*/*/block/*")]


def _owner(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_uid, status.st_gid


def _listed(node: Node) -> list[str]:
    lists = node.kubelet.statistics.lists.get(RESOURCE)
    return list(lists[-1].health) if lists else []


def _is_keyboard(device_id: str) -> bool:
    return device_id.startswith(KEYBOARD)
