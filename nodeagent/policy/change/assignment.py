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
class Candidate:
    """A card in the round: the wanted type that it has, or else the types that it could be given."""

    card: str
    kept: str | None = None
    fits: frozenset[str] = frozenset()

    def takes(self, type_id: str) -> bool:
        """True if the type may have this card."""
        return self.kept == type_id if self.kept is not None else type_id in self.fits


def assign(types: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Card → type, for the cards that get one."""
    assigned: dict[str, str] = {}
    left = list(candidates)
    while True:
        before = len(left)
        for type_id in types:
            candidate = next((candidate for candidate in left if candidate.takes(type_id)), None)
            if candidate is not None:
                assigned[candidate.card] = type_id
                left.remove(candidate)
        if len(left) == before:
            return assigned
