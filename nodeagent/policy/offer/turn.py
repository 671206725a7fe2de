# SPDX-License-Identifier: Apache-2.0
"""Computes the next Decision (all resources) from the last Decision and the newest Snapshot. Pure.

Only changed units (IOMMU groups) and ids are decided again, and only changed resources are built again from
their offers. The result equals a decision from scratch, with two exceptions: a device that was offered
remains listed while it exists, and a resource that was listed remains, with an empty list if necessary. When
the operator changes the configuration, the two exceptions no longer apply; then only devices in use remain
listed, until they are released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, HostDevice, Kind, PciFunction
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Device, ReasonCode, Resource, Resources, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DeviceRule, DirectRule, Rule
from nodeagent.policy.offer import changes, not_offered, units
from nodeagent.policy.offer.changes import Changed
from nodeagent.policy.offer.matches import Match
from nodeagent.policy.offer.not_offered import NotOffered
from nodeagent.policy.offer.units import Offer, UnitId

_ENDS_BY_RELEASE = frozenset(
    {
        ReasonCode.GROUP_HELD,
        ReasonCode.HELD_OUTSIDE,
        ReasonCode.GONE,
        ReasonCode.EXCLUDED,
        ReasonCode.RE_ENUMERATED,
        ReasonCode.OTHER_API,
    }
)
ByUnit = Mapping[UnitId, tuple[Offer, ...]]


class Change(NamedTuple):
    """A unit (IOMMU group) whose offers differ from those of the last Decision."""

    unit: UnitId
    old: tuple[Offer, ...]
    new: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The Resources that follow from a Snapshot, and the intermediate results for the next turn."""

    snapshot: Snapshot
    offers: ByUnit = field(default_factory=dict)
    by_resource: Mapping[ResourceName, ByUnit] = field(default_factory=dict)  # the same offers
    matched: Mapping[str, Match] = field(default_factory=dict)  # id of a HostDevice → its match
    not_offered: NotOffered = field(default_factory=dict)  # devices in use, by their resource
    resources: Resources = field(default_factory=dict)

    def resource(self, name: ResourceName) -> Resource:
        """The resource with that name; a resource without devices if it is not offered any more."""
        return self.resources.get(name) or Resource(name, Kind.PCI)

    def offer_of(self, device_id: str) -> Offer | None:
        """The offer whose Device has this id, or None."""
        offer = self.offer_with(device_id)
        return offer if offer is not None and offer.device.id == device_id else None

    def offer_with(self, device_id: str) -> Offer | None:
        """The offer of the Device that contains this HostDevice, or None."""
        if device_id not in self.matched:
            return None
        host_device = self.snapshot.host.device(device_id)
        offers = self.offers.get(units.find_unit_id(host_device), ()) if host_device is not None else ()
        return next((offer for offer in offers if device_id in offer.host_devices), None)


def decide_first(snapshot: Snapshot, matched: Mapping[str, Match] = units.NO_MATCHES) -> Decision:
    """The first Decision; ``matched`` are matches that are known already."""
    return decide_next(Decision(_empty_snapshot(snapshot), matched=matched), snapshot)


def decide_next(before: Decision, snapshot: Snapshot) -> Decision:
    """The Decision for this Snapshot, computed from the Decision ``before``."""
    snapshot = not_offered.with_unplugged(before.snapshot, snapshot)
    same_host = before.snapshot.host is snapshot.host
    matched = before.matched if same_host else _keep_matches(before, snapshot.host)
    if (before.snapshot.spec, before.snapshot.names) != (snapshot.spec, snapshot.names):
        matched = matched if before.snapshot.spec == snapshot.spec else {}
        touched = _all_names(before, snapshot)
        before = _start_again(before, snapshot)
    else:
        touched = _find_direct_changes(before, snapshot) if before.resources else _all_names(before, snapshot)
    changed = changes.find_changes(before.snapshot, snapshot)
    differing = _find_changes(before, snapshot, matched, changed)
    by_resource, names = _group_offers(before.by_resource, differing)
    matched = _update_matches(before.matched, differing)
    decision = Decision(snapshot, _update_offers(before.offers, differing), by_resource, matched)
    lost = _find_not_offered(before, decision, changed, touched)
    old = before.not_offered
    touched |= names | {name: None for name in (*old, *lost) if old.get(name) != lost.get(name)}
    decision = replace(decision, not_offered=lost)
    return replace(decision, resources=_update_resources(before.resources, decision, touched))


