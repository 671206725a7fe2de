# SPDX-License-Identifier: Apache-2.0
"""Reads one USB device, and assigns ids that survive replugging and renumbering.

The kernel shows cached USB descriptors, so a scan wakes no device; but a read of the serial number waits
while the device is reset. This module makes no decisions: a partly readable device is kept. Devices are
listed only while a rule matches USB devices. Events name a device as ``usb:1-1.2``, or by its id.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping

from nodeagent.kernel.root import Directory, Root, is_gone
from nodeagent.kernel.scan.pci import natural
from nodeagent.kernel.scan.readers import NOT_READABLE, Reader
from nodeagent.model.host import Host, UsbDevice, UsbInterface
from nodeagent.model.ids import pci_address, usb_id

DEVICES = "/sys/bus/usb/devices"
_KEY = "usb:"
_PCI = "/sys/bus/pci/devices"
_NAME = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*")
_BUS = re.compile(r"usb[0-9]+")
_ID = re.compile(r"[0-9a-f]{4}")
_UNFIT = re.compile(r"[^A-Za-z0-9:._-]")
_LONGEST = 40  # characters of a serial number in an id
_IDENTITY = ("idVendor", "idProduct", "serial", "bDeviceClass", "busnum", "devnum", "manufacturer", "product")
_UNKNOWN = "its vendor and product cannot be read: being removed?"


def scan_key(name: str) -> str:
    """Return the scan key for the device with that name in sysfs."""
    return _KEY + name


def list_names(root: Root) -> list[str]:
    """Return the names of all devices except root hubs; the directory also lists USB interfaces."""
    return [name for name in root.names(DEVICES) if _NAME.fullmatch(name)]


def device(root: Root, name: str) -> UsbDevice | None:
    """Return the current state of the device with a preliminary id (see ``assign_ids``); None if it is
    absent.
    """
    try:
        with root.directory(f"{DEVICES}/{name}") as directory:
            found = _device(root, name, directory)
    except OSError as error:
        return None if is_gone(error) else UsbDevice(name, name, unreadable=f"not readable: {error.strerror}")
    if found.vendor is None or found.product is None or found.bus is None or found.number is None:
        return found._replace(unreadable=_UNKNOWN) if root.exists(f"{DEVICES}/{name}") else None
    found = found._replace(present=root.exists(found.node))
    if found.driver is None or found.hub:
        return found
    from nodeagent.kernel.scan import host_use  # imported here because few nodes have rules for USB devices

    return found._replace(uses=host_use.find_usb_uses(root, found))


def _device(root: Root, name: str, at: Directory) -> UsbDevice:
    vendor, product, serial, code, bus, number, *texts = at.texts(_IDENTITY)
    controller, path = _path(root, name, bus)
    return UsbDevice(
        id=name,
        name=name,
        path=path,
        bus=natural(bus),
        number=natural(number),
        vendor=_hexadecimal(vendor),
        product=_hexadecimal(product),
        serial=serial or None,
        text=" ".join(filter(None, texts)) or None,
        device_class=code,
        interfaces=tuple(_interface(at, each) for each in sorted(at.names()) if each.startswith(f"{name}:")),
        numa_node=natural(root.text(f"{_PCI}/{controller}/numa_node")) if controller else None,
    )


def _interface(at: Directory, name: str) -> UsbInterface:
    keys = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
    code = "".join(text or "??" for text in at.texts([f"{name}/{key}" for key in keys]))
    return UsbInterface(code, at.link(f"{name}/driver"))


def _path(root: Root, name: str, bus: str | None) -> tuple[str | None, str]:
    """Return the PCI controller above the device, and its position: a controller has a root hub for each
    speed.
    """
    parts = (root.target(f"{DEVICES}/{name}") or "").split("/")
    at = next((place for place, part in enumerate(parts) if place and _BUS.fullmatch(part)), None)
    if at is None:
        return None, name
    controller, ports = parts[at - 1], name.partition("-")[2]
    hubs = [each for each in root.names(f"{DEVICES}/usb{bus}/..") if _BUS.fullmatch(each)]
    ranks = {each: rank for rank, each in enumerate(sorted(hubs, key=lambda each: int(each[3:])))}
    return pci_address(controller), f"{controller}-usb-{ranks.get(f'usb{bus}', '?')}:{ports}"


def _hexadecimal(text: str | None) -> str | None:
    return text.lower() if text is not None and _ID.fullmatch(text.lower()) else None


def id_by_serial(found: UsbDevice) -> str | None:
    """Return the id made of the serial number; None if the device has no serial number.

    Characters that are not allowed in an id are replaced, and a hash is added.
    """
    if found.serial is None or found.vendor is None:
        return None
    fit = _UNFIT.sub("_", found.serial)[:_LONGEST]
    if fit != found.serial:
        fit = f"{fit[: _LONGEST - 9]}-{hashlib.sha256(found.serial.encode()).hexdigest()[:8]}"
    return f"{found.vendor}:{found.product}-{fit}"


def id_by_port(found: UsbDevice) -> str:
    """Return the id made of the port of the device."""
    return f"{found.vendor}:{found.product}@{found.path}"


def assign_ids(
    read: Mapping[str, UsbDevice | None], known: Mapping[str, UsbDevice], whole: bool
) -> dict[str, UsbDevice | None]:
    """Return the devices by id instead of by name, with None for an id that no longer exists. Does no I/O.

    A device that stays in its port keeps its id. If another device already has the same serial number, the
    id is made of the port; if two devices with one serial number appear together, the ids of both are made of
    their ports.
    """
    before = {each.name: each for each in known.values()}
    now = {name: each for name, each in before.items() if not whole and name not in read}
    now |= {name: each for name, each in read.items() if each is not None}
    serials = Counter(id_by_serial(each) for each in now.values())
    result: dict[str, UsbDevice | None] = dict.fromkeys(
        each.id for name, each in before.items() if whole or name in read
    )
    kept = {name: before[name].id for name, each in now.items() if _is_same_device(before.get(name), each)}
    for name, each in now.items():
        own = id_by_serial(each)
        fresh = own if own is not None and serials[own] == 1 else id_by_port(each)
        device_id = kept.get(name, each.id if each.vendor is None else fresh)
        if name in read:
            result[device_id] = each._replace(id=device_id)
    return result


def _is_same_device(before: UsbDevice | None, now: UsbDevice) -> bool:
    """Return True if ``now`` is, as far as is known, the same USB device as ``before``."""
    if before is None:
        return False
    same = (before.vendor, before.product, before.serial) == (now.vendor, now.product, now.serial)
    return same or now.unreadable is not None


def _named(key: str, previous: Host) -> tuple[str, ...] | None:
    if key.startswith(_KEY):
        return (key.removeprefix(_KEY),)
    known = previous.usb.get(key)
    if known is not None:
        return (known.name,)
    return () if usb_id(key) else None


def _unanswered(name: str, previous: Host) -> UsbDevice:
    known = next((each for each in previous.usb.values() if each.name == name), None)
    return (known or UsbDevice(name, name))._replace(unreadable=NOT_READABLE)


def _reads_as_known(root: Root, known: UsbDevice) -> bool:
    now = device(root, known.name)
    return now is not None and now._replace(id=known.id) == known


READER = Reader("usb", list_names, device, _unanswered, _named, recheck=_reads_as_known)
