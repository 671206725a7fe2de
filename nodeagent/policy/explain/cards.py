# SPDX-License-Identifier: Apache-2.0
"""Explains a card that is split: its types with their free capacity, and its mdevs and vGPUs with their
creator. Pure.

This module uses the same list of cards as the Plan, and plans nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.change import Instance
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import cards

OURS, MDEVCTL, OTHERS = "nodeagent", "mdevctl", "others"


class CardType(NamedTuple):
    """A type of mdevs or vGPUs: how many exist on the card, and how many more can be created."""

    id: str
    name: str | None
    instances: int
    room: int


class CardInstance(NamedTuple):
    """An mdev or vGPU; ``made_by``: nodeagent, mdevctl or others; null if unknown.

    ``dead``: the mdev or vGPU has no driver. ``removing``: the removal of the mdev or vGPU waits for the
    process that uses it.
    """

    id: str
    parent: str
    type: str | None
    made_by: str | None
    holder: str | None
    dead: bool
    removing: bool


class CardExplanation(NamedTuple):
    """A card that is split: its types, and its existing mdevs and vGPUs."""

    card: str
    types: tuple[CardType, ...]
    instances: tuple[CardInstance, ...]


def explain(address: str, snapshot: Snapshot) -> CardExplanation | None:
    """Return the card at a PCI address, or the mdev parent with that name; None if there is none."""
    card = next((card for card in cards.find_cards(snapshot) if card.address == address), None)
    if card is None:
        return None
    present = [each.type_id for each in card.instances]
    types = tuple(
        CardType(type_id, known.name, present.count(type_id), card.room(type_id))
        for type_id, known in sorted(card.types.items(), key=lambda pair: _order(pair[0]))
    )
    return CardExplanation(address, types, tuple(_instance(each, snapshot) for each in card.instances))


def _order(type_id: str) -> tuple[str, int, str]:
    """The sort key of a type: by its number at the end, so that nvidia-9 comes before nvidia-10."""
    stem = type_id.rstrip("0123456789")
    return stem, int(type_id[len(stem) :] or 0), type_id


def _instance(each: Instance, snapshot: Snapshot) -> CardInstance:
    holder = snapshot.holder(each.id) or each.holder
    return CardInstance(
        each.id,
        each.parent,
        each.type_id,
        _made_by(each, snapshot),
        str(holder) if holder else None,
        each.dead,
        each.leaving,
    )


def _made_by(each: Instance, snapshot: Snapshot) -> str | None:
    """The creator of an mdev or vGPU; None without a machine id, from which nodeagent makes its UUIDs."""
    if each.id in snapshot.spec.mdevs.defined:
        return MDEVCTL
    if not snapshot.machine_id or each.type_id is None:
        return None
    return OURS if each.leaving or cards.is_made_here(each, snapshot) else OTHERS
