# SPDX-License-Identifier: Apache-2.0
"""What this host itself uses of a USB device: its disks, its network interfaces, the keyboard of the console.

QEMU takes a device from its drivers without asking: what is mounted is lost then, and nobody can type. So the
evidence is that of ``uses``, for what is below one device on its real path. May block.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.kernel.root import Root
from nodeagent.kernel.scan import disks, netdevs
from nodeagent.kernel.scan.uses import console_devices, console_use
from nodeagent.model.usb import UsbDevice
from nodeagent.model.uses import HostUse, HostUses, UseKind

_INPUT = "/proc/bus/input/devices"
_CONSOLE = "kbd"  # the handler that feeds the virtual terminals (drivers/tty/vt/keyboard.c)


def uses(root: Root, device: UsbDevice) -> HostUses:
    """The uses of one device, and what of them cannot be seen from here."""
    blocks, interfaces = (tuple(_below(root, device, place)) for place in (disks.BLOCKS, netdevs.INTERFACES))
    parts = [
        disks.uses(root, blocks, disks.storage(root)) if blocks else HostUses(),
        netdevs.uses(root, interfaces, netdevs.networks(root)) if interfaces else HostUses(),
        _typed(root, device) if device.keyboard else HostUses(),
        _terminals(root, device),
    ]
    return HostUses(
        tuple(use for part in parts for use in part.found),
        tuple(each for part in parts for each in part.unseen),
    )


def opened(root: Root, device: UsbDevice) -> HostUses:
    """Which of its disks, or of what is on them, a process has open. Asked of all processes."""
    blocks = tuple(_below(root, device, disks.BLOCKS))
    return disks.opened(root, blocks, disks.storage(root)) if blocks else HostUses()


def _below(root: Root, device: UsbDevice, directory: str) -> Iterator[str]:
    for name in root.names(directory):
        if device.name in (root.target(f"{directory}/{name}") or "").split("/"):
            yield name


def _terminals(root: Root, device: UsbDevice) -> HostUses:
    shown = ((name, target.split("/")) for name, target in console_devices(root).items())
    return HostUses(tuple(console_use(name) for name, parts in shown if device.name in parts))


def _typed(root: Root, device: UsbDevice) -> HostUses:
    """Whether what is typed goes to the console."""
    text = root.text(_INPUT)
    if text is None:
        return HostUses((), (f"whether the console reads its keys: {_INPUT} cannot be read",))
    for block in text.split("\n\n"):
        told = {line[:2]: line.partition("=")[2] for line in block.splitlines()}
        parts = told.get("S:", "").split("/")
        if device.name in parts and _CONSOLE in told.get("H:", "").split():
            return HostUses((HostUse(UseKind.KEYBOARD, parts[-1], "the keyboard of the console"),))
    return HostUses()
