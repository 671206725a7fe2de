# SPDX-License-Identifier: Apache-2.0
"""The round: types in the operator's order, cards in address order, one type for each card. Pure.

The types take turns. In its turn a type takes the first open card that has it already, or that is to get a
new type and has room for it. A card that has a wanted type is not dealt again. Because such a card counts
as its type's turn, a deal that was cut short anywhere is finished as it was begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hand:
    """A card in the round: the wanted type that it has, or else the types that it could be given."""

    card: str
    kept: str | None = None
    fits: frozenset[str] = frozenset()

    def takes(self, type_id: str) -> bool:
        """True if the type may have this card."""
        return self.kept == type_id if self.kept is not None else type_id in self.fits


def deal(types: Sequence[str], hands: Sequence[Hand]) -> dict[str, str]:
    """Card → type, for the cards that get one."""
    dealt: dict[str, str] = {}
    left = list(hands)
    while True:
        before = len(left)
        for type_id in types:
            hand = next((hand for hand in left if hand.takes(type_id)), None)
            if hand is not None:
                dealt[hand.card] = type_id
                left.remove(hand)
        if len(left) == before:
            return dealt
