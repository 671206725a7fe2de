# SPDX-License-Identifier: Apache-2.0
"""Matches selectors with devices, and finds the key that does not match. Pure.

Keys of a selector are combined with AND, values of a key with OR; a key without values matches all devices.
Values are compared in lower case, except the names of types (``naming.normalize_type``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Final

from nodeagent.model.host import HostDevice, Mdev, MdevType, PciFunction, UsbDevice
from nodeagent.model.ids import vf_numbers, vgpu_key
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import (
    DeviceRule,
    DirectRule,
    MdevSelector,
    PciSelector,
    Rule,
    UsbSelector,
    WantedType,
)
from nodeagent.policy import groups, naming

Selector = PciSelector | MdevSelector | UsbSelector

_Check = tuple[str, tuple[object, ...], object, bool]
"""A key, its values in the selector, the value of the device, and whether they match."""

NO_NAMES: Final[Names] = MappingProxyType({})
NO_SELECTORS = "has no selectors, so it only sets options"
OTHER_KIND = "is for devices of another kind"


def is_matched_by_rule(rule: Rule, host_device: HostDevice, names: Names = NO_NAMES) -> bool:
    """True if one of the rule's selectors matches the device; a rule matches only devices of its kind.

    ``names`` has the names of vGPU types, which a VF shows by number: ``"vgpu:1147"`` → name.
    """
    if isinstance(rule, DirectRule):
        return False
    for selector in rule.selectors:  # noqa: SIM110 - a generator costs more than most of its answers
        if is_match(selector, host_device, names):
            return True
    return False


def explain_mismatch(rule: Rule, host_device: HostDevice, names: Names = NO_NAMES) -> str | None:
    """Why no selector of the rule matches the device, as one text; None if a selector matches."""
    if is_matched_by_rule(rule, host_device, names):
        return None
    selectors = () if isinstance(rule, DirectRule) else rule.selectors
    return "; or ".join(find_mismatch(each, host_device, names) or "" for each in selectors) or NO_SELECTORS


def explain_unmatched_key(rule: DeviceRule, host_device: HostDevice, names: Names = NO_NAMES) -> str | None:
    """Why no selector of the rule matches the device; the text is the same for all devices with this cause.

    None if a selector matches.
    """
    if is_matched_by_rule(rule, host_device, names):
        return None
    texts = (_explain_key(each, host_device, names) for each in rule.selectors)
    return "; or ".join(dict.fromkeys(texts)) or NO_SELECTORS


def _explain_key(selector: Selector, host_device: HostDevice, names: Names) -> str:
    for_kind, checks = _CHECKS[type(selector)]
    failed = _find_failed(checks(selector, host_device, names)) if isinstance(host_device, for_kind) else None
    return OTHER_KIND if failed is None else f"{failed[0]}: not {' or '.join(map(str, failed[1]))}"


def is_match(selector: Selector, host_device: HostDevice, names: Names) -> bool:
    """True if this selector matches the device."""
    if isinstance(selector, PciSelector) and isinstance(host_device, PciFunction):
        if selector.devices and host_device.device not in selector.devices:
            return False  # most rules of a large fleet differ by this key: the others need no check
        return _find_failed(_pci_checks(selector, host_device, names)) is None
    return find_mismatch(selector, host_device, names) is None


def find_mismatch(selector: Selector, host_device: HostDevice, names: Names = NO_NAMES) -> str | None:
    """The first key that does not match the device, as a text; None if the selector matches."""
    for_kind, checks = _CHECKS[type(selector)]
    if not isinstance(host_device, for_kind):
        return OTHER_KIND
    return _describe(_find_failed(checks(selector, host_device, names)))


def find_nearest(
    selector: Selector, devices: Sequence[HostDevice], names: Names, alike: float
) -> tuple[HostDevice, str] | None:
    """The device that almost matches the selector, and the key that does not match, as a text.

    This device matches more keys than the others, and is most similar in the first key that does not match.
    None if no key matches and the similarity is below ``alike`` (0 to 1).
    """
    import difflib  # here: for mistakes only

    for_kind, checks = _CHECKS[type(selector)]
    best: dict[object, tuple[int, HostDevice, _Check]] = {}  # by value of the device: many have the same
    most = 0
    for host_device in devices:
        if isinstance(host_device, for_kind):
            rank, check = _count_until_failed(checks(selector, host_device, names))
            if check is not None and rank >= most:
                most = rank
                best.setdefault((rank, check[2]), (rank, host_device, check))

    def likeness(candidate: tuple[int, HostDevice, _Check]) -> tuple[int, float]:
        rank, _, (_, wanted, actual, _) = candidate
        ratios = (difflib.SequenceMatcher(None, str(each), str(actual)).ratio() for each in wanted)
        return rank, max(ratios)

    found = max(best.values(), key=likeness, default=None)
    if found is None or likeness(found) < (0, alike):
        return None
    return found[1], _describe(found[2]) or ""


def _count_until_failed(checks: Iterable[_Check]) -> tuple[int, _Check | None]:
    """The number of keys that match before the first that does not match, and that key."""
    rank = 0
    for check in checks:
        if check[1]:
            if not check[3]:
                return rank, check
            rank += 1
    return rank, None


def _describe(failed: _Check | None) -> str | None:
    if failed is None:
        return None
    key, wanted, actual, _ = failed
    shown = "none" if actual is None else actual
    return f"{key}: it has {shown}, the rule has {' or '.join(map(str, wanted))}"


def _find_failed(checks: Iterable[_Check]) -> _Check | None:
    return next((check for check in checks if check[1] and not check[3]), None)


def _mdev_checks(selector: MdevSelector, mdev: Mdev, _: Names) -> Iterator[_Check]:
    yield "types", selector.types, mdev.type_id, mdev.type_id in selector.types
    name, called = mdev.type_name or mdev.type_id, naming.type_names(mdev.type_id, mdev.type_name)
    yield "names", selector.names, name, _has_any_name(selector.names, called)


def _usb_checks(selector: UsbSelector, device: UsbDevice, _: Names) -> Iterator[_Check]:
    yield "vendors", selector.vendors, device.vendor, device.vendor in selector.vendors
    yield "products", selector.products, device.product, device.product in selector.products
    yield "serials", selector.serials, device.serial, device.serial in selector.serials
    codes = [device.device_class or "", *(each.code for each in device.interfaces)]
    within = any(code.startswith(selector.classes) for code in codes)
    yield "classes", selector.classes, " and ".join(filter(None, codes)) or None, within
    at = any(fnmatchcase(each, port) for each in (device.name, device.path) for port in selector.ports)
    yield "ports", selector.ports, device.name, at


def _pci_checks(selector: PciSelector, function: PciFunction, names: Names) -> Iterator[_Check]:
    """Yield the checks one by one: most selectors that do not match fail at their first key."""
    yield "vendors", selector.vendors, function.vendor, function.vendor in selector.vendors
    yield "devices", selector.devices, function.device, function.device in selector.devices
    yield "subsystems", selector.subsystems, _subsystem(function), _is_in_subsystem(selector, function)
    yield "classes", selector.classes, function.pci_class, is_in_classes(selector.classes, function)
    yield "drivers", selector.drivers, function.driver, function.driver in selector.drivers
    yield "addresses", selector.addresses, function.address, _is_at(selector, function)
    pf = groups.describe_pf(function) or "no PF (it is not a VF)"
    yield "pfs", selector.pfs, pf, _is_of_pf(selector, function)
    yield "numaNodes", selector.numa_nodes, function.numa_node, function.numa_node in selector.numa_nodes
    yield "iommuGroups", selector.iommu_groups, function.group, function.group in selector.iommu_groups
    number = groups.find_vgpu_type(function)
    called = naming.type_names(number, names.get(vgpu_key(number or "")))
    yield "vgpuTypes", selector.vgpu_types, number, _has_any_name(selector.vgpu_types, called)


def _has_any_name(wanted: Iterable[str], called: frozenset[str]) -> bool:
    return any(naming.normalize_type(name) in called for name in wanted)


def is_in_classes(classes: tuple[str, ...], function: PciFunction) -> bool:
    """True if the function's class begins with one of ``classes``."""
    return function.pci_class is not None and function.pci_class.startswith(classes)


