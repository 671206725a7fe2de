# SPDX-License-Identifier: Apache-2.0
"""Which rule takes a part: the rules of the configuration first, then automatic discovery. Pure.

A part goes to the first rule that takes it, and to one resource only. Discovery takes every mdev, every VF
to which a vGPU type was given, and what the operator has bound to a VFIO driver already; audio, USB and
bridges of a card ride along in its group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodeagent.model.desired import Desired, MdevRule, PciRule
from nodeagent.model.host import Group, HostDevice, Mdev, PciFunction
from nodeagent.model.ids import ResourceName, vgpu_key
from nodeagent.model.resource import Kind
from nodeagent.policy import groups, naming, selectors

Names = Mapping[str, str]
"""Names that sysfs does not tell: ``"10de"`` → vendor, ``"10de:1eb8"`` → device, ``"vgpu:1147"`` → type."""

Verdict = tuple[PciRule | MdevRule | None, str | None]
"""A rule, or None for discovery, and why it leaves a part alone, in words; None if it takes it."""

SOFTWARE_DOMAIN = "mdev.nodeagent"  # for mdevs whose parent is no PCI function, and so has no vendor


@dataclass(frozen=True, slots=True)
class Match:
    """A part belongs to a resource, and under which rule; discovery makes a rule of its own.

    ``type_id`` is the type of the mdev or vGPU when it was taken.
    """

    resource: ResourceName
    rule: PciRule | MdevRule
    type_id: str | None = None


def match_of(host_device: HostDevice, group: Group | None, desired: Desired, names: Names) -> Match | None:
    """The claim on a part, or None if nothing takes it."""
    for rule, refusal in verdicts(host_device, group, desired, names):
        if refusal is None:
            return _discovered(host_device, desired, names) if rule is None else _ruled(rule, host_device)
    return None


def verdicts(
    host_device: HostDevice, group: Group | None, desired: Desired, names: Names
) -> Iterator[Verdict]:
    """What everyone who is asked says of a part, in the order of asking; the first who takes it has it.

    Rules of its kind come first, discovery (None) is last. Nobody is asked for a bridge: none is given away.
    """
    if isinstance(host_device, PciFunction) and host_device.bridge:
        return
    for rule in desired.rules:
        if selectors.of_kind(rule, host_device):
            yield rule, selectors.refusal(rule, host_device, names)
    yield None, discoverable(host_device, group, desired)


def listed(name: ResourceName, host_device: HostDevice, desired: Desired) -> Match:
    """The claim behind a part that is known to be listed under a resource, whatever would take it now."""
    return Match(name, _rule_for(name, desired, host_device), type_of(host_device))


def _ruled(rule: PciRule | MdevRule, host_device: HostDevice) -> Match:
    return Match(ResourceName(rule.name), rule, type_of(host_device))


def _discovered(host_device: HostDevice, desired: Desired, names: Names) -> Match:
    return listed(discovered_name(host_device, desired, names), host_device, desired)


def type_of(host_device: HostDevice) -> str | None:
    """The type of an mdev, or the vGPU type of a VF; None for what has no type."""
    return host_device.type_id if isinstance(host_device, Mdev) else groups.vgpu_of(host_device)


def _rule_for(name: str, desired: Desired, host_device: HostDevice) -> PciRule | MdevRule:
    """The configured rule of that name: what it says of handing out holds for discovered devices too."""
    for rule in desired.rules:
        if rule.name == name and selectors.of_kind(rule, host_device):
            return rule
    return MdevRule(name) if isinstance(host_device, Mdev) else PciRule(name)


def discoverable(host_device: HostDevice, group: Group | None, desired: Desired) -> str | None:
    """Why discovery leaves the part alone, in words; None if it takes it."""
    if not desired.discovery.enabled:
        return "discovery is switched off"
    if isinstance(host_device, Mdev):
        return None if host_device.type_id is not None else "its type cannot be read"
    if groups.vgpu_of(host_device) is None:
        return _plain_discoverable(host_device, group, desired)
    return None if host_device.vendor is not None else "its vendor id cannot be read"


def _plain_discoverable(function: PciFunction, group: Group | None, desired: Desired) -> str | None:
    classes = desired.discovery.classes
    if not selectors.in_classes(classes, function):
        return f"its class {function.pci_class} is not one of {', '.join(classes)}"
    if groups.takes_vgpu(function):
        return "it is a VF without a vGPU type"
    if not groups.vfio_bound(function) and not groups.going_away(function, group):
        return f"its driver is {function.driver or 'none'}, not a VFIO driver"
    if function.vendor is None or function.device is None:
        return "its vendor or device id cannot be read"
    return None


def discovered_name(host_device: HostDevice, desired: Desired, names: Names) -> ResourceName:
    """The resource name that discovery gives to a part with known ids, after the aliases."""
    kind, prefix, device, text = _words(host_device, names)
    vendor = host_device.vendor or ""
    name = naming.discovered_name(
        style=desired.discovery.naming,
        prefix=desired.discovery.prefix or prefix,
        vendor_id=vendor,
        device_id=device,
        vendor_text=names.get(vendor),
        device_text=text,
        kind=kind,
    )
    return ResourceName(dict(desired.aliases).get(name, name))


def _words(host_device: HostDevice, names: Names) -> tuple[Kind, str, str, str | None]:
    """How to name it, its domain if the vendor gives none, the id of what it is, and the text for that.

    A vGPU is named as an mdev of its type would be, so that the types of one card are told apart.
    """
    if isinstance(host_device, Mdev):
        prefix = "" if host_device.vendor is not None else SOFTWARE_DOMAIN
        return Kind.MDEV, prefix, host_device.type_id or "", host_device.type_name or host_device.type_id
    vgpu = groups.vgpu_of(host_device)
    if vgpu is not None:
        return Kind.MDEV, "", naming.vgpu_type_id(vgpu), names.get(vgpu_key(vgpu))
    return Kind.PCI, "", host_device.device or "", names.get(f"{host_device.vendor}:{host_device.device}")
