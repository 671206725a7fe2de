# SPDX-License-Identifier: Apache-2.0
"""Cards: physical functions that can be split, their instances with owners, and their desired types. Pure.

A card is a physical function with all its VFs; an mdev parent that is no PCI function (of a sample driver) is
also a card. Two kinds of split cards are treated alike: cards with mdevs, and cards with VFs of NVIDIA's
vendor-specific VFIO framework (``nvidia/current_vgpu_type``), in which each VF has at most one instance.

Own instances are the mdevs and vGPUs that nodeagent may remove, because nodeagent created them or the
operator lets nodeagent adopt those of others. nodeagent never removes instances of an excluded or unknown
vGPU type, instances of a type whose name is unknown (it may be an excluded type), and instances that mdevctl
defines.

The types in the Node's list are assigned to cards round-robin. Cards with a separate list in the
configuration or with definitions of mdevctl do not take part in the round-robin, and may have several types.
A definition of mdevctl names a parent and an mdev type; if the host cannot create the defined mdev, nodeagent
reports a problem and does not change the card.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property

from nodeagent.model.change import Instance, Ledger
from nodeagent.model.host import Host, MdevType, PciFunction
from nodeagent.model.ids import PciAddress, pci_address, pci_order
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CardTypes, MdevDefinition, MdevSpec, WantedType
from nodeagent.policy import groups
from nodeagent.policy.change import desired_types, ownership

_GPU_CLASSES = ("0300", "0302")
_UNMET = "its desired types cannot be created"
_RESERVED = "mdevctl creates the mdevs that are defined on this card"


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of instances: an mdev parent, or a VF that can have a vGPU type (``vgpu``)."""

    address: str
    types: tuple[MdevType, ...]
    vgpu: bool = False

    def available(self, type_id: str) -> int:
        """How many instances of the vGPU type can still be created on this parent; an unknown number counts
        as 0.
        """
        return sum(mdev_type.available or 0 for mdev_type in self.types if mdev_type.type_id == type_id)


@dataclass(frozen=True, slots=True)
class CardSpec:
    """The desired vGPU types of one card: type id → the entry of the list that names the type, first choice
    first.

    ``shared``: the types come from the list for the Node, of which the card gets one type (round-robin).
    ``definitions``: these instances only. ``as_is``: why nodeagent does not change the card; None if it may.
    ``unmet``: types in the card's list that the card does not support.
    """

    types: Mapping[str, WantedType] = field(default_factory=dict)
    shared: bool = False
    definitions: tuple[MdevDefinition, ...] = ()
    as_is: str | None = None
    unmet: tuple[WantedType, ...] = ()

    def count(self, type_id: str | None) -> int | None:
        """How many instances of the vGPU type are desired on the card; None means as many as fit."""
        wanted = self.types.get(type_id or "")
        return None if wanted is None else wanted.count


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class Card:
    """A physical function with its parents and instances, each in address order, and its desired types.

    ``before`` are vGPU types that the VFs of the card have listed since boot; a VF that has a type lists no
    other types. ``partial``: the card may support more types than are known, because a VF has had a type
    since boot. ``unread``: why nodeagent knows too little of the card to change it. ``idle``: why the card
    has no desired type.
    """

    address: str
    parents: tuple[Parent, ...]
    instances: tuple[Instance, ...] = ()
    before: tuple[MdevType, ...] = ()
    partial: bool = False
    spec: CardSpec = CardSpec()
    unread: str | None = None
    idle: str | None = None

    @cached_property
    def types(self) -> Mapping[str, MdevType]:
        """The known vGPU types of the card, by id: types that its parents list or have listed, and types of
        existing instances.
        """
        known: dict[str, MdevType] = {}
        for parent in self.parents:
            for mdev_type in parent.types:
                if mdev_type.type_id not in known or known[mdev_type.type_id].name is None:
                    known[mdev_type.type_id] = mdev_type
        for mdev_type in self.before:
            known.setdefault(mdev_type.type_id, mdev_type)
        for instance in self.instances:
            if instance.type_id is not None:
                known.setdefault(instance.type_id, MdevType(instance.type_id, instance.name, 0))
        return known

    @property
    def has_foreign(self) -> bool:
        """True if the card has instances that nodeagent may not remove: then it creates no others on the
        card.

        If definitions of mdevctl name the card, instances of a defined type do not count: mdevctl usually
        created them.
        """
        beside = self.spec.types if self.spec.definitions else ()
        return any(not each.own and each.type_id not in beside for each in self.instances)

    def room(self, type_id: str) -> int:
        """How many instances of the vGPU type can still be created on the card, according to the numbers that
        its parents show.
        """
        return sum(parent.available(type_id) for parent in self.parents)

    def count(self, type_id: str | None) -> int:
        """How many instances of the vGPU type exist on the card."""
        return sum(each.type_id == type_id for each in self.instances)


