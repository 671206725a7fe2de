# SPDX-License-Identifier: Apache-2.0
"""Does a selector pick a PCI function or an mdev, and if not, which key says no. Pure.

AND between the keys of a selector, OR inside a key; an empty key says nothing. Comparison is in lower case,
but for the names of types (``naming.type_called``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final, TypeGuard

from nodeagent.model.desired import MdevRule, MdevSelector, NodeRule, PciRule, PciSelector, Rule
from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.model.ids import vgpu_key
from nodeagent.policy import groups, naming

_Check = tuple[str, tuple[object, ...], object, bool]
"""A key, what it wants, what there is, and whether that fits."""

NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
NO_SELECTORS = "has no selectors, so it takes nothing"
OTHER_KIND = "is for devices of another kind"


def picks(rule: Rule, host_device: HostDevice, names: Mapping[str, str] = NO_NAMES) -> bool:
    """True if one of the rule's selectors picks the part; a rule picks only what is of its kind.

    ``names`` holds the names of vGPU types, which a VF shows by number: ``"vgpu:1147"`` → name.
    """
    return refusal(rule, host_device, names) is None


def refusal(rule: Rule, host_device: HostDevice, names: Mapping[str, str] = NO_NAMES) -> str | None:
    """Why none of the rule's selectors picks the part, in words; each has its say. None if one does."""
    told = ""
    for selector in () if isinstance(rule, NodeRule) else rule.selectors:
        said = _mismatch(selector, host_device, names)
        if said is None:
            return None
        told = f"{told}; or {said}" if told else said
    return told or NO_SELECTORS


def of_kind(rule: Rule, host_device: HostDevice) -> TypeGuard[PciRule | MdevRule]:
    """True if the rule is for parts of this kind."""
    return isinstance(rule, MdevRule if isinstance(host_device, Mdev) else PciRule)


def _mismatch(
    selector: PciSelector | MdevSelector, host_device: HostDevice, names: Mapping[str, str]
) -> str | None:
    if isinstance(selector, MdevSelector):
        return mdev_mismatch(selector, host_device) if isinstance(host_device, Mdev) else OTHER_KIND
    return OTHER_KIND if isinstance(host_device, Mdev) else mismatch(selector, host_device, names)


def mdev_mismatch(selector: MdevSelector, mdev: Mdev) -> str | None:
    """The first key that refuses the mdev, in words; None if the selector picks it."""
    name, called = mdev.type_name or mdev.type_id, naming.type_names(mdev.type_id, mdev.type_name)
    return _first(
        (
            ("types", selector.types, mdev.type_id, mdev.type_id in selector.types),
            ("names", selector.names, name, _any_called(selector.names, called)),
        )
    )


def mismatch(selector: PciSelector, function: PciFunction, names: Mapping[str, str] = NO_NAMES) -> str | None:
    """The first key that refuses the function, in words; None if the selector picks it."""
    return _first(_pci_checks(selector, function, names))


def _first(checks: Iterable[_Check]) -> str | None:
    for key, wanted, actual, fits in checks:
        if wanted and not fits:
            shown = "none" if actual is None else actual
            return f"{key}: it has {shown}, the rule wants {' or '.join(map(str, wanted))}"
    return None


def _pci_checks(selector: PciSelector, function: PciFunction, names: Mapping[str, str]) -> Iterator[_Check]:
    """One after the other: most selectors that refuse do so by their first key."""
    yield "vendors", selector.vendors, function.vendor, function.vendor in selector.vendors
    yield "devices", selector.devices, function.device, function.device in selector.devices
    yield "subsystems", selector.subsystems, _subsystem(function), _in_subsystem(selector, function)
    yield "classes", selector.classes, function.pci_class, in_classes(selector.classes, function)
    yield "drivers", selector.drivers, function.driver, function.driver in selector.drivers
    yield "addresses", selector.addresses, function.address, _at(selector, function)
    yield "numaNodes", selector.numa_nodes, function.numa_node, function.numa_node in selector.numa_nodes
    yield "iommuGroups", selector.iommu_groups, function.group, function.group in selector.iommu_groups
    number = groups.vgpu_of(function)
    called = naming.type_names(number, names.get(vgpu_key(number or "")))
    yield "vgpuTypes", selector.vgpu_types, number, _any_called(selector.vgpu_types, called)


def _any_called(wanted: Iterable[str], called: frozenset[str]) -> bool:
    return any(naming.type_called(name) in called for name in wanted)


def in_classes(classes: tuple[str, ...], function: PciFunction) -> bool:
    """True if the function's class begins with one of ``classes``."""
    return function.pci_class is not None and function.pci_class.startswith(classes)


def _subsystem(function: PciFunction) -> str | None:
    if function.subsystem_vendor is None:
        return None
    return f"{function.subsystem_vendor}:{function.subsystem_device}"


def _in_subsystem(selector: PciSelector, function: PciFunction) -> bool:
    subsystem = _subsystem(function)
    wanted = selector.subsystems
    return subsystem is not None and (subsystem in wanted or function.subsystem_vendor in wanted)


def _at(selector: PciSelector, function: PciFunction) -> bool:
    return any(fnmatchcase(function.address, pattern) for pattern in selector.addresses)
