# SPDX-License-Identifier: Apache-2.0
"""One turn: what changed between two sets of Facts, and the Resources that follow. Pure.

Only units (IOMMU groups) that changed are decided anew; the result equals a decision from scratch, but for
two things that are remembered on purpose: what was offered stays listed while it exists, and a resource
that was served stays, if need be with an empty list. New wishes of the operator end both memories; only
what a pod holds stays until it is released. What changed in a Host is found by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from nodeagent.model.desired import MdevRule, NodeRule, PciRule, Rule
from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Device, Kind, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import shares, units
from nodeagent.policy.offer.matches import Match
from nodeagent.policy.offer.units import Offer, Unit

ByUnit = Mapping[Unit, tuple[Offer, ...]]
NOTHING: Mapping[str, Match] = {}
Extras = Mapping[ResourceName, tuple[Device, ...]]


class Change(NamedTuple):
    """A unit whose offers differ from those of the turn before."""

    unit: Unit
    old: tuple[Offer, ...]
    new: tuple[Offer, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The result of a turn, and what the next one builds on."""

    snapshot: Snapshot
    offers: ByUnit = field(default_factory=dict)
    by_resource: Mapping[ResourceName, ByUnit] = field(default_factory=dict)
    matched: Mapping[str, Match] = field(default_factory=dict)
    extras: Extras = field(default_factory=dict)  # held under a resource that would not list them
    resources: Mapping[ResourceName, Resource] = field(default_factory=dict)

    def offer_of(self, device_id: str) -> Offer | None:
        """The offer whose Device has this id, or None."""
        found = self.offer_with(device_id)
        return found if found is not None and found.device.id == device_id else None

    def offer_with(self, device_id: str) -> Offer | None:
        """The offer of a Device that stands for this part, maybe among others; None if there is none."""
        if device_id not in self.matched:
            return None
        host_device = self.snapshot.host.device(device_id)
        found = self.offers.get(units.unit_of(host_device), ()) if host_device is not None else ()
        return next((offer for offer in found if device_id in offer.host_devices), None)


def first(snapshot: Snapshot, matched: Mapping[str, Match] = NOTHING) -> Decision:
    """The outcome of facts with nothing before them, unless parts of the host are known to be ``matched``."""
    return following(Decision(Snapshot(Host(), snapshot.desired, snapshot.names), matched=matched), snapshot)


def following(before: Decision, snapshot: Snapshot) -> Decision:
    """The outcome of ``snapshot`` after ``before``."""
    touched: set[ResourceName] = set()
    remembered = _remembered(before, snapshot.host)
    if (before.snapshot.desired, before.snapshot.names) != (snapshot.desired, snapshot.names):
        touched |= before.resources.keys()
        remembered = remembered if before.snapshot.desired == snapshot.desired else {}
        before = _anew(before, snapshot)
    changes = _changes(before, snapshot, remembered)
    by_resource = dict(before.by_resource)
    for change in changes:
        touched |= _replace_part(by_resource, change)
    decided = _offers(before.offers, changes) if changes else before.offers
    decision = Decision(
        snapshot, decided, by_resource, _matches(before.matched, changes) if changes else before.matched
    )
    decision = replace(decision, extras=_extras(before, decision))
    touched |= _differing(before.extras, decision.extras)
    return replace(decision, resources=_resources(before, decision, touched))


def _remembered(before: Decision, host: Host) -> Mapping[str, Match]:
    """The claims of before; another device that has come to the same address has none."""
    old = before.snapshot.host
    changes = host.changes_since(old)
    matched = before.matched.keys()
    replaced = {each for each in changes.functions & matched if not _same_device(each, old, host)}
    lost = replaced | {each for each in changes.mdevs & matched if host.device(each) is None}
    if not lost:
        return before.matched
    return {device_id: match for device_id, match in before.matched.items() if device_id not in lost}


def _same_device(address: PciAddress, old: Host, new: Host) -> bool:
    """False if the device has gone, or another one is there now."""
    before, now = old.functions.get(address), new.functions.get(address)
    if now is None:
        return False
    return before is None or before.inode is None or now.inode is None or before.inode == now.inode


def _anew(before: Decision, snapshot: Snapshot) -> Decision:
    """A beginning for new wishes or new names; new texts of pci.ids alone make nobody forget anything."""
    begin = Decision(Snapshot(Host(), snapshot.desired, snapshot.names))
    if before.snapshot.desired == snapshot.desired:
        served: dict[ResourceName, ByUnit] = {name: {} for name in before.by_resource}
        return replace(begin, resources=before.resources, by_resource=served)
    held = {holder.resource for holder in snapshot.allocations.holders.values()}
    kept = {name: found for name, found in before.resources.items() if name in held}
    return replace(begin, resources=kept)


def _changes(before: Decision, snapshot: Snapshot, matched: Mapping[str, Match]) -> list[Change]:
    found = (
        Change(unit, before.offers.get(unit, ()), units.decide(unit, snapshot, matched))
        for unit in changed_units(before.snapshot, snapshot)
    )
    return [change for change in found if change.old != change.new]


def _offers(before: ByUnit, changes: Iterable[Change]) -> ByUnit:
    result = dict(before)
    for change in changes:
        result[change.unit] = change.new
        if not change.new:
            del result[change.unit]
    return result