def find_cards(snapshot: Snapshot) -> tuple[Card, ...]:
    """All cards in address order, with their desired types; parents that are no PCI function come last."""
    host, wanted = snapshot.host, snapshot.spec.mdevs
    listed = desired_types.list_for_node(wanted, dict(snapshot.spec.labels))
    cards = _read_cards(host, snapshot.ledger)
    mdev_types = [mdev_type for card in cards for mdev_type in card.types.values()]
    rules = {card.address: find_rules(card, wanted.cards, host) for card in cards}
    asked = (*listed, *(each for fitting in rules.values() for rule in fitting for each in rule.types))
    excluded = desired_types.find_ids(wanted.excluded, mdev_types)
    unclear = desired_types.find_unclear(wanted, asked, mdev_types)
    foreign = dict.fromkeys(unclear, "of a type whose name is not known") | dict.fromkeys(
        excluded, "of an excluded type"
    )
    protected = desired_types.find_ids(wanted.protected, mdev_types)
    unread = {function.address for function in host.functions.values() if _is_unread(function)}
    found = []
    for card in cards:
        spec = _build_card_spec(card, wanted, rules[card.address], listed, host, excluded)
        instances = (
            *(_with_owner(each, snapshot, foreign, protected) for each in card.instances),
            *_find_leaving(card, snapshot),
        )
        idle = None if spec.types else _explain_idle(card, spec, listed)
        why = _explain_unread(card, wanted.cards, unread)
        found.append(replace(card, instances=instances, spec=spec, unread=why, idle=idle))
    return tuple(found)


# Parents and instances


def _read_cards(host: Host, ledger: Ledger) -> list[Card]:
    before: dict[str, dict[str, MdevType]] = {}
    for vf, ids in ledger.listed.items():
        known = {type_id: MdevType(type_id, ledger.names.get(type_id), 0) for type_id in ids}
        before.setdefault(find_card_address(host, vf), {}).update(known)
    parents: dict[str, list[Parent]] = {}
    instances: dict[str, list[Instance]] = {}
    for parent in _find_parents(host, ledger.names):
        parents.setdefault(find_card_address(host, parent.address), []).append(parent)
    for instance in _find_instances(host):
        instances.setdefault(find_card_address(host, instance.parent), []).append(instance)
    return [
        Card(
            address,
            tuple(sorted(parents.get(address, ()), key=lambda parent: address_key(parent.address))),
            tuple(sorted(instances.get(address, ()), key=lambda each: (address_key(each.parent), each.id))),
            tuple(before.get(address, {}).values()),
            any(each.vgpu and each.id not in ledger.listed for each in instances.get(address, ())),
        )
        for address in sorted({*parents, *instances}, key=address_key)
    ]


def find_card_address(host: Host, parent: str) -> str:
    """The card to which a parent belongs."""
    function = host.functions.get(PciAddress(parent))
    return parent if function is None or function.physfn is None else function.physfn


def address_key(address: str) -> tuple[bool, int, str]:
    """Sort key: PCI addresses first, in their order."""
    return (pci_address(address) is None, *pci_order(address))


def _find_parents(host: Host, vgpu_names: Mapping[str, str]) -> Iterator[Parent]:
    for address, types in host.mdev_parents.items():
        yield Parent(address, types)
    for function in filter(groups.is_vgpu_capable, host.functions.values()):
        present = function.vgpu_type
        if present is None:  # it can have one instance of any type that it lists
            types = tuple(MdevType(type_id, name or None, 1) for type_id, name in function.vgpu_types)
        else:
            known = dict(function.vgpu_types) | dict(vgpu_names)
            types = (MdevType(present, known.get(present), 0),)
        yield Parent(function.address, types, vgpu=True)