def _empty_snapshot(snapshot: Snapshot) -> Snapshot:
    """The Snapshot before the first Decision: an empty host with the same Spec and names."""
    return Snapshot(Host(), snapshot.spec, snapshot.names)


def _all_names(before: Decision, snapshot: Snapshot) -> dict[ResourceName, None]:
    rules = (ResourceName(rule.name) for rule in snapshot.spec.rules)
    return dict.fromkeys((*before.resources, *rules, *before.by_resource))


def _find_direct_changes(before: Decision, snapshot: Snapshot) -> dict[ResourceName, None]:
    """The resources of rules for nodes or CDI devices whose devices may have changed."""
    old, new = before.snapshot.host, snapshot.host
    loans_changed = before.snapshot.loans != snapshot.loans  # nodes of a USB device in use are unavailable
    if old is new and not loans_changed:
        return {}
    rules = (rule for rule in snapshot.spec.rules if isinstance(rule, DirectRule))
    return {
        ResourceName(rule.name): None
        for rule in rules
        if loans_changed or changes.is_affected(rule, old, new)
    }


def _keep_matches(before: Decision, host: Host) -> Mapping[str, Match]:
    """The matches of the last Decision, except those of devices that have left the host or were replaced."""
    old, matched = before.snapshot.host, before.matched
    changed = host.changes_since(old).devices
    lost = {each for each in changed if each in matched and not _is_same_device(each, old, host)}
    if not lost:
        return matched
    return {device_id: match for device_id, match in matched.items() if device_id not in lost}


def _is_same_device(device_id: str, old: Host, new: Host) -> bool:
    """False if the device is gone, or another PCI function is at its address now."""
    before, now = old.device(device_id), new.device(device_id)
    if not isinstance(before, PciFunction) or not isinstance(now, PciFunction):
        return now is not None
    return before.inode is None or now.inode is None or before.inode == now.inode


def _start_again(before: Decision, snapshot: Snapshot) -> Decision:
    """The Decision to start from after a change of the Spec or of names; new names remove no resource."""
    begin = Decision(_empty_snapshot(snapshot))
    if before.snapshot.spec == snapshot.spec:
        served: dict[ResourceName, ByUnit] = {name: {} for name in before.by_resource}
        return replace(begin, resources=before.resources, by_resource=served)
    held = {holder.resource for _, holder in snapshot.held()}
    kept = {name: resource for name, resource in before.resources.items() if name in held}
    return replace(begin, resources=kept)


def _find_changes(
    before: Decision, snapshot: Snapshot, matched: Mapping[str, Match], changed: Changed
) -> list[Change]:
    """The units (IOMMU groups) whose offers differ now. If the host has not changed, their matches remain."""
    rebuilt = ((unit, units.build_offers(unit, snapshot, matched)) for unit in changed.rebuilt)
    rechecked = ((unit, units.update_health(unit, snapshot, matched)) for unit in changed.rechecked)
    decided = (
        Change(unit, before.offers.get(unit, ()), new) for each in (rebuilt, rechecked) for unit, new in each
    )
    return [change for change in decided if change.old != change.new]


def _update_offers(before: ByUnit, differing: Sequence[Change]) -> ByUnit:
    if not differing:
        return before
    result = dict(before)
    for change in differing:
        result[change.unit] = change.new
        if not change.new:
            del result[change.unit]
    return result


