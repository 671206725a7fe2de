# SPDX-License-Identifier: Apache-2.0
"""Which rule takes a PCI function: the rules of the configuration first, then automatic discovery. Pure.

A function goes to the first rule that takes it, and to one resource only. Discovery takes what the
operator has bound to a VFIO driver already; audio, USB and bridges of a card ride along in its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.desired import Desired, PciRule
from nodeagent.model.host import Group, PciFunction
from nodeagent.model.ids import ResourceName
from nodeagent.policy import groups, match, naming

PciNames = Mapping[str, str]
"""Names from pci.ids: ``"10de"`` → vendor, ``"10de:1eb8"`` → device."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A function belongs to a resource, and under which rule; discovery makes a rule of its own."""

    resource: ResourceName
    rule: PciRule


def claim(function: PciFunction, group: Group | None, desired: Desired, names: PciNames) -> Claim | None:
    """The claim on a function, or None if nothing takes it."""
    if function.bridge:
        return None
    for rule in desired.rules:
        if isinstance(rule, PciRule) and match.picks(rule, function):
            return Claim(ResourceName(rule.name), rule)
    if discoverable(function, group, desired) is not None:
        return None
    name = discovered_name(function, desired, names)
    return Claim(name, _rule_named(name, desired) or PciRule(name))


def _rule_named(name: str, desired: Desired) -> PciRule | None:
    """The configured rule of that name: what it says of handing out holds for discovered devices too."""
    rules = (rule for rule in desired.rules if isinstance(rule, PciRule))
    return next((rule for rule in rules if rule.name == name), None)


def discoverable(function: PciFunction, group: Group | None, desired: Desired) -> str | None:
    """Why discovery leaves the function alone, in words; None if it takes it."""
    discovery = desired.discovery
    if not discovery.enabled:
        return "discovery is switched off"
    if not match.in_classes(discovery.classes, function):
        return f"its class {function.pci_class} is not one of {', '.join(discovery.classes)}"
    if not groups.vfio_bound(function) and not groups.going_away(function, group):
        return f"its driver is {function.driver or 'none'}, not a VFIO driver"
    if function.vendor is None or function.device is None:
        return "its vendor or device id cannot be read"
    return None


def discovered_name(function: PciFunction, desired: Desired, names: PciNames) -> ResourceName:
    """The resource name that discovery gives to a function with known ids, after the aliases."""
    vendor, device = function.vendor or "", function.device or ""
    name = naming.discovered_name(
        style=desired.discovery.naming,
        prefix=desired.discovery.prefix,
        vendor_id=vendor,
        device_id=device,
        vendor_text=names.get(vendor),
        device_text=names.get(f"{vendor}:{device}"),
    )
    return ResourceName(dict(desired.aliases).get(name, name))