def _find_instances(host: Host) -> Iterator[Instance]:
    for mdev in host.mdevs.values():
        if mdev.parent is not None:
            dead = mdev.driver is None
            yield Instance(mdev.uuid, mdev.parent, mdev.type_id, mdev.group, mdev.type_name, dead)
    for function in host.functions.values():
        if groups.find_vgpu_type(function) is not None:
            address = function.address
            yield Instance(address, address, function.vgpu_type, function.group, vgpu=True)


def _is_unread(function: PciFunction) -> bool:
    """True if the vendor id of the function cannot be read: then the function may be a GPU, and the positions
    of GPUs are unknown.
    """
    return function.unreadable is not None and function.vendor is None


def _explain_unread(card: Card, rules: Sequence[CardTypes], unread: Set[str]) -> str | None:
    """Why too little is known of a card to change it, as a text; None if enough is known. ``unread`` are PCI
    functions of which nothing could be read.

    An instance whose parent is missing shows that the types of the parent were never read, or that the driver
    of the parent is being unbound.
    """
    parents = {parent.address for parent in card.parents}
    if card.address in unread or any(each.parent not in parents for each in card.instances):
        return "its vGPU types could not be read"
    if unread and any(rule.positions is not None for rule in rules):
        return f"its position in the list of GPUs is unknown while {min(unread)} cannot be read"
    return None


# Owners


def _with_owner(
    instance: Instance, snapshot: Snapshot, foreign: Mapping[str, str], protected: Set[str]
) -> Instance:
    """The instance for an mdev or vGPU, with its owner and the pod that uses it. ``foreign``: vGPU type → why
    nodeagent keeps instances of that type; ``protected``: types whose instances are not adopted.
    """
    wanted = snapshot.spec.mdevs
    defined = wanted.defined.union(each.uuid for each in wanted.definitions)
    adopted = wanted.adopt and instance.type_id not in protected
    why = foreign.get(instance.type_id or "")
    if instance.type_id is None:
        why = "of an unknown type"
    elif instance.id in defined or not (adopted or is_made_here(instance, snapshot)):
        why = "not created by nodeagent"
    holder = groups.find_holder(snapshot.allocations, instance.id, instance.group)
    return replace(instance, foreign=why, holder=holder)


def is_made_here(instance: Instance, snapshot: Snapshot) -> bool:
    """True if nodeagent created the instance: the UUID of an mdev shows that, for a VF the Ledger."""
    if instance.vgpu:
        return snapshot.ledger.types.get(instance.id) == instance.type_id
    return ownership.is_own_uuid(snapshot.machine_id, instance.parent, instance.type_id or "", instance.id)


def _find_leaving(card: Card, snapshot: Snapshot) -> Iterator[Instance]:
    """nodeagent's mdevs and vGPUs whose removal is in progress, so that only their ids are still visible."""
    for uuid in snapshot.host.leaving:
        for parent in card.parents:
            for type_id in (each.type_id for each in parent.types if not parent.vgpu):
                if ownership.is_own_uuid(snapshot.machine_id, parent.address, type_id, uuid):
                    holder = groups.find_holder(snapshot.allocations, uuid, None)
                    yield Instance(uuid, parent.address, type_id, holder=holder, leaving=True)


# Desired types


def _build_card_spec(
    card: Card,
    wanted: MdevSpec,
    rules: Sequence[CardTypes],
    listed: Sequence[WantedType],
    host: Host,
    excluded: Set[str],
) -> CardSpec:
    """The desired types of a card, from the ``rules`` that match the card and from the types ``listed`` for
    the Node.
    """
    defined = [each for each in wanted.definitions if find_card_address(host, each.parent) == card.address]
    if defined:
        met = [each for each in defined if find_flaw(each, host, excluded) is None]
        if not met:
            return CardSpec(as_is=_UNMET)
        counts = Counter(each.type_id for each in met)
        types = {type_id: WantedType(type_id, count) for type_id, count in counts.items()}
        return CardSpec(types, definitions=tuple(met))
    if any(find_card_address(host, each) == card.address for each in wanted.reserved):
        return CardSpec(as_is=_RESERVED)
    if rules:
        return _apply_rules(rules, card, excluded)
    return CardSpec(_type_ids(listed, card, excluded), shared=True)


