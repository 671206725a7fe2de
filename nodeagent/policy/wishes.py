# SPDX-License-Identifier: Apache-2.0
"""Which types are wanted on which card: names against types, labels against nodes, one list per card. Pure.

The lists of all node overrides that fit replace the general list; their order, and the order inside each,
is the operator's. Cards with a list of their own are left out of the round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nodeagent.model.desired import CardTypes, MdevDefinition, MdevsWanted, WantedType
from nodeagent.model.host import Host, MdevType, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.policy import definitions, naming
from nodeagent.policy.cards import Card, card_of, order

_GPU_CLASSES = ("0300", "0302")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one card is to have: type id → how many (None: all that fit), first choice first.

    ``shared``: the list is the node's, and the round decides. ``definitions``: these instances only.
    ``as_is``: what is asked of the card cannot be made, so nothing is made or removed.
    """

    types: Mapping[str, int | None]
    shared: bool = True
    definitions: tuple[MdevDefinition, ...] = ()
    as_is: bool = False


def names(wanted: WantedType, kind: MdevType) -> bool:
    """True if the wish means this type."""
    if wanted.short:
        return bool(kind.name) and (kind.name or "").split()[-1:] == [wanted.name]
    return naming.type_called(wanted.name) in naming.type_names(kind.type_id, kind.name)


def for_node(wanted: MdevsWanted, labels: Mapping[str, str]) -> tuple[WantedType, ...]:
    """The list for a node with these labels, without doubles."""
    fitting = [each for each in wanted.nodes if all(labels.get(key) == value for key, value in each.labels)]
    override = [kind for each in fitting for kind in each.types]
    return tuple(dict.fromkeys(override or wanted.types))


def type_ids(wanted: Iterable[WantedType], kinds: Sequence[MdevType]) -> dict[str, int | None]:
    """Type id → count in the order of the wishes; the first wish that means a type counts."""
    found: dict[str, int | None] = {}
    for each in wanted:
        for kind in kinds:
            if names(each, kind):
                found.setdefault(kind.type_id, each.count)
    return found


def excluded(wanted: MdevsWanted, kinds: Iterable[MdevType]) -> frozenset[str]:
    """The ids of types that are neither made nor removed."""
    called = [WantedType(name) for name in wanted.excluded]
    return frozenset(kind.type_id for kind in kinds if any(names(each, kind) for each in called))


def wish(
    card: Card, wanted: MdevsWanted, listed: Sequence[WantedType], host: Host, shunned: frozenset[str]
) -> Wish:
    """What the card is to have; ``listed`` is the node's list, ``shunned`` the excluded type ids."""
    defined = tuple(each for each in wanted.definitions if card_of(host, each.parent) == card.address)
    if defined:
        return _defined(definitions.met(defined, host))
    kinds = tuple(card.types.values())
    own = own_list(card, wanted.cards, host)
    chosen = type_ids(listed if own is None else own.types, kinds)
    return Wish({each: count for each, count in chosen.items() if each not in shunned}, shared=own is None)


def _defined(met: tuple[MdevDefinition, ...]) -> Wish:
    return Wish({each.type_id: None for each in met[:1]}, shared=False, definitions=met, as_is=not met)


def own_list(card: Card, rules: Sequence[CardTypes], host: Host) -> CardTypes | None:
    """The last rule that fits the card, as NVIDIA's vgpu-device-manager applies its entries in turn."""
    function = host.functions.get(PciAddress(card.address))
    if function is None or not rules:
        return None
    position = _gpus(host).get(function.address)
    fitting = (rule for rule in reversed(rules) if _fits(rule, function, position))
    return next(fitting, None)


def _gpus(host: Host) -> dict[str, int]:
    """Address → position among NVIDIA's display and 3D controllers that are no VFs."""
    found = (
        function.address
        for function in host.functions.values()
        if function.vendor == "10de"
        and (function.pci_class or "")[:4] in _GPU_CLASSES
        and function.physfn is None
    )
    return {address: position for position, address in enumerate(sorted(found, key=order))}


def _fits(rule: CardTypes, function: PciFunction, position: int | None) -> bool:
    if position is None or (rule.positions is not None and position not in rule.positions):
        return False
    ids = (function.vendor, function.device, function.subsystem_vendor, function.subsystem_device)
    return not rule.filters or any(
        all(want is None or want == has for want, has in zip(each, ids, strict=True)) for each in rule.filters
    )
