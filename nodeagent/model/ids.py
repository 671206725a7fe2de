# SPDX-License-Identifier: Apache-2.0
"""Identifiers: PCI addresses, group numbers, resource names, device ids.

A PCI address is ``dddd:bb:dd.f`` in lower-case hexadecimal; domains above ffff have five or more digits
(Intel VMD). Group numbers identify a group only until the next boot.
"""

from __future__ import annotations

import re
from typing import NewType

PciAddress = NewType("PciAddress", str)
GroupNumber = NewType("GroupNumber", int)
ResourceName = NewType("ResourceName", str)
DeviceId = NewType("DeviceId", str)

UUID_LENGTH = 36  # as an mdev is named
VFIO_PCI = "vfio-pci"  # the driver that takes any function

_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([01][0-9a-f])\.([0-7])")
_USB = re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}[-@][A-Za-z0-9:._-]+")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def pci_address(text: str) -> PciAddress | None:
    """Return the text as a PCI address, or None; a missing domain means 0000."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return PciAddress(f"{domain or '0000'}:{bus}:{device}.{function}")


def mdev_uuid(text: str) -> str | None:
    """Return the text as a lower-case UUID, or None."""
    lowered = text.strip().lower()
    return lowered if _UUID.fullmatch(lowered) else None


def usb_id(text: str) -> str | None:
    """Return the text if it is the id of a USB device, with a serial number or a port; else None."""
    return text if _USB.fullmatch(text) else None


def vfio_driver(name: str | None) -> bool:
    """Return True for a VFIO driver for PCI functions: vfio-pci or a variant such as mlx5_vfio_pci.

    Up to Linux 6.12, all drivers in drivers/vfio/pci have names of this form (KBUILD_MODNAME).
    """
    return name is not None and (name == VFIO_PCI or name.endswith("_vfio_pci"))


def vgpu_key(number: str) -> str:
    """Return the key of the NVIDIA vGPU type with this number in the table of names."""
    return f"vgpu:{number}"


def vf_numbers(text: str) -> tuple[range, ...] | None:
    """Return the numbers in a text such as "0,2-7"; None for any other text."""
    matches = [_RANGE.fullmatch(part) for part in text.split(",")]
    found = [range(int(match[1]), int(match[2] or match[1]) + 1) for match in matches if match is not None]
    return tuple(found) if len(found) == len(matches) and all(found) else None


def pci_order(address: str) -> tuple[int, str]:
    """Return a sort key that puts longer domains after shorter ones, and then sorts by address."""
    return len(address), address