def _type_ids(wanted: Sequence[WantedType], card: Card, excluded: Set[str]) -> dict[str, WantedType]:
    matched = desired_types.match_by_id(wanted, tuple(card.types.values()))
    return {type_id: each for type_id, each in matched.items() if type_id not in excluded}


def find_flaw(definition: MdevDefinition, host: Host, excluded: Set[str]) -> str | None:
    """Why this host cannot create the mdev of a definition, as a text; None if it can, or the mdev exists."""
    parent, type_id = definition.parent, definition.type_id
    mdev_types = host.mdev_parents.get(parent)
    if mdev_types is None:
        why = "offers no mediated devices" if PciAddress(parent) in host.functions else "is not on this node"
        return f"has the parent {parent}, which {why}"
    if all(mdev_type.type_id != type_id for mdev_type in mdev_types):
        return f"has the type {type_id}, which {parent} does not offer"
    if type_id in excluded:
        return f"has the type {type_id}, which is excluded"
    there = host.mdevs.get(definition.uuid)
    if there is None or there.type_id is None or (there.parent, there.type_id) == (parent, type_id):
        return None
    return f"has the type {type_id} on {parent}, but exists as {there.type_id} on {there.parent}"


def _apply_rules(rules: Sequence[CardTypes], card: Card, excluded: Set[str]) -> CardSpec:
    """The desired types according to the last matching rule that has no types, or has a type that the card
    supports.

    A rule may therefore list the types of several card models with the same ids, as NVIDIA's example file
    does. But an earlier rule without types does not empty the card if the last rule has only types that the
    card does not support.
    """
    for rule in reversed(rules):
        chosen = _type_ids(rule.types, card, excluded)
        if chosen:
            unmet = (each for each in rule.types if not _type_ids((each,), card, excluded))
            return CardSpec(chosen, unmet=tuple(unmet))
        if not rule.types:
            break
    if not rules[-1].types:
        return CardSpec()
    return CardSpec(as_is=_UNMET, unmet=tuple(each for rule in rules for each in rule.types))


def find_rules(card: Card, rules: Sequence[CardTypes], host: Host) -> list[CardTypes]:
    """The rules that match the card, in the order in which NVIDIA's vgpu-device-manager applies them.

    The position of a GPU is its index in the list of NVIDIA's display and 3D controllers by address, without
    VFs.
    """
    function = host.functions.get(PciAddress(card.address))
    if function is None or not rules:
        return []
    gpus = sorted((each.address for each in host.functions.values() if _is_gpu(each)), key=address_key)
    if function.address not in gpus:
        return []
    return [rule for rule in rules if _is_match(rule, function, gpus.index(function.address))]


def _is_gpu(function: PciFunction) -> bool:
    is_display = (function.pci_class or "")[:4] in _GPU_CLASSES
    return function.vendor == "10de" and is_display and function.physfn is None


def _is_match(rule: CardTypes, function: PciFunction, position: int) -> bool:
    if rule.positions is not None and position not in rule.positions:
        return False
    ids = (function.vendor, function.device, function.subsystem_vendor, function.subsystem_device)
    return not rule.filters or any(
        all(want is None or want == has for want, has in zip(each, ids, strict=True)) for each in rule.filters
    )


def _explain_idle(card: Card, spec: CardSpec, listed: Sequence[WantedType]) -> str:
    """Why a card has no desired type, as a text."""
    if not spec.shared:
        return "its list of vGPU types is empty"
    if not listed:
        return "no vGPU types are configured for this Node"
    if desired_types.match_by_id(listed, tuple(card.types.values())):
        return "its configured types are excluded"
    if card.partial:
        return "the driver does not show which vGPU types the card offers while its VFs have a vGPU type"
    return "the card offers none of the configured vGPU types"
