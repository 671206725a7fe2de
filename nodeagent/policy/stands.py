# SPDX-License-Identifier: Apache-2.0
"""How each card stands before anything is decided: what exists on it, whose it is, what it is to have. Pure.

Own is what nodeagent may remove: made by it, or anything where the operator lets it adopt; never an
instance of an excluded type, nor one that a definition of mdevctl names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nodeagent.model.allocation import Holder
from nodeagent.model.desired import MdevsWanted, WantedType
from nodeagent.model.host import Host
from nodeagent.policy import cards, groups, ownership, wishes
from nodeagent.policy.cards import Card, Instance
from nodeagent.policy.wishes import Wish


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan depends on besides the host and the wishes.

    ``in_use`` holds UUIDs and VF addresses that something on this host has open, or of which that is not
    known. ``failed`` says what the kernel answered to an attempt that waits for its next try.
    ``made`` is VF → vGPU type that nodeagent itself set: a VF tells nobody who set its type.
    ``vgpu_names`` is vGPU type → name, as far as any VF has ever listed it since boot.
    """

    machine_id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    holders: Mapping[str, Holder] = field(default_factory=dict)
    holders_known: bool = False
    in_use: frozenset[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    vgpu_names: Mapping[str, str] = field(default_factory=dict)

    def holder(self, instance: Instance) -> str | None:
        """The pod that holds an instance, by its id or by its IOMMU group."""
        found = groups.holder_of(self.holders, instance.id, instance.group)
        return None if found is None else str(found)


@dataclass(frozen=True, slots=True)
class Existing:
    """An instance on a card; ``own`` means that nodeagent may remove it."""

    instance: Instance
    own: bool
    holder: str | None = None
    leaving: bool = False  # its removal is under way already, and waits


@dataclass(frozen=True, slots=True)
class Stand:
    """A card before the deal."""

    card: Card
    exists: tuple[Existing, ...]
    wish: Wish

    @property
    def left_alone(self) -> bool:
        """True if something is on the card that is not ours: then nothing is made beside it.

        A definition goes beside what has its type: that is mdevctl's as a rule, as the definition is.
        """
        beside = self.wish.types if self.wish.definitions else ()
        return any(not each.own and each.instance.type_id not in beside for each in self.exists)

    def has(self, type_id: str) -> bool:
        """True if an own instance of the type exists."""
        return any(each.own and each.instance.type_id == type_id for each in self.exists)


def stands(host: Host, wanted: MdevsWanted, listed: Sequence[WantedType], basis: Basis) -> tuple[Stand, ...]:
    """All cards in address order; ``listed`` is the node's list of types."""
    found = cards.cards(host, basis.vgpu_names)
    shunned = wishes.excluded(wanted, [kind for card in found for kind in card.types.values()])
    ghosts = tuple(host.leaving)
    return tuple(
        Stand(
            card,
            (*_present(card, wanted, basis, shunned), *_leaving(card, ghosts, basis)),
            wishes.wish(card, wanted, listed, host, shunned, basis.vgpu_names),
        )
        for card in found
    )


def _present(card: Card, wanted: MdevsWanted, basis: Basis, shunned: frozenset[str]) -> tuple[Existing, ...]:
    defined = wanted.defined.union(each.uuid for each in wanted.definitions)
    return tuple(
        Existing(
            instance,
            own=instance.type_id not in shunned
            and instance.id not in defined
            and (wanted.adopt or _made_here(instance, basis)),
            holder=basis.holder(instance),
        )
        for instance in card.instances
    )


def _made_here(instance: Instance, basis: Basis) -> bool:
    if instance.type_id is None:
        return False
    if instance.vgpu:
        return basis.made.get(instance.id) == instance.type_id
    return ownership.owns(basis.machine_id, instance.parent, instance.type_id, instance.id)


def _leaving(card: Card, ghosts: Sequence[str], basis: Basis) -> list[Existing]:
    """Own instances whose removal is under way: only their ids can still be seen."""
    found = [
        Instance(ghost, parent.address, kind.type_id)
        for ghost in ghosts
        for parent in card.parents
        for kind in parent.types
        if not parent.vgpu and ownership.owns(basis.machine_id, parent.address, kind.type_id, ghost)
    ]
    return [Existing(instance, own=True, holder=basis.holder(instance), leaving=True) for instance in found]
