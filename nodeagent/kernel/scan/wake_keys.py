# SPDX-License-Identifier: Apache-2.0
"""What the keys of a Wake name.

A key is a PCI address, an mdev UUID, a VFIO device name (``vfio3``), a device node (``/dev/vfio/13``) or an
IOMMU group's directory. Resolving looks at the previous Host only and reads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from nodeagent.model.host import Host
from nodeagent.model.ids import PciAddress, mdev_uuid, pci_address

_GROUP = re.compile(r"(?:/dev/vfio/(?:noiommu-)?|/sys/kernel/iommu_groups/)(\d+)")
_VFIO_DEVICE = re.compile(r"(?:/dev/vfio/devices/)?(vfio\d+)")


@dataclass(slots=True)
class Named:
    """What is to be read again, without doubles, in the order of the keys."""

    functions: dict[PciAddress, None] = field(default_factory=dict)
    groups: dict[str, None] = field(default_factory=dict)
    mdevs: dict[str, None] = field(default_factory=dict)


def resolve(keys: Iterable[str], previous: Host) -> Named | None:
    """The things that the keys name; None if one of them says nothing: then everything is to be read."""
    named = Named()
    return named if all(_resolve(key, named, previous) for key in sorted(keys)) else None


def _resolve(key: str, named: Named, previous: Host) -> bool:
    if (address := pci_address(key)) is not None:
        named.functions[address] = None
    elif (uuid := mdev_uuid(key)) is not None:
        named.mdevs[uuid] = None
    elif (group := _GROUP.fullmatch(key)) is not None:
        named.groups[group[1]] = None
    elif (device := _VFIO_DEVICE.fullmatch(key)) is not None:
        named.functions |= dict.fromkeys(_holders(device[1], previous))
    else:
        return key.startswith("/dev/")  # nodes are looked at each time
    return True


def _holders(vfio_device: str, previous: Host) -> list[PciAddress]:
    functions = previous.functions.values()
    return [function.address for function in functions if function.vfio_device == vfio_device]
