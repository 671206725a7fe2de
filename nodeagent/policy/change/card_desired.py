# SPDX-License-Identifier: Apache-2.0
"""Which types are wanted on which card: names against types, labels against nodes, one list per card. Pure.

The lists of all node overrides that fit replace the general list; their order, and the order inside each,
is the operator's. Cards with a list of their own are left out of the round. A definition of mdevctl names
its parent and its type by itself, so nothing else can stand in for them; one that cannot be met is a
problem, and takes nothing from its card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nodeagent.model.desired import CardTypes, MdevDefinition, MdevsWanted, WantedType
from nodeagent.model.host import Host, MdevType, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.policy import naming
from nodeagent.policy.change.cards import Card, card_of, order

_GPU_CLASSES = ("0300", "0302")
_UNMET = "what is asked of it cannot be made"
_LEFT = "mdevctl is to make what is defined on it"
_MIG_SUFFIX = re.compile(r"(MEALL|(NO)?ME|GFX)$")


def _met(
    defined: Sequence[MdevDefinition], host: Host, shunned: frozenset[str]
) -> tuple[MdevDefinition, ...]:
    """Those that the host can meet, or has met: these come first. ``shunned`` are the excluded type ids."""
    good = (definition for definition in defined if _flaw(definition, host, shunned) is None)
    return tuple(sorted(good, key=lambda definition: definition.uuid not in host.mdevs))


def unmet(defined: Sequence[MdevDefinition], host: Host, shunned: frozenset[str]) -> list[str]:
    """What is wrong with the others."""
    judged = ((definition, _flaw(definition, host, shunned)) for definition in defined)
    return [f"the definition {definition.uuid} {flaw}" for definition, flaw in judged if flaw is not None]


def _flaw(definition: MdevDefinition, host: Host, shunned: frozenset[str]) -> str | None:
    parent, type_id = definition.parent, definition.type_id
    mdev_types = host.mdev_parents.get(parent)
    if mdev_types is None:
        why = "offers no mediated devices" if PciAddress(parent) in host.functions else "is not on this node"
        return f"names the parent {parent}, which {why}"
    if all(mdev_type.type_id != type_id for mdev_type in mdev_types):
        return f"asks for {type_id}, which {parent} does not offer"
    if type_id in shunned:
        return f"asks for {type_id}, which is excluded"
    there = host.mdevs.get(definition.uuid)
    if there is None or there.type_id is None or (there.parent, there.type_id) == (parent, type_id):
        return None
    return f"asks for {type_id} on {parent}, and it exists as {there.type_id} on {there.parent}"


@dataclass(frozen=True, slots=True)
class CardDesired:
    """What one card is to have: type id → how many (None: all that fit), first choice first.

    ``shared``: the list is the node's, and the round decides. ``definitions``: these instances only.
    ``as_is`` says why nothing is made or removed, else None; ``unmet`` is what a list of its own asks for
    in vain.
    """

    types: Mapping[str, int | None]
    shared: bool = True
    definitions: tuple[MdevDefinition, ...] = ()
    as_is: str | None = None
    unmet: tuple[WantedType, ...] = ()


def names(wanted: WantedType, mdev_type: MdevType) -> bool:
    """True if the wish means this type."""
    if wanted.short:
        return bool(mdev_type.name) and (mdev_type.name or "").split()[-1:] == [wanted.name]
    return naming.type_called(wanted.name) in naming.type_names(mdev_type.type_id, mdev_type.name)


def for_node(wanted: MdevsWanted, labels: Mapping[str, str]) -> tuple[WantedType, ...]:
    """The list for a node with these labels, without doubles."""
    fitting = [node for node in wanted.nodes if all(labels.get(key) == value for key, value in node.labels)]
    override = [wanted_type for node in fitting for wanted_type in node.types]
    return tuple(dict.fromkeys(override or wanted.types))


def type_ids(wanted: Iterable[WantedType], mdev_types: Sequence[MdevType]) -> dict[str, int | None]:
    """Type id → count in the order of the wishes; the first wish that means a type counts."""
    counts: dict[str, int | None] = {}
    for wish in wanted:
        for mdev_type in _meant(wish, mdev_types):
            counts.setdefault(mdev_type.type_id, wish.count)
    return counts


def _meant(wanted: WantedType, mdev_types: Sequence[MdevType]) -> list[MdevType]:
    """The types that a wish means; a MIG suffix that no name has is dropped, as NVIDIA's tool does."""
    meant = [mdev_type for mdev_type in mdev_types if names(wanted, mdev_type)]
    plain = _MIG_SUFFIX.sub("", wanted.name) if wanted.short else wanted.name
    if meant or plain == wanted.name:
        return meant
    return _meant(replace(wanted, name=plain), mdev_types)


