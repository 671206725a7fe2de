# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain`` of a rule as text."""

from __future__ import annotations

from nodeagent.cli import explain
from nodeagent.policy.explain.rules import RuleExplanation

FOUND = RuleExplanation("x/t4", "pci", "config.yaml:3", ("a", "b", "c", "d", "e"), {"vendors: not 10de": 7})


def test_what_it_takes_is_named_and_what_it_refuses_is_counted() -> None:
    assert explain.rule_text(FOUND).splitlines() == [
        "rule x/t4 (config.yaml:3)",
        "",
        "  matches  5: a, b, c, d and 1 more",
        "  rejects  7: vendors: not 10de",
    ]


def test_a_rule_for_device_nodes_says_how_they_are_given() -> None:
    kvm = RuleExplanation(
        "x/kvm", "node", "config.yaml:4", ("/dev/kvm",), {}, "given to 3 containers at once"
    )
    assert "matches  /dev/kvm, given to 3 containers at once" in explain.rule_text(kvm)
    none = kvm._replace(matches=(), note="there is no /dev/kvm")
    assert "matches  no path: there is no /dev/kvm" in explain.rule_text(none)
