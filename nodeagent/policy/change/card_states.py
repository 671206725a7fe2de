# SPDX-License-Identifier: Apache-2.0
"""How each card stands before anything is decided: what exists on it, whose it is, what it is to have. Pure.

Own is what nodeagent may remove: made by it, or anything where the operator lets it adopt; never an
instance of an excluded type, nor one that a definition of mdevctl names, nor one whose type, or whether that
is wanted, is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from nodeagent.model.allocation import Holder
from nodeagent.model.desired import CardTypes, WantedType
from nodeagent.model.host import PciFunction
from nodeagent.model.plan import Existing, Instance
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.change import card_desired, cards, ownership
from nodeagent.policy.change.card_desired import CardDesired
from nodeagent.policy.change.cards import Card


@dataclass(frozen=True, slots=True)
class CardState:
    """A card before the deal.

    ``unread``: why not enough is known of it to make or remove anything. ``idle``: why nothing is wanted on
    it.
    """

    card: Card
    exists: tuple[Existing, ...]
    desired: CardDesired
    unread: str | None = None
    idle: str | None = None

    @property
    def left_alone(self) -> bool:
        """True if something is on the card that must stay: then nothing is made beside it.

        A definition goes beside what has its type: that is mdevctl's as a rule, as the definition is.
        """
        beside = self.desired.types if self.desired.definitions else ()
        return any(not each.own and each.instance.type_id not in beside for each in self.exists)

    def has(self, type_id: str) -> bool:
        """True if an own instance of the type exists."""
        return any(each.own and each.instance.type_id == type_id for each in self.exists)


def card_states(snapshot: Snapshot, listed: Sequence[WantedType]) -> tuple[CardState, ...]:
    """All cards in address order; ``listed`` is the node's list of types."""
    host, wanted = snapshot.host, snapshot.desired.mdevs
    every = cards.cards(host, snapshot.ledger)
    mdev_types = [mdev_type for card in every for mdev_type in card.types.values()]
    rules = [rule for card in every for rule in card_desired.rules_for(card, wanted.cards, host)]
    asked = (*listed, *(wish for rule in rules for wish in rule.types))
    apart = dict.fromkeys(
        card_desired.unclear(wanted, asked, mdev_types), "of a type whose name is not known"
    )
    shunned = card_desired.excluded(wanted, mdev_types)
    apart.update(dict.fromkeys(shunned, "excluded"))
    kept = card_desired.called(wanted.protected, mdev_types)
    ghosts = tuple(host.leaving)
    blurred = {function.address for function in host.functions.values() if _never_read(function)}
    return tuple(
        _state(
            card,
            card_desired.desired(card, wanted, listed, host, shunned),
            (*_present(card, snapshot, apart, kept), *_leaving(card, ghosts, snapshot)),
            _unread(card, wanted.cards, blurred),
            listed,
        )
        for card in every
    )


def _state(
    card: Card,
    desired: CardDesired,
    exists: tuple[Existing, ...],
    unread: str | None,
    listed: Sequence[WantedType],
) -> CardState:
    return CardState(card, exists, desired, unread, None if desired.types else _idle(card, desired, listed))


def _unread(card: Card, rules: Sequence[CardTypes], blurred: Set[str]) -> str | None:
    """Why too little is known of a card. ``blurred`` are functions of which nothing could be read."""
    if card.unread or card.address in blurred:
        return "its types could not be read"
    if blurred and any(rule.positions is not None for rule in rules):
        return f"its place among the GPUs is not known while {min(blurred)} cannot be read"
    return None


def _idle(card: Card, desired: CardDesired, listed: Sequence[WantedType]) -> str:
    """Why nothing is wanted on a card."""
    if not desired.shared:
        return "it is to be empty"
    if not listed:
        return "no type is wanted on this node"
    if card_desired.type_ids(listed, tuple(card.types.values())):
        return "what is wanted of it is excluded"
    if card.partial:
        return "which types it offers is not known while its VFs have one"
    return "it offers none of the wanted types"


def _never_read(function: PciFunction) -> bool:
    """True if not even its ids are known: then neither is its card, nor any GPU's place among the others."""
    return function.unreadable is not None and function.vendor is None


def _present(
    card: Card, snapshot: Snapshot, apart: Mapping[str, str], kept: Set[str]
) -> tuple[Existing, ...]:
    """What is on the card; ``apart`` is type → what sets it apart, ``kept`` types are not adopted."""
    wanted = snapshot.desired.mdevs
    defined = wanted.defined.union(each.uuid for each in wanted.definitions)

    def why(instance: Instance) -> str | None:
        if instance.type_id is None:
            return "of an unknown type"
        adopt = wanted.adopt and instance.type_id not in kept
        if instance.id in defined or not (adopt or made_here(instance, snapshot)):
            return "not ours"
        return apart.get(instance.type_id)

    return tuple(
        Existing(instance, why(instance), holder=_holder(instance, snapshot)) for instance in card.instances
    )


def _holder(instance: Instance, snapshot: Snapshot) -> Holder | None:
    """The pod that holds an instance, by its id or by its IOMMU group."""
    return groups.holder_of(snapshot.allocations, instance.id, instance.group)


def made_here(instance: Instance, snapshot: Snapshot) -> bool:
    """True if nodeagent made it: a VF does not show who set its type, the UUID of an mdev does."""
    if instance.vgpu:
        return snapshot.ledger.types.get(instance.id) == instance.type_id
    return ownership.owns(snapshot.machine_id, instance.parent, instance.type_id or "", instance.id)


def _leaving(card: Card, ghosts: Sequence[str], snapshot: Snapshot) -> list[Existing]:
    """Own instances whose removal is under way: only their ids can still be seen."""
    leaving = [
        Instance(ghost, parent.address, mdev_type.type_id)
        for ghost in ghosts
        for parent in card.parents
        for mdev_type in parent.types
        if not parent.vgpu and ownership.owns(snapshot.machine_id, parent.address, mdev_type.type_id, ghost)
    ]
    return [Existing(instance, holder=_holder(instance, snapshot), leaving=True) for instance in leaving]