def excluded(wanted: MdevsWanted, mdev_types: Iterable[MdevType]) -> frozenset[str]:
    """The ids of types that are neither made nor removed."""
    return called(wanted.excluded, mdev_types)


def called(type_names: Iterable[str], mdev_types: Iterable[MdevType]) -> frozenset[str]:
    """The ids of the types that are called by one of these names or ids."""
    wishes = [WantedType(name) for name in type_names]
    return frozenset(
        mdev_type.type_id for mdev_type in mdev_types if any(names(each, mdev_type) for each in wishes)
    )


def unclear(
    wanted: MdevsWanted, asked: Sequence[WantedType], mdev_types: Sequence[MdevType]
) -> frozenset[str]:
    """The vGPU types of which it is not known whether they are wanted or excluded, without their names.

    So it is while anything asked for or excluded is called by a name that no known type has.
    """
    called = (*asked, *map(WantedType, wanted.excluded))
    by_name = (each for each in called if each.short or not each.name.removeprefix("nvidia-").isdecimal())
    if all(_meant(each, mdev_types) for each in by_name):
        return frozenset()
    return frozenset(
        mdev_type.type_id
        for mdev_type in mdev_types
        if mdev_type.name is None and mdev_type.type_id.isdecimal()
    )


def desired(
    card: Card, wanted: MdevsWanted, listed: Sequence[WantedType], host: Host, shunned: frozenset[str]
) -> CardDesired:
    """What the card is to have; ``listed`` is the node's list, ``shunned`` the excluded type ids."""
    defined = tuple(each for each in wanted.definitions if card_of(host, each.parent) == card.address)
    if defined:
        return _defined(_met(defined, host, shunned))
    if any(card_of(host, each) == card.address for each in wanted.reserved):
        return CardDesired({}, shared=False, as_is=_LEFT)
    mdev_types = tuple(card.types.values())
    rules = rules_for(card, wanted.cards, host)
    if rules:
        return _own_list(rules, mdev_types, shunned)
    return CardDesired(_without(shunned, type_ids(listed, mdev_types)))


def _defined(met: tuple[MdevDefinition, ...]) -> CardDesired:
    if not met:
        return CardDesired({}, shared=False, as_is=_UNMET)
    return CardDesired({met[0].type_id: None}, shared=False, definitions=met)


def _own_list(
    rules: Sequence[CardTypes], mdev_types: Sequence[MdevType], shunned: frozenset[str]
) -> CardDesired:
    """The last rule counts that asks for nothing, or for what the card offers.

    So one entry may be for several models with the same ids, as in NVIDIA's own file. But what only empties
    a card is not carried out when the last rule asks for something in vain.
    """
    chosen: dict[str, int | None] = {}
    for rule in reversed(rules):
        chosen = _without(shunned, type_ids(rule.types, mdev_types))
        if chosen or not rule.types:
            break
    if rules[-1].types and not chosen:
        return CardDesired(
            {}, shared=False, as_is=_UNMET, unmet=tuple(wish for rule in rules for wish in rule.types)
        )
    return CardDesired(chosen, shared=False)


def _without(shunned: frozenset[str], chosen: Mapping[str, int | None]) -> dict[str, int | None]:
    return {type_id: count for type_id, count in chosen.items() if type_id not in shunned}


def rules_for(card: Card, rules: Sequence[CardTypes], host: Host) -> list[CardTypes]:
    """The rules that fit the card; NVIDIA's vgpu-device-manager applies its entries in turn."""
    function = host.functions.get(PciAddress(card.address))
    if function is None or not rules:
        return []
    position = _gpus(host).get(function.address)
    return [rule for rule in rules if _fits(rule, function, position)]


def _gpus(host: Host) -> dict[str, int]:
    """Address → position among NVIDIA's display and 3D controllers that are no VFs."""
    gpus = (
        function.address
        for function in host.functions.values()
        if function.vendor == "10de"
        and (function.pci_class or "")[:4] in _GPU_CLASSES
        and function.physfn is None
    )
    return {address: position for position, address in enumerate(sorted(gpus, key=order))}


def _fits(rule: CardTypes, function: PciFunction, position: int | None) -> bool:
    if position is None or (rule.positions is not None and position not in rule.positions):
        return False
    ids = (function.vendor, function.device, function.subsystem_vendor, function.subsystem_device)
    return not rule.filters or any(
        all(want is None or want == has for want, has in zip(each, ids, strict=True)) for each in rule.filters
    )
