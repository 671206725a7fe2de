# SPDX-License-Identifier: Apache-2.0
"""Finds the uses of functions by the host itself: evidence before a function gets another driver.

One pass lists the interfaces and disks of the whole node; the sysfs path of each contains the PCI function to
which it belongs, also through virtio, USB and SCSI. Then a few attributes of each are read. This pass is not
part of reading one function, because it takes as long for one function as for all. May block: call it in a
thread with a timeout.

The kernel console uses the first framebuffer and the serial ports that the command line names. If only the
console uses a framebuffer, no process has the framebuffer open; the same is true for a serial port without a
login. The sysfs path of a framebuffer or a serial port contains the PCI function.

A host driver releases its function only when the character devices below the function are closed (a display,
a sound card, a keyboard, a GPU), or it removes them from the processes that have them open. Each character
device is a directory below the function with a file ``dev``; NVIDIA's driver creates device nodes without
such directories, and lists their numbers in /proc. The processes that have them open are searched on demand
only.

The same evidence is used for USB devices, from the entries below one device: QEMU detaches a device from
its drivers immediately, so that a mounted file system is lost and a keyboard no longer works.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping

from nodeagent.kernel import open_files
from nodeagent.kernel.root import Root, raise_if_out_of_resources
from nodeagent.kernel.scan import disks, netdevs, nvidia
from nodeagent.kernel.scan.pci import DEVICES
from nodeagent.model.host import FIRM, HostUse, HostUses, UsbDevice, UseKind
from nodeagent.model.ids import PciAddress, pci_address

_FRAMEBUFFERS = "/sys/class/graphics"
_TERMINALS = "/sys/class/tty"
_FIRST = "fb0"  # fbcon takes the first one for all consoles (drivers/video/fbdev/core/fbcon.c)
_INPUT = "/proc/bus/input/devices"
_CONSOLE = "kbd"  # the handler that feeds the virtual terminals (drivers/tty/vt/keyboard.c)
_DEPTH = 12  # directories below a function: USB allows five hubs in a row, and an input device has six more
_BOOT_VGA = HostUse(UseKind.DISPLAY, "boot display", "the firmware and the console use this display")


def find_uses(
    root: Root, addresses: Iterable[PciAddress], *, closely: bool = False
) -> dict[PciAddress, HostUses]:
    """Return the uses of each function; ``closely``: also the processes that have its devices open."""
    interfaces, blocks = _targets(root, netdevs.INTERFACES), _targets(root, disks.BLOCKS)
    nets, disks_of = _by_function(interfaces), _by_function(blocks)
    networks, storage = netdevs.read_networks(root), disks.read_storage(root)
    consoles = _by_function(_console_devices(root))

    def uses_of(address: PciAddress) -> HostUses:
        names = disks.add_multipath_heads(disks_of.get(address, ()), blocks)
        seen = _join(
            HostUses((_BOOT_VGA,) if root.text(f"{DEVICES}/{address}/boot_vga") == "1" else ()),
            netdevs.find_uses(root, nets[address], networks)
            if address in nets
            else _find_hidden_interface(root, address),
            HostUses(tuple(map(_console_use, consoles.get(address, ())))),
            disks.find_uses(root, names, storage),
        )
        if not closely or any(use.kind in FIRM for use in seen.found):
            return seen
        return _join(seen, disks.find_open(root, names, storage), open_character_devices(root, address))

    return {address: uses_of(address) for address in addresses}


def _targets(root: Root, directory: str) -> dict[str, str]:
    both = ((name, root.target(f"{directory}/{name}")) for name in root.names(directory))
    return {name: target for name, target in both if target is not None}


def _by_function(targets: Mapping[str, str]) -> dict[PciAddress, list[str]]:
    """Return the devices below each PCI address; a device without an address in its path is virtual.

    The PCI addresses above a function in the path are bridges, which are never bound to VFIO. Disks in the
    PCI domain of an Intel VMD are also below its controller, and belong to that controller too.
    """
    result: dict[PciAddress, list[str]] = {}
    for name, target in targets.items():
        for part in target.split("/"):
            if pci_address(part) == part:
                result.setdefault(PciAddress(part), []).append(name)
    return result


def _find_hidden_interface(root: Root, address: PciAddress) -> HostUses:
    if not netdevs.has_hidden_interface(root, f"{DEVICES}/{address}"):
        return HostUses()
    return HostUses((), ("its network interface, which is in another network namespace",))


def _join(*parts: HostUses) -> HostUses:
    found = tuple(use for part in parts for use in part.found)
    return HostUses(found, tuple(each for part in parts for each in part.unseen))


def _console_devices(root: Root) -> dict[str, str]:
    """Return the devices that the console uses, with their paths."""
    both = ((path.rpartition("/")[2], root.target(path)) for path in _console_paths(root))
    return {name: target for name, target in both if target is not None}


def _console_use(name: str) -> HostUse:
    """Return the use of a device by the console."""
    how = "the console shows there" if name == _FIRST else "the console of the kernel"
    return HostUse(UseKind.DISPLAY, name, how)


def _console_paths(root: Root) -> Iterator[str]:
    if root.exists(f"{_FRAMEBUFFERS}/fbcon"):
        yield f"{_FRAMEBUFFERS}/{_FIRST}"
    for name in (root.text(f"{_TERMINALS}/console/active") or "").split():
        yield f"{_TERMINALS}/{name}"


def open_character_devices(root: Root, address: str) -> HostUses:
    """Return the open character devices of the function, and the processes that have them open."""
    nodes = dict(_character_devices(root, address))
    if not nodes:
        return HostUses()
    files = open_files.find_open(
        root, {name: open_files.character_device(each) for name, each in nodes.items()}
    )
    found = tuple(HostUse(UseKind.OPEN, name, f"open by {who}") for name, who in files.openers.items())
    return HostUses(
        found, () if found or files.decisive else (f"which processes have {', '.join(nodes)} open",)
    )


def _character_devices(root: Root, address: str) -> Iterator[tuple[str, str]]:
    """Yield name and number (``226:0``) of each character device of the function."""
    number = nvidia.read_minor(root, address)
    if number is not None and number.isdecimal():
        yield f"nvidia{number}", f"{nvidia.MAJOR}:{number}"
    top = root.path(f"{DEVICES}/{address}/")
    for directory, names, files in os.walk(top, onerror=raise_if_out_of_resources):
        deep = directory.count("/") - top.count("/") >= _DEPTH
        names[:] = [] if deep else [name for name in names if pci_address(name) != name and name != "block"]
        path = root.host_path(directory)
        if "dev" in files and root.link(f"{path}/subsystem") != "block":
            yield os.path.basename(directory), root.text(f"{path}/dev") or ""


def find_usb_uses(root: Root, device: UsbDevice) -> HostUses:
    """Return the uses of one USB device, and descriptions of the uses that this process cannot see."""
    blocks, interfaces = (tuple(_below(root, device, place)) for place in (disks.BLOCKS, netdevs.INTERFACES))
    return _join(
        disks.find_uses(root, blocks, disks.read_storage(root)) if blocks else HostUses(),
        netdevs.find_uses(root, interfaces, netdevs.read_networks(root)) if interfaces else HostUses(),
        _keyboard_use(root, device) if device.keyboard else HostUses(),
        _console_uses(root, device),
    )


def find_open_usb_disks(root: Root, device: UsbDevice) -> HostUses:
    """Return the disks of the USB device, or devices on them, that processes have open.

    Searches all processes.
    """
    blocks = tuple(_below(root, device, disks.BLOCKS))
    return disks.find_open(root, blocks, disks.read_storage(root)) if blocks else HostUses()


def _below(root: Root, device: UsbDevice, directory: str) -> Iterator[str]:
    return (name for name, target in _targets(root, directory).items() if device.name in target.split("/"))


def _console_uses(root: Root, device: UsbDevice) -> HostUses:
    targets = _console_devices(root).items()
    return HostUses(tuple(_console_use(name) for name, target in targets if device.name in target.split("/")))


def _keyboard_use(root: Root, device: UsbDevice) -> HostUses:
    """Return whether the keys of the device go to the console."""
    text = root.text(_INPUT)
    if text is None:
        return HostUses((), (f"whether the console reads this keyboard: {_INPUT} cannot be read",))
    for block in text.split("\n\n"):
        values = {line[:2]: line.partition("=")[2] for line in block.splitlines()}
        parts = values.get("S:", "").split("/")
        if device.name in parts and _CONSOLE in values.get("H:", "").split():
            return HostUses((HostUse(UseKind.KEYBOARD, parts[-1], "the keyboard of the console"),))
    return HostUses()
