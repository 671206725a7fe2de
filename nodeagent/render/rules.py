# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a rule: what it takes, and what it refuses and why, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.model.desired import CdiRule, NodeRule
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.why import label
from nodeagent.render.answers import TakingAnswer

_SHOWN = 4


def text(explanation: RuleExplanation) -> str:
    """The rule, and below it what it says."""
    return "\n".join([label(explanation.rule), "", *(f"  {line}" for line in lines(explanation))])


def lines(explanation: RuleExplanation) -> Iterator[str]:
    """What it takes, then why it refuses the others; bridges do not count."""
    rule = explanation.rule
    if isinstance(rule, CdiRule):
        shown = few(explanation.takes) or f"nothing: no CDI file here defines such a {rule.spec_kind}"
        yield f"takes    {shown}"
        return
    if isinstance(rule, NodeRule):
        each = "each " if rule.per_path else ""
        shown = few(explanation.takes) or f"nothing: there is no {rule.entries[0].path}"
        yield f"takes    {shown}, {each}given to {rule.count} containers at once"
        return
    listed = f": {few(explanation.takes)}" if explanation.takes else ""
    yield f"takes    {len(explanation.takes)}{listed}"
    for why, count in explanation.refuses.items():
        yield f"refuses  {count}: {why}"


def few(ids: Sequence[str]) -> str:
    """The first ids, and how many more there are: they may be hundreds."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more


def answer(explanation: RuleExplanation) -> TakingAnswer:
    """The same for programs."""
    rule = explanation.rule
    return TakingAnswer(rule.name, rule.kind, rule.place, explanation.takes, dict(explanation.refuses))
