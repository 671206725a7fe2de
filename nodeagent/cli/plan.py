# SPDX-License-Identifier: Apache-2.0
"""``nodeagent plan``: prints the mdevs of each card, the changes that would be made or wait, and why.

With ``--config``, ``plan_config`` prints what another configuration would change, followed by this plan.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from nodeagent.agent import oneshot
from nodeagent.base.errors import ConfigError
from nodeagent.cli import args, daemon_client, output
from nodeagent.kernel.scan.mdevs import parse_machine_id
from nodeagent.model import plain
from nodeagent.model.change import ActionKind, CardPlan, Instance, Plan, Step
from nodeagent.model.problem import Problem
from nodeagent.policy.change import bindings
from nodeagent.policy.change import plan as changes

if TYPE_CHECKING:
    from nodeagent.model.snapshot import Snapshot

MACHINE_ID = "/etc/machine-id"
SHOWN = 4  # similar lines that are shown; others are only counted
_HEADINGS: Mapping[ActionKind, str] = {
    ActionKind.SET_NUM_VFS: "virtual functions",
    ActionKind.RUN_SRIOV_MANAGE: "virtual functions",
    ActionKind.RESTORE_AUTOPROBE: "virtual functions",
    ActionKind.BIND_DRIVERS: "drivers",
    ActionKind.RESTORE_DRIVERS: "drivers",
}
"""The headings of changes that are not about an mdev or vGPU of a card."""
_OTHERS = "other changes"
_NO_DETAILS = frozenset({"kind", "card", "device", "targets", "attempt", "text", "undo"})


class ExistingAnswer(NamedTuple):
    """An mdev or vGPU that exists on a card; ``own``: nodeagent may remove it."""

    id: str
    parent: str
    type: str | None
    own: bool
    holder: str | None
    removing: bool


class CardAnswer(NamedTuple):
    """A card: its desired types, and its existing mdevs or vGPUs."""

    address: str
    types: tuple[str, ...]
    instances: tuple[ExistingAnswer, ...]
    notes: tuple[str, ...]


class StepAnswer(NamedTuple):
    """A change of the host. ``details``: its parameters; ``undo``: the change that reverses it."""

    card: str
    kind: str
    action: str
    message: str
    undo: str | None
    details: Mapping[str, Any]


class PlanAnswer(NamedTuple):
    """The changes that would be made to the host, in order, and those that wait. ``manage``: mdevs are
    managed.

    ``problems`` prevent configured changes. ``notes`` are about desired types that other cards get.
    """

    manage: bool
    cards: tuple[CardAnswer, ...]
    steps: tuple[StepAnswer, ...]
    waiting: tuple[StepAnswer, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, ``--host`` and ``--machine-id``."""
    parser.add_argument(
        "--config", metavar="FILE", help="show the changes if FILE were config.yaml (- is stdin)"
    )
    parser.add_argument("--host", metavar="FILE", help=f"plan for {args.SAVED}")
    parser.add_argument(
        "--machine-id", metavar="ID", help="machine id of that host; default: /etc/machine-id of this one"
    )
    args.add_common(parser)


def run(options: argparse.Namespace) -> int:
    """Show the changes that would be made to the host, now or with another configuration."""
    if options.config is not None:
        from nodeagent.cli import plan_config

        return plan_config.run(options)
    basis, first_line = daemon_client.read_basis(options)
    snapshot, unknown = complete_snapshot(basis.snapshot, options)
    planned, managed = changes.plan(snapshot), snapshot.spec.mdevs.manage
    messages = (first_line, *basis.warnings, unknown)
    return output.emit(
        options, "Plan", as_document(planned, managed), lambda: text(planned, managed), *messages
    )


def complete_snapshot(snapshot: Snapshot, options: argparse.Namespace) -> tuple[Snapshot, str]:
    """Add the machine id and the host's uses to the Snapshot; return it with a message about an unknown id,
    or "".

    If the daemon manages no changes, it has neither machine id nor Ledger: then both are read from this host.
    Functions that a rule binds to a VFIO driver are checked as closely as right before the write.

    :raises ConfigError: if the id of ``--machine-id`` is invalid, or if no id is known and mdevs are to be
    planned.
    """
    root = args.find_root(options)
    if args.is_saved(options):
        snapshot = _with_machine_id(snapshot, options.machine_id)
        missing = f"a saved host does not contain {MACHINE_ID}"
    else:
        snapshot = _with_machine_id(oneshot.with_memory(root, snapshot), options.machine_id)
        functions = bindings.find_members(bindings.plan(snapshot), snapshot.host)
        snapshot = anyio.run(oneshot.with_close_uses, root, snapshot, functions, options.timeouts)
        missing = f"{root.path(MACHINE_ID)} is empty or missing"
    if snapshot.machine_id:
        return snapshot, ""
    message = f"{missing}: nodeagent cannot tell which mdevs it created"
    if not _must_be_known(snapshot):
        return snapshot, message
    if root.is_host and not args.is_saved(options):
        raise ConfigError(message, "make it with: sudo systemd-machine-id-setup; or give --machine-id")
    raise ConfigError(message, f"give the contents of {MACHINE_ID} of that host with --machine-id")


