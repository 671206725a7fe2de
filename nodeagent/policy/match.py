# SPDX-License-Identifier: Apache-2.0
"""Does a selector pick a PCI function, and if not, which key says no. Pure.

AND between the keys of a selector, OR inside a key; an empty key says nothing. Comparison is in lower case.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from nodeagent.model.desired import PciRule, PciSelector
from nodeagent.model.host import PciFunction


def mismatch(selector: PciSelector, function: PciFunction) -> str | None:
    """The first key that refuses the function, in words; None if the selector picks it."""
    checks = (
        ("vendors", selector.vendors, function.vendor, function.vendor in selector.vendors),
        ("devices", selector.devices, function.device, function.device in selector.devices),
        (
            "subsystems",
            selector.subsystems,
            _subsystem(function),
            _in_subsystem(selector, function),
        ),
        ("classes", selector.classes, function.pci_class, _in_class(selector.classes, function)),
        ("drivers", selector.drivers, function.driver, function.driver in selector.drivers),
        ("addresses", selector.addresses, function.address, _at(selector, function)),
        (
            "numaNodes",
            selector.numa_nodes,
            function.numa_node,
            function.numa_node in selector.numa_nodes,
        ),
        (
            "iommuGroups",
            selector.iommu_groups,
            function.group,
            function.group in selector.iommu_groups,
        ),
    )
    for key, wanted, actual, fits in checks:
        if wanted and not fits:
            shown = "none" if actual is None else actual
            return f"{key}: it has {shown}, the rule wants {' or '.join(map(str, wanted))}"
    return None


def picks(rule: PciRule, function: PciFunction) -> bool:
    """True if one of the rule's selectors picks the function."""
    return any(mismatch(selector, function) is None for selector in rule.selectors)


def in_classes(classes: tuple[str, ...], function: PciFunction) -> bool:
    """True if the function's class begins with one of ``classes``."""
    return function.pci_class is not None and function.pci_class.startswith(classes)


def _in_class(classes: tuple[str, ...], function: PciFunction) -> bool:
    return bool(classes) and in_classes(classes, function)


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
