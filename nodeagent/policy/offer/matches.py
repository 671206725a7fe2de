# SPDX-License-Identifier: Apache-2.0
"""Which rule takes a device: those of the configuration, those of the KubeVirt CR, then discovery. Pure.

A device goes to the first rule that takes it, and to one resource only. What the CR gives to virt-handler
goes to a rule of the configuration or to nobody here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nodeagent.model.host import Group, HostDevice, Kind, PciFunction, UsbDevice
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import BySelector, DeviceRule, Spec, UsbRule
from nodeagent.policy import naming, selectors
from nodeagent.policy.offer import discovery, kinds

OFF = "discovery is off"
INCOMPLETE = "its set is not whole: a selector finds no free device beside it"

Verdict = tuple[DeviceRule | None, str | None]
"""A rule, or None for discovery, and why it leaves a device alone, in words; None if it takes it."""


@dataclass(frozen=True, slots=True)
class Match:
    """A rule takes a HostDevice for a resource; discovery makes a rule of its own.

    ``type_id`` is the type of the mdev or vGPU when it was taken. ``unnamed``: discovery does not know what
    to call it yet.
    """

    resource: ResourceName
    rule: DeviceRule
    type_id: str | None = None
    unnamed: bool = False


def match_of(host_device: HostDevice, group: Group | None, spec: Spec, names: Names) -> Match | None:
    """The match of a device, or None if nothing takes it."""
    for rule in _asked(host_device, spec):
        if rule is None:
            refused = discoverable(host_device, group, spec) is not None
            return None if refused else _discovered(host_device, spec, names)
        if selectors.picks(rule, host_device, names) and not _kept(rule, host_device, group, spec):
            return Match(ResourceName(rule.name), rule, kinds.of(host_device).type_of(host_device))
    return None


def verdicts(host_device: HostDevice, group: Group | None, spec: Spec, names: Names) -> Iterator[Verdict]:
    """What everyone who is asked says of a device, in the order of asking; the first who takes it has it."""
    for rule in _asked(host_device, spec):
        if rule is None:
            yield None, discoverable(host_device, group, spec)
        else:
            other = selectors.refusal(rule, host_device, names)
            yield rule, other or _kept(rule, host_device, group, spec)


def _asked(host_device: HostDevice, spec: Spec) -> Sequence[DeviceRule | None]:
    """The rules for its kind, then discovery (None). Nobody is asked for a bridge: none is given away.

    Of the KubeVirt CR's rules only those that name what the device is: there may be thousands of others.
    """
    if isinstance(host_device, PciFunction) and host_device.bridge:
        return ()
    if isinstance(host_device, UsbDevice):
        return () if host_device.hub else _of_usb(spec)
    wanted = kinds.of(host_device).rule
    own = [rule for rule in spec.rules if isinstance(rule, wanted) and not rule.permitted]
    return [*own, *_named(host_device, spec.kubevirt_rules), None]


def _of_usb(spec: Spec) -> Sequence[DeviceRule | None]:
    """All rules in their order, for a set may be taken by any; the KubeVirt CR has few of them."""
    return [*(rule for rule in spec.rules if isinstance(rule, UsbRule)), None]


def listed(name: ResourceName, host_device: HostDevice, spec: Spec) -> Match:
    """The match behind a device that is known to be listed under a resource, whatever would take it now."""
    return Match(name, _rule_for(name, spec, host_device), kinds.of(host_device).type_of(host_device))


def _discovered(host_device: HostDevice, spec: Spec, names: Names) -> Match:
    if _unnamed(host_device, spec, names):
        domain = unaliased_name(host_device, spec, names).partition("/")[0]
        name = ResourceName(f"{domain}/{naming.UNNAMED_VGPU}")
        return replace(listed(name, host_device, spec), unnamed=True)
    return listed(discovered_name(host_device, spec, names), host_device, spec)


def _unnamed(host_device: HostDevice, spec: Spec, names: Names) -> bool:
    """True for a vGPU whose type is known by its number only: a name made of that would change."""
    label = kinds.of(host_device).label(host_device, names)
    return spec.discovery.naming == "name" and label.kind is Kind.MDEV and not label.text


def _rule_for(name: str, spec: Spec, host_device: HostDevice) -> DeviceRule:
    """The configured rule of that name: what it says of handing out holds for discovered devices too."""
    wanted = kinds.of(host_device).rule
    for rule in spec.rules:
        if rule.name == name and isinstance(rule, wanted):
            return rule
    return wanted(name)


def discoverable(host_device: HostDevice, group: Group | None, spec: Spec) -> str | None:
    """Why discovery leaves the device alone, in words; None if it takes it."""
    if not spec.discovery.enabled:
        return OFF
    refusal: str | None = kinds.of(host_device).refusal(host_device, group, spec)
    return refusal or _virt_handlers(host_device, spec)


def _kept(rule: DeviceRule, host_device: HostDevice, group: Group | None, spec: Spec) -> str | None:
    """Why a rule of the KubeVirt CR leaves alone what it picks, in words; None if it takes it."""
    if not rule.permitted:
        return None
    unready = discovery.unready(host_device, group) if isinstance(host_device, PciFunction) else None
    return unready or _virt_handlers(host_device, spec)


def _named(host_device: HostDevice, rules: BySelector) -> list[DeviceRule]:
    """The rules of the KubeVirt CR whose selectors name what the device is, each once."""
    if not rules:
        return []
    kind = kinds.of(host_device)
    found = (rules.get(selector) for selector in sorted(kind.selectors(host_device)))
    return list(dict.fromkeys(rule for rule in found if isinstance(rule, kind.rule)))


def given_away(host_device: HostDevice, spec: Spec) -> bool:
    """True if the KubeVirt CR gives the device to virt-handler."""
    return _virt_handlers(host_device, spec) is not None


def _virt_handlers(host_device: HostDevice, spec: Spec) -> str | None:
    """That the KubeVirt CR gives the device to virt-handler, in words; None if it does not."""
    entry = next(iter(_named(host_device, spec.virt_handler_rules)), None)
    return None if entry is None else f"it is virt-handler's, as {entry.name} ({entry.place})"


def discovered_name(host_device: HostDevice, spec: Spec, names: Names) -> ResourceName:
    """The resource name that discovery gives to a device with known ids, after the aliases."""
    name = unaliased_name(host_device, spec, names)
    return ResourceName(dict(spec.aliases).get(name, name))


def unaliased_name(host_device: HostDevice, spec: Spec, names: Names) -> str:
    """The same before the aliases."""
    label = kinds.of(host_device).label(host_device, names)
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
