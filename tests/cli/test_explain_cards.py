# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` of a card that is split, as text."""

from __future__ import annotations

from nodeagent.cli import explain
from nodeagent.policy.explain.cards import CardExplanation, CardInstance, CardType
from tests.facts import names

CARD = CardExplanation(
    "mtty",
    (CardType("mtty-1", "Single port", 2, 20),),
    (
        CardInstance("one", "mtty", "mtty-1", "others", "ns/vm", dead=True, removing=False),
        CardInstance("two", "mtty", None, None, None, dead=False, removing=True),
    ),
)


def test_types_stand_above_what_exists_and_no_line_ends_with_blanks() -> None:
    head, types, instances = (each.splitlines() for each in explain.card_text(CARD).split("\n\n"))
    names(head[0], "mtty", "1 type", "2 instances")
    assert types[1].split() == ["mtty-1", "Single", "port", "2", "20"]
    one, two = instances[1:]
    names(one, "one", "mtty-1", "others", "ns/vm")
    names(two, "two", "unknown")
    assert all(line == line.rstrip() for line in (*head, *types, *instances))


def test_an_empty_card_has_no_table_of_instances() -> None:
    assert "INSTANCE" not in explain.card_text(CardExplanation("mtty", CARD.types, ()))
