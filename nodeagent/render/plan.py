# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` prints: per card what exists, what would be done and why, what waits for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.model.action import Step, Waiting
from nodeagent.policy.change import sriov
from nodeagent.policy.change.card_plans import CardSummary
from nodeagent.policy.change.card_states import Existing
from nodeagent.policy.change.mdevs import Plan

SHOWN = 4  # alike lines that are shown before the rest is only counted


def text(plan: Plan, vfs: sriov.Plan, managed: bool) -> str:
    """The cards in address order, then virtual functions, then what is wrong with the wishes."""
    lines = [] if managed else ["mdevs.manage is false: no mdev or vGPU is made or removed", ""]
    for card in plan.cards:
        lines += [*_card(card, plan), ""]
    if managed and not plan.cards:
        lines += ["no cards", ""]
    changes = [*_steps(vfs.steps), *_waiting(vfs.waiting)]
    lines += ["virtual functions", *changes, ""] if changes else []
    lines += [f"problem: {problem}" for problem in plan.problems]
    return "\n".join([*lines, _sum(plan, vfs)])


def _card(card: CardSummary, plan: Plan) -> list[str]:
    exists = Counter(_kind(each) for each in card.exists)
    has = ", ".join(f"{count} × {kind}" for kind, count in exists.items()) or "nothing"
    return [
        f"{card.address}  is for {card.type_id or 'nothing'}, has {has}",
        *_steps(each for each in plan.steps if each.card == card.address),
        *_waiting(each for each in plan.waiting if each.card == card.address),
        *(f"  note: {note}" for note in card.notes),
    ]


def _kind(each: Existing) -> str:
    found = (each.apart, "held" if each.holder else None, "leaving" if each.leaving else None)
    marks = [mark for mark in found if mark is not None]
    return f"{each.instance.type_id or 'unknown type'}" + (f" ({', '.join(marks)})" if marks else "")


def _steps(steps: Iterable[Step]) -> list[str]:
    return _grouped((each.why, f"  {each.action.describe()}") for each in steps)


def _waiting(waiting: Iterable[Waiting]) -> list[str]:
    return _grouped((each.why, f"  WAITS: {each.action.describe()}") for each in waiting)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines with one reason stand together; of many only the first ones are shown."""
    by_reason: dict[str, list[str]] = {}
    for why, line in pairs:
        by_reason.setdefault(why, []).append(line)
    found = []
    for why, lines in by_reason.items():
        found += lines[:SHOWN]
        found += [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        found.append(f"      because {why}")
    return found


def _sum(plan: Plan, vfs: sriov.Plan) -> str:
    steps, waiting = len(plan.steps) + len(vfs.steps), len(plan.waiting) + len(vfs.waiting)
    if not steps and not waiting:
        return "nothing to do"
    return f"to do: {steps}, waiting: {waiting}"


def document(plan: Plan, vfs: sriov.Plan, managed: bool) -> dict[str, Any]:
    """The same as plain data, nothing left out; steps in the order in which the daemon does them."""
    return {
        "manage": managed,
        "cards": [_card_document(card) for card in plan.cards],
        "steps": [_step(each) for each in (*vfs.steps, *plan.steps)],
        "waiting": [_step(each) for each in (*vfs.waiting, *plan.waiting)],
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


def _step(each: Step | Waiting) -> Mapping[str, Any]:
    action = each.action
    values = {name: getattr(action, name) for name in type(action).__dataclass_fields__}
    kind = type(action).__name__
    return {"card": each.card, "action": kind[0].lower() + kind[1:], **values, "why": each.why}