def _with_machine_id(snapshot: Snapshot, given: str | None) -> Snapshot:
    if given is None:
        return snapshot
    if machine_id := parse_machine_id(given):
        return replace(snapshot, machine_id=machine_id)
    raise ConfigError(
        f'--machine-id: "{given}" is no machine id',
        f"give the 32 hexadecimal digits in {MACHINE_ID} of that host",
    )


def _must_be_known(snapshot: Snapshot) -> bool:
    """True if the plan needs the machine id: for mdevs, but not for VFs and drivers alone."""
    return snapshot.spec.mdevs.manage or not changes.is_due(snapshot)


def text(plan: Plan, managed: bool) -> str:
    """The cards in address order, then other changes, then problems and notes."""
    lines = [] if managed else ["mdevs are not managed: no mdev or vGPU is created or removed", ""]
    steps = _steps_by_heading(plan)
    for card in plan.cards:
        exists = Counter(_described(each) for each in card.instances)
        has = ", ".join(f"{count} x {words}" for words, count in exists.items()) or "none"
        lines += [f"{card.address}  desired: {', '.join(card.types) or 'none'}; existing: {has}"]
        lines += [*steps.pop(card.address, ()), *(f"  note: {note}" for note in card.notes), ""]
    if managed and not plan.cards:
        lines += ["no cards", ""]
    for heading, shown in steps.items():
        lines += [heading, *shown, ""]
    for problem in plan.problems:
        lines += [f"problem: {problem.message}", *([f"  to do: {problem.hint}"] if problem.hint else [])]
    for problem in plan.notes:
        lines += [f"note: {problem.message}", *([f"  to do: {problem.hint}"] if problem.hint else [])]
    if plan.steps or plan.waiting:
        return "\n".join([*lines, f"changes: {len(plan.steps)}, waiting: {len(plan.waiting)}"])
    end = "nothing to do until the problems are fixed" if plan.problems else "nothing to do"
    return "\n".join([*lines, end])


def _described(each: Instance) -> str:
    possible = (each.foreign, "in use" if each.holder else None, "being removed" if each.leaving else None)
    marks = [mark for mark in possible if mark is not None]
    return f"{each.type_id or 'unknown type'}" + (f" ({', '.join(marks)})" if marks else "")


def _steps_by_heading(plan: Plan) -> dict[str, list[str]]:
    """The lines of each card or kind of change: the steps, then waiting steps, with each reason once."""
    cards = {card.address for card in plan.cards}
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    for mark, steps in (("", plan.steps), ("waiting: ", plan.waiting)):
        for step in steps:
            action = step.action
            on_card = action.card in cards and action.type_id is not None  # an mdev or vGPU
            heading = action.card if on_card else _HEADINGS.get(action.kind, _OTHERS)
            alike = found.setdefault(heading, {}).setdefault((mark, step.why), [])
            alike.append(f"  {mark}{action.text}")
    return {
        heading: [line for (_, why), alike in reasons.items() for line in _lines(alike, why)]
        for heading, reasons in found.items()
    }


def _lines(alike: list[str], why: str) -> list[str]:
    """The lines with the same reason; if there are many, only the first ones."""
    more = [f"  ... and {len(alike) - SHOWN} more"] if len(alike) > SHOWN else []
    return [*alike[:SHOWN], *more, f"      reason: {why}"]


def as_document(plan: Plan, managed: bool) -> PlanAnswer:
    """The plan as a record for ``-o``, with all steps in the order in which the daemon makes them."""
    return PlanAnswer(
        managed,
        tuple(map(_card_answer, plan.cards)),
        tuple(map(_step_answer, plan.steps)),
        tuple(map(_step_answer, plan.waiting)),
        plan.problems,
        plan.notes,
    )


def _card_answer(card: CardPlan) -> CardAnswer:
    return CardAnswer(card.address, card.types, tuple(map(_existing_answer, card.instances)), card.notes)


def _existing_answer(each: Instance) -> ExistingAnswer:
    holder = str(each.holder) if each.holder else None
    return ExistingAnswer(each.id, each.parent, each.type_id, each.own, holder, each.leaving)


def _step_answer(step: Step) -> StepAnswer:
    action = step.action
    details = {key: value for key, value in plain.dump(action).items() if key not in _NO_DETAILS}
    return StepAnswer(action.card, action.kind, action.text, step.why, action.undo, details)
