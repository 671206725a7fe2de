# SPDX-License-Identifier: Apache-2.0
"""Builds the Resources for the kubelet from offers; only resources with changes are built again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Device, Resource, Resources
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DeviceRule, DirectRule, Rule
from nodeagent.policy.offer import units
from nodeagent.policy.offer.not_offered import NotOffered
from nodeagent.policy.offer.units import Offer, UnitId

ByUnit = Mapping[UnitId, tuple[Offer, ...]]


class Change(NamedTuple):
    """A unit whose offers differ from those of the turn before."""

    unit: UnitId
    old: tuple[Offer, ...]
    new: tuple[Offer, ...]


class ResourceParts(NamedTuple):
    """The parts of the Resources, besides the rules."""

    by_resource: Mapping[ResourceName, ByUnit]
    not_offered: NotOffered


def group_offers(
    before: Mapping[ResourceName, ByUnit], changes: Iterable[Change]
) -> tuple[Mapping[ResourceName, ByUnit], dict[ResourceName, None]]:
    """The offers by resource after these changes, and the names of the changed resources."""
    touched: dict[ResourceName, dict[UnitId, tuple[Offer, ...]]] = {}
    for change in changes:
        for name in dict.fromkeys(offer.match.resource for offer in (*change.old, *change.new)):
            if name not in touched:
                touched[name] = dict(before.get(name, {}))
            by_unit = touched[name]
            by_unit.pop(change.unit, None)
            mine = tuple(offer for offer in change.new if offer.match.resource == name)
            if mine:
                by_unit[change.unit] = mine
    return ({**before, **touched} if touched else before), dict.fromkeys(touched)


def update_resources(
    before: Resources, served: ResourceParts, touched: Collection[ResourceName], snapshot: Snapshot
) -> Resources:
    """All resources; only ``touched`` ones may have changed, and equal ones are the same objects.

    A resource that was listed only for a device in use is dropped when that is released. A resource of the
    KubeVirt CR, which is for all nodes, is listed here from its first device on.
    """
    if not touched:
        return before
    rules = {ResourceName(rule.name): rule for rule in reversed(snapshot.spec.rules)}
    ours = {name for name, rule in rules.items() if name in before or not _is_of_cr(rule)}
    result = dict(before)
    for name in touched:
        if name in ours or name in served.by_resource or name in served.not_offered:
            fresh = _build_resource(name, rules.get(name), before.get(name), served, snapshot)
            result[name] = before[name] if before.get(name) == fresh else fresh
        else:
            result.pop(name, None)
    return result


def _is_of_cr(rule: Rule) -> bool:
    return not isinstance(rule, DirectRule) and rule.permitted


def _build_resource(
    name: ResourceName, rule: Rule | None, old: Resource | None, served: ResourceParts, snapshot: Snapshot
) -> Resource:
    not_offered = served.not_offered.get(name, ())
    if isinstance(rule, DirectRule):
        found = build_direct_resource(rule, snapshot)
        found = replace(found, devices=(*found.devices, *not_offered)) if not_offered else found
    else:
        empty = Resource(name, Kind.PCI if old is None else old.kind)
        found = _build_device_resource(empty, rule, served.by_resource.get(name, {}), not_offered)
    if rule is None or rule.topology:
        return found
    return replace(found, devices=tuple(device._replace(numa=None) for device in found.devices))


def build_direct_resource(rule: DirectRule, snapshot: Snapshot) -> Resource:
    """The resource of a rule for nodes or CDI devices; few nodes have one, so its module is imported here."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.resource(rule, snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.resource(rule, snapshot)


def _build_device_resource(
    empty: Resource, rule: DeviceRule | None, by_unit: ByUnit, not_offered: tuple[Device, ...]
) -> Resource:
    offers = [offer for each in by_unit.values() for offer in each]
    rule = offers[0].match.rule if offers else rule
    devices = units.sort_devices([*not_offered, *(offer.device for offer in offers)])
    if rule is None:
        return replace(empty, devices=devices)
    return Resource(empty.name, rule.kind, devices, rule.isolation, rule.iommufd, rule.cdi)
