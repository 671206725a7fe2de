# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` of a rule as text and as data."""

from __future__ import annotations

from nodeagent.model.desired import PciRule
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.render import rules

FOUND = RuleExplanation(
    PciRule("x/t4", place="config.yaml:3"), ("a", "b", "c", "d", "e"), {"vendors: not 10de": 7}
)


def test_what_it_takes_is_named_and_what_it_refuses_is_counted() -> None:
    assert rules.text(FOUND).splitlines() == [
        "rule x/t4 (config.yaml:3)",
        "",
        "  takes    5: a, b, c, d and 1 more",
        "  refuses  7: vendors: not 10de",
    ]


def test_the_data_leave_nothing_out() -> None:
    answer = rules.answer(FOUND)
    assert (answer.resource, answer.device_kind, answer.place) == ("x/t4", "pci", "config.yaml:3")
    assert (answer.takes, answer.refuses) == (("a", "b", "c", "d", "e"), {"vendors: not 10de": 7})
