# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent plan`` prints: per card what exists, what would be done and why, what waits for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from nodeagent.model import plain
from nodeagent.model.change import ActionKind, CardPlan, Instance, Plan, Step
from nodeagent.render.plan_answers import CardAnswer, ExistingAnswer, PlanAnswer, StepAnswer

SHOWN = 4  # alike lines that are shown before the rest is only counted

_HEADINGS: Mapping[ActionKind, str] = {
    ActionKind.SET_NUM_VFS: "virtual functions",
    ActionKind.RUN_SRIOV_MANAGE: "virtual functions",
    ActionKind.RESTORE_AUTOPROBE: "virtual functions",
    ActionKind.BIND_DRIVERS: "drivers",
    ActionKind.RESTORE_DRIVERS: "drivers",
}
"""Of changes that are not shown with what is on their card."""
_OTHERS = "other changes"
_DETAILS = ("parent", "address", "typeId", "uuid", "count", "unprobed", "moves", "forced", "takes")


def text(plan: Plan, managed: bool) -> str:
    """The cards in address order, then changes of other kinds, then what is wrong with the wishes."""
    lines = [] if managed else ["mdevs are not managed: no mdev or vGPU is made or removed", ""]
    for card in plan.cards:
        lines += [*_card(card, plan), ""]
    if managed and not plan.cards:
        lines += ["no cards", ""]
    cards = {card.address for card in plan.cards}
    steps, waiting = ([each for each in some if not _on(each, cards)] for some in (plan.steps, plan.waiting))
    for heading in dict.fromkeys(map(_heading, (*steps, *waiting))):
        lines += [heading, *_steps(_below(heading, steps)), *_waiting(_below(heading, waiting)), ""]
    for problem in plan.problems:
        lines += [f"problem: {problem.what}", *([f"  to do: {problem.hint}"] if problem.hint else [])]
    lines += [f"note: {problem.what}" for problem in plan.notes]
    return "\n".join([*lines, _sum(plan)])


def _card(card: CardPlan, plan: Plan) -> list[str]:
    exists = Counter(_described(each) for each in card.instances)
    has = ", ".join(f"{count} x {words}" for words, count in exists.items()) or "nothing"
    return [
        f"{card.address}  is for {card.type_id or 'nothing'}, has {has}",
        *_steps(step for step in plan.steps if _on(step, {card.address})),
        *_waiting(step for step in plan.waiting if _on(step, {card.address})),
        *(f"  note: {note}" for note in card.notes),
    ]


def _on(step: Step, cards: Collection[str]) -> bool:
    """True if it is about what is on one of these cards."""
    return step.action.card in cards and step.action.type_id is not None


def _heading(step: Step) -> str:
    return _HEADINGS.get(step.action.kind, _OTHERS)


def _below(heading: str, steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if _heading(step) == heading]


def _described(each: Instance) -> str:
    possible = (each.foreign, "held" if each.holder else None, "leaving" if each.leaving else None)
    marks = [mark for mark in possible if mark is not None]
    return f"{each.type_id or 'unknown type'}" + (f" ({', '.join(marks)})" if marks else "")


def _steps(steps: Iterable[Step]) -> list[str]:
    return _grouped((each.why, f"  {each.action.text}") for each in steps)


def _waiting(waiting: Iterable[Step]) -> list[str]:
    return _grouped((each.why, f"  WAITS: {each.action.text}") for each in waiting)


def _grouped(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Lines with one reason stand together; of many only the first ones are shown."""
    by_reason: dict[str, list[str]] = {}
    for why, line in pairs:
        by_reason.setdefault(why, []).append(line)
    shown: list[str] = []
    for why, lines in by_reason.items():
        shown += lines[:SHOWN]
        shown += [f"  ... and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        shown.append(f"      because {why}")
    return shown


def _sum(plan: Plan) -> str:
    steps, waiting = len(plan.steps), len(plan.waiting)
    if not steps and not waiting:
        return "nothing to do"
    return f"to do: {steps}, waiting: {waiting}"


def answer(plan: Plan, managed: bool) -> PlanAnswer:
    """The same for programs, nothing left out; steps in the order in which the daemon does them."""
    return PlanAnswer(
        managed,
        tuple(map(_card_answer, plan.cards)),
        tuple(map(_step, plan.steps)),
        tuple(map(_step, plan.waiting)),
        tuple(problem.what for problem in plan.problems),
        {problem.what: problem.hint for problem in plan.problems if problem.hint},
        tuple(problem.what for problem in plan.notes),
    )


def _card_answer(card: CardPlan) -> CardAnswer:
    return CardAnswer(card.address, card.type_id, tuple(map(_existing, card.instances)), card.notes)


def _existing(each: Instance) -> ExistingAnswer:
    holder = str(each.holder) if each.holder else None
    return ExistingAnswer(each.id, each.parent, each.type_id, each.own, holder, each.leaving)


def _step(step: Step) -> StepAnswer:
    action, whole = step.action, plain.dump(step.action)
    details = {key: whole[key] for key in _DETAILS if key in whole}
    return StepAnswer(action.card, action.kind, action.text, step.why, action.undo, details)
