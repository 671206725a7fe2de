# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` prints: per card what exists, what would be done and why, what waits for what."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.model.action import SetNumVfs, Step
from nodeagent.model.plan import CardSummary, Existing, Plan

SHOWN = 4  # alike lines that are shown before the rest is only counted

_APART = {SetNumVfs: "virtual functions"}
"""Changes that are shown under a heading of their own, and not with what is on their card."""


def text(plan: Plan, managed: bool) -> str:
    """The cards in address order, then changes of other kinds, then what is wrong with the wishes."""
    lines = [] if managed else ["mdevs.manage is false: no mdev or vGPU is made or removed", ""]
    for card in plan.cards:
        lines += [*_card(card, plan), ""]
    if managed and not plan.cards:
        lines += ["no cards", ""]
    for action, heading in _APART.items():
        changes = [*_steps(_of(action, plan.steps)), *_waiting(_of(action, plan.waiting))]
        lines += [heading, *changes, ""] if changes else []
    lines += [f"problem: {problem}" for problem in plan.problems]
    return "\n".join([*lines, _sum(plan)])


def _card(card: CardSummary, plan: Plan) -> list[str]:
    exists = Counter(_described(each) for each in card.exists)
    has = ", ".join(f"{count} × {words}" for words, count in exists.items()) or "nothing"
    return [
        f"{card.address}  is for {card.type_id or 'nothing'}, has {has}",
        *_steps(_on(card, plan.steps)),
        *_waiting(_on(card, plan.waiting)),
        *(f"  note: {note}" for note in card.notes),
    ]


def _on(card: CardSummary, steps: Iterable[Step]) -> list[Step]:
    """What becomes of what is on the card."""
    return [step for step in steps if step.action.card == card.address and type(step.action) not in _APART]


def _of(action: type, steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if type(step.action) is action]


def _described(each: Existing) -> str:
    possible = (each.apart, "held" if each.holder else None, "leaving" if each.leaving else None)
    marks = [mark for mark in possible if mark is not None]
    return f"{each.instance.type_id or 'unknown type'}" + (f" ({', '.join(marks)})" if marks else "")


def _steps(steps: Iterable[Step]) -> list[str]:
    return _grouped((each.why, f"  {each.action.describe()}") for each in steps)


def _waiting(waiting: Iterable[Step]) -> list[str]:
    return _grouped((each.why, f"  WAITS: {each.action.describe()}") for each in waiting)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines with one reason stand together; of many only the first ones are shown."""
    by_reason: dict[str, list[str]] = {}
    for why, line in pairs:
        by_reason.setdefault(why, []).append(line)
    shown: list[str] = []
    for why, lines in by_reason.items():
        shown += lines[:SHOWN]
        shown += [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        shown.append(f"      because {why}")
    return shown


def _sum(plan: Plan) -> str:
    steps, waiting = len(plan.steps), len(plan.waiting)
    if not steps and not waiting:
        return "nothing to do"
    return f"to do: {steps}, waiting: {waiting}"


def document(plan: Plan, managed: bool) -> dict[str, Any]:
    """The same as plain data, nothing left out; steps in the order in which the daemon does them."""
    return {
        "manage": managed,
        "cards": [_card_document(card) for card in plan.cards],
        "steps": [_step(each) for each in plan.steps],
        "waiting": [_step(each) for each in plan.waiting],
        "problems": list(plan.problems),
    }


def _card_document(card: CardSummary) -> dict[str, Any]:
    return {
        "address": card.address,
        "type": card.type_id,
        "exists": [
            {
                "id": each.instance.id,
                "parent": each.instance.parent,
                "type": each.instance.type_id,
                "own": each.own,
                "holder": each.holder,
                "leaving": each.leaving,
            }
            for each in card.exists
        ],
        "notes": list(card.notes),
    }


def _step(step: Step) -> Mapping[str, Any]:
    action, undo = step.action, step.action.undo
    name = type(action).__name__
    return {
        "card": action.card,
        "action": name[0].lower() + name[1:],
        **_values(action),
        "why": step.why,
        "undo": None if undo is None else undo.describe(),
    }


def _values(action: Any) -> Mapping[str, Any]:
    return {each.name: getattr(action, each.name) for each in dataclasses.fields(action)}
