# SPDX-License-Identifier: Apache-2.0
"""Matches a device with rules: those of the configuration, those of the KubeVirt CR, then discovery. Pure.

The first rule that matches a device gets it, so each device belongs to one resource. If the KubeVirt CR
leaves a device to virt-handler, only rules of the configuration can match it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nodeagent.model.host import Group, HostDevice, Kind, PciFunction
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import BySelector, DeviceRule, Spec, UsbRule
from nodeagent.policy import naming, selectors
from nodeagent.policy.offer import discovery, kinds
from nodeagent.policy.offer.discovery import Label

OFF = "discovery is off"

Verdict = tuple[DeviceRule | None, str | None]
"""A rule, or None for discovery; and why it does not match a device, as a text, or None if it does."""


@dataclass(frozen=True, slots=True)
class Match:
    """The resource and the rule of a HostDevice; for a discovered device, discovery creates the rule.

    ``type_id`` is the type of the mdev or vGPU when it was matched. ``unnamed``: discovery does not know the
    name of the type yet.
    """

    resource: ResourceName
    rule: DeviceRule
    type_id: str | None = None
    unnamed: bool = False


def find_match(host_device: HostDevice, group: Group | None, spec: Spec, names: Names) -> Match | None:
    """The match of a device, or None if neither a rule nor discovery matches it."""
    for rule in _find_rules(host_device, spec):
        if rule is None:
            refused = explain_undiscovered(host_device, group, spec) is not None
            return None if refused else _match_discovered(host_device, spec, names)
        if selectors.is_matched_by_rule(rule, host_device, names) and not _explain_unserved(
            rule, host_device, group, spec
        ):
            return Match(ResourceName(rule.name), rule, kinds.find_kind(host_device).type_of(host_device))
    return None


def find_verdicts(
    host_device: HostDevice, group: Group | None, spec: Spec, names: Names
) -> Iterator[Verdict]:
    """The result of each rule and of discovery, in their order; the first match determines the resource."""
    for rule in _find_rules(host_device, spec):
        if rule is None:
            yield None, explain_undiscovered(host_device, group, spec)
        else:
            other = selectors.explain_mismatch(rule, host_device, names)
            yield rule, other or _explain_unserved(rule, host_device, group, spec)


def _find_rules(host_device: HostDevice, spec: Spec) -> Sequence[DeviceRule | None]:
    """The rules for the kind of the device, then discovery (None); empty for a bridge or hub, which is never
    offered.

    Rules of the KubeVirt CR are included only if they have the ids of the device: there may be thousands of
    others.
    """
    kind = kinds.find_kind(host_device)
    if kind.never(host_device):
        return ()
    if host_device.kind is Kind.USB:
        return _find_usb_rules(spec)
    wanted = kind.rule
    own = [rule for rule in spec.rules if isinstance(rule, wanted) and not rule.permitted]
    return [*own, *_find_cr_rules(host_device, spec.kubevirt_rules), None]


def _find_usb_rules(spec: Spec) -> Sequence[DeviceRule | None]:
    """All USB rules in their order, because each may match a set; the KubeVirt CR has few of them."""
    return [*(rule for rule in spec.rules if isinstance(rule, UsbRule)), None]


def match_listed(name: ResourceName, host_device: HostDevice, spec: Spec) -> Match:
    """The match of a device that is listed under this resource, even if another rule matches it now."""
    return Match(
        name, _find_named_rule(name, spec, host_device), kinds.find_kind(host_device).type_of(host_device)
    )


def _match_discovered(host_device: HostDevice, spec: Spec, names: Names) -> Match:
    if _is_unnamed(host_device, spec, names):
        domain = unaliased_name(host_device, spec, names).partition("/")[0]
        name = ResourceName(f"{domain}/{naming.UNNAMED_VGPU}")
        return replace(match_listed(name, host_device, spec), unnamed=True)
    return match_listed(discovered_name(host_device, spec, names), host_device, spec)


def _is_unnamed(host_device: HostDevice, spec: Spec, names: Names) -> bool:
    """True for a vGPU type of which only the number is known: the resource name would change later."""
    label = _find_label(host_device, names)
    return spec.discovery.naming == "name" and label.kind is Kind.MDEV and not label.text


def _find_label(host_device: HostDevice, names: Names) -> Label:
    """The data from which the resource name of a discovered device is made."""
    find_label = kinds.find_kind(host_device).label
    return Label(host_device.kind, "", None) if find_label is None else find_label(host_device, names)


def _find_named_rule(name: str, spec: Spec, host_device: HostDevice) -> DeviceRule:
    """The configured rule with that name, because its options also apply to discovered devices."""
    wanted = kinds.find_kind(host_device).rule
    for rule in spec.rules:
        if rule.name == name and isinstance(rule, wanted):
            return rule
    return wanted(name)


def explain_undiscovered(host_device: HostDevice, group: Group | None, spec: Spec) -> str | None:
    """Why discovery does not match the device, as a text; None if it does."""
    if not spec.discovery.enabled:
        return OFF
    kind = kinds.find_kind(host_device)
    if kind.refusal is None:
        return f"{kind.rule.words} are only offered if a rule matches them"
    return kind.refusal(host_device, group, spec) or _describe_virt_handler(host_device, spec)


def _explain_unserved(
    rule: DeviceRule, host_device: HostDevice, group: Group | None, spec: Spec
) -> str | None:
    """Why a rule of the KubeVirt CR ignores a device that its selector matches; None if it matches."""
    if not rule.permitted:
        return None
    unready = (
        discovery.explain_unassignable(host_device, group) if isinstance(host_device, PciFunction) else None
    )
    return unready or _describe_virt_handler(host_device, spec)


def _find_cr_rules(host_device: HostDevice, rules: BySelector) -> list[DeviceRule]:
    """The rules of the KubeVirt CR with the ids or the type of the device, each once."""
    if not rules:
        return []
    kind = kinds.find_kind(host_device)
    found = (rules.get(selector) for selector in sorted(kind.selectors(host_device)))
    return list(dict.fromkeys(rule for rule in found if isinstance(rule, kind.rule)))


def is_left_to_virt_handler(host_device: HostDevice, spec: Spec) -> bool:
    """True if the KubeVirt CR leaves the device to virt-handler."""
    return _describe_virt_handler(host_device, spec) is not None


def _describe_virt_handler(host_device: HostDevice, spec: Spec) -> str | None:
    """The message that the KubeVirt CR leaves the device to virt-handler; None if it does not."""
    entry = next(iter(_find_cr_rules(host_device, spec.virt_handler_rules)), None)
    return None if entry is None else f"virt-handler offers it as {entry.name} ({entry.place})"


def discovered_name(host_device: HostDevice, spec: Spec, names: Names) -> ResourceName:
    """The resource name of a discovered device with known ids; aliases are applied."""
    name = unaliased_name(host_device, spec, names)
    return ResourceName(dict(spec.aliases).get(name, name))


def unaliased_name(host_device: HostDevice, spec: Spec, names: Names) -> str:
    """The resource name of a discovered device, before aliases are applied."""
    label = _find_label(host_device, names)
    vendor = host_device.vendor or ""
    return naming.discovered_name(
        style=spec.discovery.naming,
        prefix=spec.discovery.prefix or label.domain,
        vendor_id=vendor,
        device_id=label.device_id,
        vendor_text=names.get(vendor),
        device_text=label.text,
        kind=label.kind,
    )
