# SPDX-License-Identifier: Apache-2.0
"""The identities of things: PCI addresses, group numbers, resource names, device ids.

A PCI address is written ``dddd:bb:dd.f`` in lower-case hexadecimal; domains above ffff have five or more
digits (Intel VMD). Group numbers are no identity: they may change with every boot.
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
    """The address in the text, or None; the domain may be left out (then 0000)."""
    match = _PCI.fullmatch(text.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return PciAddress(f"{domain or '0000'}:{bus}:{device}.{function}")


def mdev_uuid(text: str) -> str | None:
    """The lower-case UUID that ``text`` is, or None."""
    lowered = text.strip().lower()
    return lowered if _UUID.fullmatch(lowered) else None


def usb_id(text: str) -> str | None:
    """The text, if it is the id of a USB device: of one with a serial number, or by its port."""
    return text if _USB.fullmatch(text) else None


def vfio_driver(name: str | None) -> bool:
    """True for the name of a VFIO driver for PCI functions: vfio-pci, and its variants such as mlx5_vfio_pci.

    Those of drivers/vfio/pci are all named so (KBUILD_MODNAME), up to Linux 6.12.
    """
    return name is not None and (name == VFIO_PCI or name.endswith("_vfio_pci"))


def vgpu_key(number: str) -> str:
    """Where the name of NVIDIA's vGPU type of that number stands in a table of names."""
    return f"vgpu:{number}"


def vf_numbers(text: str) -> tuple[range, ...] | None:
    """The numbers in a text such as "0,2-7"; None if it is none."""
    matches = [_RANGE.fullmatch(part) for part in text.split(",")]
    found = [range(int(match[1]), int(match[2] or match[1]) + 1) for match in matches if match is not None]
    return tuple(found) if len(found) == len(matches) and all(found) else None


def pci_order(address: str) -> tuple[int, str]:
    """Sort key that puts longer domains behind shorter ones, and then goes by address."""
    return len(address), address
