# SPDX-License-Identifier: Apache-2.0
"""Automatic discovery: what it takes of each kind, and the words from which it makes a name. Pure.

Discovery takes every mdev, every VF to which a vGPU type was given, and what the operator has bound to a
VFIO driver already; audio, USB and bridges of a card ride along in its group.
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
    """How to name a device: by which rule, the id of what it is, and the text for that.

    ``domain`` is "" where the vendor gives it.
    """

    kind: Kind
    device_id: str
    text: str | None
    domain: str = ""


def mdev_refusal(mdev: Mdev, _: Group | None, __: Spec) -> str | None:
    """Why discovery leaves an mdev alone, in words; None if it takes it."""
    return None if mdev.type_id is not None else "its type cannot be read"


def function_refusal(function: PciFunction, group: Group | None, spec: Spec) -> str | None:
    """Why discovery leaves a PCI function alone, in words; None if it takes it."""
    if groups.vgpu_of(function) is not None:
        return None if function.vendor is not None else "its vendor id cannot be read"
    refused = class_refusal(function, spec.discovery) or unready(function, group)
    if refused is None and (function.vendor is None or function.device is None):
        return "its vendor or device id cannot be read"
    return refused


def is_nvswitch(function: PciFunction) -> bool:
    """True for a bridge of GPUs."""
    return selectors.in_classes((_OTHER_BRIDGE,), function) and function.vendor == NVIDIA


def class_refusal(function: PciFunction, discovery: Discovery) -> str | None:
    """Why discovery is not for the function's class, in words; None if it is."""
    if not selectors.in_classes(discovery.classes, function):
        return f"its class {function.pci_class or '?'} ({classes.words(function)}) is not discovered"
    if selectors.in_classes((_OTHER_BRIDGE,), function) and not is_nvswitch(function):
        return (
            f"it is a bridge (class {_OTHER_BRIDGE}), of which discovery takes the NVSwitches of NVIDIA alone"
        )
    return None


def unready(function: PciFunction, group: Group | None) -> str | None:
    """Why the driver of a function gives it to no virtual machine, in words; None if it does."""
    if groups.vgpu_of(function) is not None:
        return None
    if groups.takes_vgpu(function):
        return "it is a VF without a vGPU type"
    if groups.unfinished(function):
        return "it is a VF on NVIDIA's driver, and no vGPU by itself"
    if not groups.vfio_bound(function) and not groups.going_away(function, group):
        return describe_driver(function)
    return None


def describe_driver(function: PciFunction) -> str:
    """That a function is on no VFIO driver, in words."""
    if function.driver is None:
        return "it has no driver, and needs a VFIO driver"
    return f"its driver is {function.driver}, not a VFIO driver"


def mdev_label(mdev: Mdev, names: Names) -> Label:
    """An mdev is named after its type."""
    domain = "" if mdev.vendor is not None else SOFTWARE_DOMAIN
    return Label(Kind.MDEV, mdev.type_id or "", mdev_text(mdev, names), domain)


def function_label(function: PciFunction, names: Names) -> Label:
    """A vGPU is named as an mdev of its type would be, so that the types of one card are told apart."""
    vgpu = groups.vgpu_of(function)
    if vgpu is not None:
        return Label(Kind.MDEV, naming.vgpu_type_id(vgpu), names.get(vgpu_key(vgpu)))
    return Label(Kind.PCI, function.device or "", function_text(function, names))


def mdev_text(mdev: Mdev, _: Names) -> str | None:
    """What an mdev is called: the name of its type, or else its id."""
    return mdev.type_name or mdev.type_id


def function_text(function: PciFunction, names: Names) -> str | None:
    """What pci.ids calls a function."""
    return names.get(f"{function.vendor}:{function.device}")