def _subsystem(function: PciFunction) -> str | None:
    if function.subsystem_vendor is None:
        return None
    return f"{function.subsystem_vendor}:{function.subsystem_device}"


def _is_in_subsystem(selector: PciSelector, function: PciFunction) -> bool:
    subsystem = _subsystem(function)
    wanted = selector.subsystems
    return subsystem is not None and (subsystem in wanted or function.subsystem_vendor in wanted)


def _is_at(selector: PciSelector, function: PciFunction) -> bool:
    return any(fnmatchcase(function.address, pattern) for pattern in selector.addresses)


def _is_of_pf(selector: PciSelector, function: PciFunction) -> bool:
    if function.physfn is None:
        return False
    for wanted in selector.pfs:
        pf, _, numbers = wanted.partition("#")
        if pf == function.physfn or pf in function.pf_interfaces:
            ranges = vf_numbers(numbers) if numbers else None
            if ranges is None or any(function.vf_number in each for each in ranges):
                return True
    return False


_CHECKS: Final[Mapping[type, tuple[type, Callable[[Any, Any, Names], Iterator[_Check]]]]] = MappingProxyType(
    {
        PciSelector: (PciFunction, _pci_checks),
        MdevSelector: (Mdev, _mdev_checks),
        UsbSelector: (UsbDevice, _usb_checks),
    }
)


def is_type_match(wanted: WantedType, mdev_type: MdevType) -> bool:
    """True if an entry of a list of types names this type."""
    if wanted.short:
        return bool(mdev_type.name) and (mdev_type.name or "").split()[-1:] == [wanted.name]
    return naming.normalize_type(wanted.name) in naming.type_names(mdev_type.type_id, mdev_type.name)
