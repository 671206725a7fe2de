# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a rule: what it takes, and what it refuses and why, counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nodeagent.model.host import Kind
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.why import label

_SHOWN = 4


def text(explanation: RuleExplanation) -> str:
    """The rule, and below it what it says."""
    head = label(explanation.resource, explanation.place)
    return "\n".join([head, "", *(f"  {line}" for line in lines(explanation))])


def lines(explanation: RuleExplanation) -> Iterator[str]:
    """What it takes, then why it refuses the others; bridges do not count."""
    if explanation.device_kind in (Kind.NODE, Kind.CDI):
        note = f"{', ' if explanation.takes else ': '}{explanation.note}" if explanation.note else ""
        yield f"takes    {few(explanation.takes) or 'nothing'}{note}"
        return
    listed = f": {few(explanation.takes)}" if explanation.takes else ""
    yield f"takes    {len(explanation.takes)}{listed}"
    for why, count in explanation.refuses.items():
        yield f"refuses  {count}: {why}"


def few(ids: Sequence[str]) -> str:
    """The first ids, and how many more there are: they may be hundreds."""
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(ids[:_SHOWN]) + more
