# SPDX-License-Identifier: Apache-2.0
"""The shapes of rules: how a resource is written, and how devices are picked for it.

A list of selectors is OR, the keys of one selector are AND, the values of a key are OR. A selector
without any value would take every function of the host; nobody means that, so it is refused. Each shape
says which record of ``model.spec`` is made of it; ``_KINDS`` has one maker for each kind of rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nodeagent.config import direct, scalars
from nodeagent.config.problems import Wrong
from nodeagent.config.shapes import Key, ListOf, Record, snake
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.spec import (
    CdiRule,
    MdevRule,
    MdevSelector,
    NodeRule,
    PciRule,
    PciSelector,
    UsbRule,
    UsbSelector,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from nodeagent.model.spec import Rule


def _picks_something(values: Mapping[str, object]) -> None:
    if not any(values.values()):
        raise Wrong(
            "an empty selector would take every function",
            'name at least one key; addresses: ["*"] means every function',
        )


def _picks_mdevs(values: Mapping[str, object]) -> None:
    if not any(values.values()):
        raise Wrong("an empty selector would take every mdev", "name types or names")


def _picks_usb(values: Mapping[str, object]) -> None:
    if not any(values.values()):
        raise Wrong(
            "an empty selector would take every USB device",
            'name at least one key; ports: ["*"] means every device',
        )


_GROUPS = scalars.integer(0, 2**31 - 1)

PCI = ListOf(
    Record(
        "PCI selector",
        (
            Key("vendors", ListOf(scalars.VENDOR), "vendor ids, 4 hexadecimal digits"),
            Key("devices", ListOf(scalars.DEVICE), "device ids, 4 hexadecimal digits"),
            Key("subsystems", ListOf(scalars.SUBSYSTEM), '"10de:12a2", or "10de" for the vendor'),
            Key("classes", ListOf(scalars.CLASS), "class codes, 2, 4 or 6 digits"),
            Key("drivers", ListOf(scalars.DRIVER), "drivers that the function is bound to"),
            Key("addresses", ListOf(scalars.ADDRESS), "addresses; * and ? match"),
            Key("numaNodes", ListOf(scalars.integer(0, 1023)), "NUMA nodes"),
            Key("iommuGroups", ListOf(_GROUPS), "IOMMU groups; they may change with a boot"),
            Key("vgpuTypes", ListOf(scalars.TEXT), "vGPU types of a vendor driver"),
        ),
        PciSelector,
        _picks_something,
    )
)

_MDEV = ListOf(
    Record(
        "mdev selector",
        (
            Key("types", ListOf(scalars.TEXT), "type ids, such as nvidia-222"),
            Key("names", ListOf(scalars.TEXT), "type names, such as GRID T4-1Q"),
        ),
        MdevSelector,
        _picks_mdevs,
    )
)

_USB = ListOf(
    Record(
        "USB selector",
        (
            Key("vendors", ListOf(scalars.VENDOR), "vendor ids, 4 hexadecimal digits"),
            Key("products", ListOf(scalars.DEVICE), "product ids, 4 hexadecimal digits"),
            Key("serials", ListOf(scalars.TEXT), "serial numbers"),
            Key("classes", ListOf(scalars.CLASS), "classes of the device or its interfaces, 2 to 6 digits"),
            Key("ports", ListOf(scalars.TEXT), "ports, such as 1-1.2; * and ? match"),
        ),
        UsbSelector,
        _picks_usb,
    )
)

_KINDS: Mapping[str, Callable[..., Rule]] = {
    "pci": lambda pci, **rest: PciRule(selectors=pci, **rest),
    "mdev": lambda mdev, **rest: MdevRule(selectors=mdev, **rest),
    "usb": lambda usb, **rest: UsbRule(selectors=usb, **rest),
    "node": lambda node, **rest: NodeRule(**node, **rest),
    "cdi_devices": lambda cdi_devices, **rest: CdiRule(**cdi_devices, **rest),
}


def _rule(**given: Any) -> Rule:
    """The rule of the kind whose key is given; without any it is for PCI functions, and takes none."""
    kind = next((kind for kind in _KINDS if kind in given), None)
    return PciRule(**given) if kind is None else _KINDS[kind](**given)


def _one_kind(values: Mapping[str, object]) -> None:
    written = {snake(key): key for key in values}
    kinds = [written[kind] for kind in _KINDS if kind in written]
    if len(kinds) > 1:
        raise Wrong(f"{' and '.join(kinds)} in one resource", "write two resources with two names")
    options = [option for option in ("isolation", "iommufd", "cdi") if option in values]
    others = {"node": "a device node", "usb": "USB devices", "cdiDevices": "what CDI files define"}
    named = others.get("".join(kinds))
    if named and options:
        raise Wrong(f"{options[0]} means nothing for {named}", f"remove {options[0]}")
    if stray := [option for option in ("bundle", "force") if option in values and kinds != ["usb"]]:
        raise Wrong(f"{stray[0]} is for USB devices", f"remove {stray[0]}, or pick devices with usb")


RESOURCE = Record(
    "resource",
    (
        Key("name", scalars.RESOURCE, "the resource, such as example.com/gpu", required=True),
        Key("pci", PCI, "picks PCI functions"),
        Key("mdev", _MDEV, "picks mediated devices"),
        Key("usb", _USB, "picks USB devices"),
        Key("node", direct.NODE, "shares of device nodes"),
        Key("cdiDevices", direct.CDI, "what CDI files on the host define"),
        Key(
            "isolation",
            scalars.member(Isolation),
            "group: the rest of an IOMMU group waits; bundle: one device per group; none: neither",
        ),
        Key(
            "iommufd",
            scalars.member(Iommufd),
            "hand out /dev/iommu and the VFIO device nodes",
        ),
        Key("cdi", scalars.FLAG, "answer with CDI device names"),
        Key("bundle", scalars.FLAG, "one device for each set of USB devices that has one for every selector"),
        Key("force", ListOf(scalars.TEXT), "ids or ports of USB devices that the host may lose"),
    ),
    _rule,
    _one_kind,
    placed=True,
)
