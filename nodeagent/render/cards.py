# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a card that is split: its types, what fits, what exists, who made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.base.terminal import table
from nodeagent.policy.explain.cards import CardExplanation, CardInstance


def text(card: CardExplanation) -> str:
    """A card that is no PCI function has this story alone."""
    head = f"{card.card}  {_count(card.types, 'type')}, {_count(card.instances, 'instance')}"
    return "\n".join([head, "", *(f"  {line}".rstrip() for line in lines(card))])


def _count(some: Sequence[object], what: str) -> str:
    return f"{len(some)} {what}{'s' * (len(some) != 1)}"


def lines(card: CardExplanation) -> Iterator[str]:
    """Two tables: the types, and what exists."""
    types = [(each.id, each.name or "-", str(each.instances), str(each.room)) for each in card.types]
    yield from table(("TYPE", "NAME", "EXIST", "FIT AT MOST"), types).splitlines()
    if card.instances:
        yield ""
        head = ("INSTANCE", "TYPE", "MADE BY", "STATE")
        yield from table(head, map(_row, card.instances)).splitlines()


def _row(each: CardInstance) -> tuple[str, ...]:
    possible = (
        f"held by {each.holder}" if each.holder else "",
        "without a driver" if each.dead else "",
        "going away, still in use" if each.leaving else "",
    )
    state = ", ".join(filter(None, possible)) or "-"
    return each.id, each.type or "unknown", each.made_by or "not known", state