def _matches(before: Mapping[str, Match], changes: Iterable[Change]) -> Mapping[str, Match]:
    """All old ones go before the new ones come: a part may have moved from one unit to another.

    Most changes are of health alone, and then nothing is copied: a turn must not cost more on a large host.
    """
    changed = [(_matched_in(change.old), _matched_in(change.new)) for change in changes]
    if all(old == new and new.items() <= before.items() for old, new in changed):
        return before
    result = dict(before)
    for old, _ in changed:
        for device_id in old:
            result.pop(device_id, None)
    for _, new in changed:
        result |= new
    return result


def _matched_in(found: Iterable[Offer]) -> dict[str, Match]:
    return {device_id: offer.match for offer in found for device_id in offer.host_devices}


def changed_units(before: Snapshot, now: Snapshot) -> Iterable[Unit]:
    """The units on which something differs between two Facts of the same Desired."""
    if (
        before.host.nodes != now.host.nodes
        or before.host.iommu != now.host.iommu
        or before.host.numa_nodes != now.host.numa_nodes
    ):
        return units.units(now.host) | units.units(before.host)
    changed = _changed_in_host(before.host, now.host)
    if before.allocations.complete != now.allocations.complete:
        # Whether holders are known matters only where something is open.
        changed |= {units.unit_of(each) for each in now.host.functions.values() if groups.in_use(each)}
    ids = set(before.reservations.settling ^ now.reservations.settling)
    old, new = before.allocations.holders, now.allocations.holders
    if old is not new:
        ids |= {key for key, _ in old.items() ^ new.items()}
    return changed | _units_of_ids(ids, now.host)


def _changed_in_host(before: Host, now: Host) -> set[Unit]:
    changes = now.changes_since(before)
    ids: Iterable[str] = (*changes.functions, *changes.mdevs)
    versions = (host.device(each) for host in (before, now) for each in ids)
    return {
        units.unit_of(host_device) for host_device in versions if host_device is not None
    } | changes.groups


def _units_of_ids(ids: Iterable[str], host: Host) -> set[Unit]:
    found: set[Unit] = set()
    for device_id in ids:
        host_device = host.device(device_id)
        if host_device is not None:
            found.add(units.unit_of(host_device))
        elif device_id.isdecimal():  # all of a group (groups.whole)
            found.add(GroupNumber(int(device_id)))
    return found


def _replace_part(by_resource: dict[ResourceName, ByUnit], change: Change) -> set[ResourceName]:
    """Put the new offers of a unit in the place of the old; return the resources that this touches."""
    names = {offer.match.resource for offer in (*change.old, *change.new)}
    for name in names:
        by_unit = dict(by_resource.get(name, {}))
        by_unit.pop(change.unit, None)
        mine = tuple(offer for offer in change.new if offer.match.resource == name)
        if mine:
            by_unit[change.unit] = mine
        by_resource[name] = by_unit
    return names


def _extras(before: Decision, now: Decision) -> Extras:
    """Held devices that their resource would not list any more, by resource."""
    rules = now.snapshot.desired.rules
    names = {*now.by_resource, *before.resources, *(ResourceName(rule.name) for rule in rules)}
    share_rules = {rule.name: rule for rule in rules if isinstance(rule, NodeRule)}
    found: dict[ResourceName, tuple[Device, ...]] = {}
    for device_id, holder in now.snapshot.allocations.holders.items():
        name = holder.resource
        offer, rule = now.offer_of(device_id), share_rules.get(name)
        listed = shares.is_share(rule, device_id) if rule else offer and offer.match.resource == name
        if name in names and not listed:
            device = units.held_elsewhere(device_id, holder, now.snapshot)
            found[name] = (*found.get(name, ()), device)
    return found


def _differing(before: Extras, now: Extras) -> set[ResourceName]:
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


def _resources(
    before: Decision, now: Decision, touched: Set[ResourceName]
) -> Mapping[ResourceName, Resource]:
    """All resources; what did not change is the same object as before.

    One that only a pod kept alive, which has let go, is not among them any more.
    """
    rules = {ResourceName(rule.name): rule for rule in reversed(now.snapshot.desired.rules)}
    served = rules.keys() | now.by_resource.keys() | now.extras.keys()
    result: dict[ResourceName, Resource] = {}
    for name in dict.fromkeys((*before.resources, *reversed(rules), *now.by_resource)):
        if name in served:
            result[name] = _resource(name, rules.get(name), before, now, name in touched)
    return result


def _resource(
    name: ResourceName, rule: Rule | None, before: Decision, now: Decision, touched: bool
) -> Resource:
    old = before.resources.get(name)
    if isinstance(rule, NodeRule):
        touched |= (rule.path in before.snapshot.host.nodes) != (rule.path in now.snapshot.host.nodes)
    if old is not None and not touched:
        return old
    extras = now.extras.get(name, ())
    if isinstance(rule, NodeRule):
        fresh = shares.resource(rule, now.snapshot.host.nodes)
        fresh = replace(fresh, devices=(*fresh.devices, *extras))
    else:
        kind = old.kind if old is not None else Kind.PCI
        fresh = _vfio_resource(Resource(name, kind), rule, now.by_resource.get(name, {}), extras)
    return old if old is not None and fresh == old else fresh


def _vfio_resource(
    plain: Resource, rule: PciRule | MdevRule | None, by_unit: ByUnit, extras: tuple[Device, ...]
) -> Resource:
    found = [offer for each in by_unit.values() for offer in each]
    rule = found[0].match.rule if found else rule
    plain = replace(plain, devices=units.in_order([*extras, *(offer.device for offer in found)]))
    if rule is None:
        return plain
    kind = Kind.MDEV if isinstance(rule, MdevRule) else Kind.PCI
    return replace(plain, kind=kind, isolation=rule.isolation, iommufd=rule.iommufd, cdi=rule.cdi)
