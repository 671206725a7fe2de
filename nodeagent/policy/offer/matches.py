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
from nodeagent.model.host import Group, Mdev, Part, PciFunction
from nodeagent.model.ids import ResourceName, vgpu_key
from nodeagent.model.resource import Kind
from nodeagent.policy import groups, naming, selectors

Names = Mapping[str, str]
"""Names that sysfs does not tell: ``"10de"`` → vendor, ``"10de:1eb8"`` → device, ``"vgpu:1147"`` → type."""

Verdict = tuple[PciRule | MdevRule | None, str | None]
"""A rule, or None for discovery, and why it leaves a part alone, in words; None if it takes it."""

SOFTWARE_DOMAIN = "mdev.nodeagent"  # for mdevs whose parent is no PCI function, and so has no vendor


@dataclass(frozen=True, slots=True)
class Claim:
    """A part belongs to a resource, and under which rule; discovery makes a rule of its own.

    ``type_id`` is the type of the mdev or vGPU when it was taken.
    """

    resource: ResourceName
    rule: PciRule | MdevRule
    type_id: str | None = None


def claim(part: Part, group: Group | None, desired: Desired, names: Names) -> Claim | None:
    """The claim on a part, or None if nothing takes it."""
    for rule, refusal in verdicts(part, group, desired, names):
        if refusal is None:
            return _discovered(part, desired, names) if rule is None else _ruled(rule, part)
    return None


def verdicts(part: Part, group: Group | None, desired: Desired, names: Names) -> Iterator[Verdict]:
    """What everyone who is asked says of a part, in the order of asking; the first who takes it has it.

    Rules of its kind come first, discovery (None) is last. Nobody is asked for a bridge: none is given away.
    """
    if isinstance(part, PciFunction) and part.bridge:
        return
    for rule in desired.rules:
        if selectors.of_kind(rule, part):
            yield rule, selectors.refusal(rule, part, names)
    yield None, discoverable(part, group, desired)


def listed(name: ResourceName, part: Part, desired: Desired) -> Claim:
    """The claim behind a part that is known to be listed under a resource, whatever would take it now."""
    return Claim(name, _rule_for(name, desired, part), type_of(part))


def _ruled(rule: PciRule | MdevRule, part: Part) -> Claim:
    return Claim(ResourceName(rule.name), rule, type_of(part))


def _discovered(part: Part, desired: Desired, names: Names) -> Claim:
    return listed(discovered_name(part, desired, names), part, desired)


def type_of(part: Part) -> str | None:
    """The type of an mdev, or the vGPU type of a VF; None for what has no type."""
    return part.type_id if isinstance(part, Mdev) else groups.vgpu_of(part)


def _rule_for(name: str, desired: Desired, part: Part) -> PciRule | MdevRule:
    """The configured rule of that name: what it says of handing out holds for discovered devices too."""
    for rule in desired.rules:
        if rule.name == name and selectors.of_kind(rule, part):
            return rule
    return MdevRule(name) if isinstance(part, Mdev) else PciRule(name)


def discoverable(part: Part, group: Group | None, desired: Desired) -> str | None:
    """Why discovery leaves the part alone, in words; None if it takes it."""
    if not desired.discovery.enabled:
        return "discovery is switched off"
    if isinstance(part, Mdev):
        return None if part.type_id is not None else "its type cannot be read"
    if groups.vgpu_of(part) is None:
        return _plain_discoverable(part, group, desired)
    return None if part.vendor is not None else "its vendor id cannot be read"


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


def discovered_name(part: Part, desired: Desired, names: Names) -> ResourceName:
    """The resource name that discovery gives to a part with known ids, after the aliases."""
    kind, prefix, device, text = _words(part, names)
    vendor = part.vendor or ""
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


def _words(part: Part, names: Names) -> tuple[Kind, str, str, str | None]:
    """How to name it, its domain if the vendor gives none, the id of what it is, and the text for that.

    A vGPU is named as an mdev of its type would be, so that the types of one card are told apart.
    """
    if isinstance(part, Mdev):
        prefix = "" if part.vendor is not None else SOFTWARE_DOMAIN
        return Kind.MDEV, prefix, part.type_id or "", part.type_name or part.type_id
    vgpu = groups.vgpu_of(part)
    if vgpu is not None:
        return Kind.MDEV, "", naming.vgpu_type_id(vgpu), names.get(vgpu_key(vgpu))
    return Kind.PCI, "", part.device or "", names.get(f"{part.vendor}:{part.device}")