def _update_matches(before: Mapping[str, Match], differing: Sequence[Change]) -> Mapping[str, Match]:
    """The matches after these changes; old matches are removed first, as a device may have changed its unit.

    Most changes affect health only, and then nothing is copied, so a Decision costs no more on a large host.
    """
    matched = [(_find_matches(change.old), _find_matches(change.new)) for change in differing]
    if all(old == new and new.items() <= before.items() for old, new in matched):
        return before
    result = dict(before)
    for old, _ in matched:
        for device_id in old:
            result.pop(device_id, None)
    for _, new in matched:
        result |= new
    return result


def _find_matches(offers: Iterable[Offer]) -> dict[str, Match]:
    pairs = (pair for offer in offers for pair in zip(offer.host_devices, offer.matches, strict=True))
    return dict(pairs)


def _find_not_offered(
    before: Decision, now: Decision, changed: Changed, touched: Collection[ResourceName]
) -> NotOffered:
    """The devices in use that their resource no longer offers; only devices with changes are checked."""
    made: dict[ResourceName, Resource] = {}
    backwards = reversed(now.snapshot.spec.rules)  # the first rule of a name counts
    rules = {ResourceName(rule.name): rule for rule in backwards}

    def is_offered(device_id: str, holder: Holder) -> bool:
        name, rule = holder.resource, rules.get(holder.resource)
        unknown = rule is None and name not in now.by_resource and name not in before.resources
        if unknown and not holder.claim:
            return True  # the resource of another plugin
        if isinstance(rule, DirectRule):
            if name not in made:
                made[name] = _build_direct_resource(rule, now.snapshot)
            return made[name].device(device_id) is not None
        offer = now.offer_of(device_id)
        return offer is not None and offer.match.resource == name

    ids = _find_ids_to_check(before, now, changed)
    if touched:
        ids |= {device_id for device_id, holder in now.snapshot.held() if holder.resource in touched}
    if not ids:
        return before.not_offered
    return not_offered.update(before.not_offered, now.snapshot, ids, is_offered)


def _find_ids_to_check(before: Decision, now: Decision, changed: Changed) -> frozenset[str]:
    """The ids in use whose offer may have changed: ids with another pod, and ids of changed units and
    resources.

    A PCI function leaves its IOMMU group before it leaves the host. A PCI function that has left its group
    but not the host is in no unit, so its id is added separately. If a USB device was plugged in, the USB
    devices of pods are added, too, because one of them may have been at the same port.
    """
    holders, pending = now.snapshot.allocations.holders, now.snapshot.reservations.pending
    mostly = len(changed.rebuilt) + len(changed.rechecked) > len(holders) + len(pending)
    if mostly or len(now.by_resource) > len(before.by_resource):  # a new resource may lack devices in use
        return changed.held.union(holders, pending)
    old, new = before.snapshot.host, now.snapshot.host
    hosts = (new,) if old is new else (old, new)
    decided = (*changed.rebuilt, *changed.rechecked)
    inside = (each for unit in decided for host in hosts for each in units.find_ids(unit, host))
    usb = now.snapshot.loans if old.usb != new.usb else ()
    return changed.held.union(
        each
        for each in chain(new.changes_since(old).devices, inside, usb)
        if each in holders or each in pending
    )


def _group_offers(
    before: Mapping[ResourceName, ByUnit], differing: Iterable[Change]
) -> tuple[Mapping[ResourceName, ByUnit], dict[ResourceName, None]]:
    """The offers by resource after these changes, and the names of the changed resources."""
    touched: dict[ResourceName, dict[UnitId, tuple[Offer, ...]]] = {}
    for change in differing:
        for name in dict.fromkeys(offer.match.resource for offer in (*change.old, *change.new)):
            if name not in touched:
                touched[name] = dict(before.get(name, {}))
            by_unit = touched[name]
            by_unit.pop(change.unit, None)
            mine = tuple(offer for offer in change.new if offer.match.resource == name)
            if mine:
                by_unit[change.unit] = mine
    return ({**before, **touched} if touched else before), dict.fromkeys(touched)


