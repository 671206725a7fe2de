# SPDX-License-Identifier: Apache-2.0
"""Automatic discovery: which devices get a resource without a rule, and the texts for the resource names.
Pure.

Discovery matches every mdev, every VF with a vGPU type, and the functions of the configured classes that are
bound to a VFIO driver. Audio, USB and bridge functions of a card are in the card's IOMMU group, and get no
resource of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.host import Group, Kind, Mdev, PciFunction
from nodeagent.model.ids import vgpu_key
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import Discovery, Spec
from nodeagent.policy import classes, groups, naming, selectors

NVIDIA = "10de"
_OTHER_BRIDGE = "0680"  # an NVSwitch is of this class, and so are many parts of chipsets
SOFTWARE_DOMAIN = "mdev.nodeagent"  # for mdevs whose parent is no PCI function, and so has no vendor


class Label(NamedTuple):
    """The data for a resource name: the kind of the device, its device or type id, and the name of that id.

    ``domain``: the domain of the resource name; "" if the vendor determines it.
    """

    kind: Kind
    device_id: str
    text: str | None
    domain: str = ""


def mdev_refusal(mdev: Mdev, _: Group | None, __: Spec) -> str | None:
    """Why discovery does not match an mdev, as a text; None if it does."""
    return None if mdev.type_id is not None else "its type cannot be read"


def function_refusal(function: PciFunction, group: Group | None, spec: Spec) -> str | None:
    """Why discovery does not match a PCI function, as a text; None if it does."""
    if groups.find_vgpu_type(function) is not None:
        return None if function.vendor is not None else "its vendor id cannot be read"
    refused = class_refusal(function, spec.discovery) or explain_unassignable(function, group)
    if refused is None and (function.vendor is None or function.device is None):
        return "its vendor or device id cannot be read"
    return refused


def is_nvswitch(function: PciFunction) -> bool:
    """True for an NVSwitch of NVIDIA, a bridge between GPUs."""
    return selectors.is_in_classes((_OTHER_BRIDGE,), function) and function.vendor == NVIDIA


def class_refusal(function: PciFunction, discovery: Discovery) -> str | None:
    """Why discovery skips the class of the function, as a text; None if it does not."""
    if not selectors.is_in_classes(discovery.classes, function):
        return f"its class {function.pci_class or '?'} ({classes.describe_class(function)}) is not discovered"
    if selectors.is_in_classes((_OTHER_BRIDGE,), function) and not is_nvswitch(function):
        return f"it is a bridge (class {_OTHER_BRIDGE}); of these, discovery matches only NVIDIA's NVSwitches"
    return None


def explain_unassignable(function: PciFunction, group: Group | None) -> str | None:
    """Why a function cannot be assigned to a VM with its present driver, as a text; None if it can."""
    if groups.find_vgpu_type(function) is not None:
        return None
    if groups.is_vgpu_capable(function):
        return "it is a VF without a vGPU type"
    if groups.is_unfinished(function):
        return "it is a VF on NVIDIA's driver that has no vGPU"
    if not groups.is_vfio_bound(function) and not groups.is_going_away(function, group):
        return describe_driver(function)
    return None


def describe_driver(function: PciFunction) -> str:
    """The message that the PCI function is not bound to a VFIO driver."""
    if function.driver is None:
        return "it has no driver; it must be bound to a VFIO driver"
    return f"its driver is {function.driver}, not a VFIO driver"


def mdev_label(mdev: Mdev, names: Names) -> Label:
    """The data for the resource name of an mdev: its type."""
    domain = "" if mdev.vendor is not None else SOFTWARE_DOMAIN
    return Label(Kind.MDEV, mdev.type_id or "", mdev_text(mdev, names), domain)


def function_label(function: PciFunction, names: Names) -> Label:
    """The data for the resource name of a PCI function; a vGPU is named like an mdev of its type."""
    vgpu = groups.find_vgpu_type(function)
    if vgpu is not None:
        return Label(Kind.MDEV, naming.vgpu_type_id(vgpu), names.get(vgpu_key(vgpu)))
    return Label(Kind.PCI, function.device or "", function_text(function, names))


def mdev_text(mdev: Mdev, _: Names) -> str | None:
    """The name of the mdev's type, or else the id of the type."""
    return mdev.type_name or mdev.type_id


def function_text(function: PciFunction, names: Names) -> str | None:
    """The name of the PCI function in pci.ids."""
    return names.get(f"{function.vendor}:{function.device}")
