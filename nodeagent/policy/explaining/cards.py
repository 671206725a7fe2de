# SPDX-License-Identifier: Apache-2.0
"""A card that is split: its types, what still fits, what exists on it, and who made that. Pure.

Reads what the Plan reads, and plans nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from nodeagent.model.plan import Existing, Instance
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import card_desired, card_states
from nodeagent.policy.change.card_states import CardState

OURS, MDEVCTL, OTHERS = "nodeagent", "mdevctl", "others"


class CardType(NamedTuple):
    """A type of mdevs or vGPUs: how many of it exist on the card, and how many more fit at the most."""

    id: str
    name: str | None
    instances: int
    room: int


class CardInstance(NamedTuple):
    """What exists on the card, and who made it: ``OURS``, ``MDEVCTL``, ``OTHERS``, or None: not known."""

    instance: Instance
    made_by: str | None
    holder: str | None
    leaving: bool


@dataclass(frozen=True, slots=True)
class CardExplanation:
    """All types and instances of one card, in the order of their ids and parents."""

    address: str
    types: tuple[CardType, ...]
    instances: tuple[CardInstance, ...]


def states(snapshot: Snapshot) -> tuple[CardState, ...]:
    """How all cards stand, with what is wanted on each."""
    labels = dict(snapshot.desired.labels)
    return card_states.card_states(snapshot, card_desired.for_node(snapshot.desired.mdevs, labels))


def explain(address: str, snapshot: Snapshot) -> CardExplanation | None:
    """The card at a PCI address, or the parent of that name; None if nothing is made of it."""
    state = next((state for state in states(snapshot) if state.card.address == address), None)
    if state is None:
        return None
    present = [each.instance.type_id for each in state.exists]
    types = tuple(
        CardType(type_id, known.name, present.count(type_id), state.card.room(type_id))
        for type_id, known in sorted(state.card.types.items(), key=lambda pair: _order(pair[0]))
    )
    return CardExplanation(address, types, tuple(_instance(each, snapshot) for each in state.exists))


def _order(type_id: str) -> tuple[str, int, str]:
    """By number where a type ends with one: nvidia-9 is before nvidia-10."""
    stem = type_id.rstrip("0123456789")
    return stem, int(type_id[len(stem) :] or 0), type_id


def _instance(each: Existing, snapshot: Snapshot) -> CardInstance:
    holder = snapshot.holder(each.instance.id) or each.holder
    return CardInstance(
        each.instance, _made_by(each, snapshot), str(holder) if holder else None, each.leaving
    )


def _made_by(each: Existing, snapshot: Snapshot) -> str | None:
    """Only the id of the machine shows what is ours; with none nobody can say."""
    if each.instance.id in snapshot.desired.mdevs.defined:
        return MDEVCTL
    if not snapshot.machine_id or each.instance.type_id is None:
        return None
    return OURS if each.leaving or card_states.made_here(each.instance, snapshot) else OTHERS