def _update_resources(before: Resources, now: Decision, touched: Collection[ResourceName]) -> Resources:
    """All resources after this turn; only ``touched`` ones may differ, and unchanged ones are the same
    objects.

    A resource that is listed only because of a device in use is dropped when the pod releases the device. A
    resource of the KubeVirt CR, which is for all nodes, is listed as soon as this node has a device of it.
    """
    if not touched:
        return before
    rules = {ResourceName(rule.name): rule for rule in reversed(now.snapshot.spec.rules)}
    ours = {name for name, rule in rules.items() if name in before or not _is_of_cr(rule)}
    result = dict(before)
    for name in touched:
        if name in ours or name in now.by_resource or name in now.not_offered:
            fresh = _build_resource(name, rules.get(name), before.get(name), now)
            result[name] = before[name] if before.get(name) == fresh else fresh
        else:
            result.pop(name, None)
    return result


def _is_of_cr(rule: Rule) -> bool:
    return not isinstance(rule, DirectRule) and rule.permitted


def _build_resource(name: ResourceName, rule: Rule | None, old: Resource | None, now: Decision) -> Resource:
    held = now.not_offered.get(name, ())
    if isinstance(rule, DirectRule):
        found = _build_direct_resource(rule, now.snapshot)
        found = replace(found, devices=(*found.devices, *held)) if held else found
    else:
        empty = Resource(name, Kind.PCI if old is None else old.kind, via=_find_via(name, held, now.snapshot))
        found = _build_device_resource(empty, rule, now.by_resource.get(name, {}), held)
    if rule is None or rule.topology:
        return found
    return replace(found, devices=tuple(device._replace(numa=None) for device in found.devices))


def _find_via(name: ResourceName, held: Iterable[Device], snapshot: Snapshot) -> Via:
    """The API that allocated these devices in use, which no rule offers any more."""
    holders = (snapshot.allocations.holder_of(name, each.id) for each in held)
    by_claim = any(holder is not None and holder.claim for holder in holders)
    return Via.DRA if by_claim else Via.DEVICE_PLUGIN


def _build_direct_resource(rule: DirectRule, snapshot: Snapshot) -> Resource:
    """The resource of a rule for nodes or CDI devices; few nodes have one, so its module is imported here."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.resource(rule, snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.resource(rule, snapshot)


def _build_device_resource(
    empty: Resource, rule: DeviceRule | None, by_unit: ByUnit, held: tuple[Device, ...]
) -> Resource:
    offers = [offer for each in by_unit.values() for offer in each]
    rule = offers[0].match.rule if offers else rule
    devices = units.sort_devices([*held, *(offer.device for offer in offers)])
    if rule is None:
        return replace(empty, devices=devices)
    return Resource(empty.name, rule.kind, devices, rule.isolation, rule.iommufd, rule.cdi, rule.via)


def find_awaited(decision: Decision) -> frozenset[str]:
    """The PCI functions and mdevs whose release would make a device Healthy, or remove it from a list.

    Closing a device raises no event, so nodeagent polls these devices.
    """
    host = decision.snapshot.host
    waiting = (
        device.id
        for resource in decision.resources.values()
        for device in resource.devices
        if device.reason is not None and _is_ended_by_release(device.reason.code, host.device(device.id))
    )
    ids: set[str] = set()
    for device_id in waiting:
        host_device = host.device(device_id)
        members = host.devices_in(host_device.group) if host_device is not None else ()
        ids |= {device_id, *(member.id for member in members)}
        ids |= {vf for member in members if isinstance(member, PciFunction) for vf in member.vfs}
    return frozenset(ids)


def _is_ended_by_release(code: ReasonCode, host_device: HostDevice | None) -> bool:
    """False for a PCI function that does not respond on the bus: a release does not make it Healthy."""
    return code in _ENDS_BY_RELEASE and not (code is ReasonCode.GONE and isinstance(host_device, PciFunction))
