# SPDX-License-Identifier: Apache-2.0
"""The plan for mdevs and vendor vGPUs: what is wanted × cards × what exists × who holds it → steps. Pure.

One type for each card, filled and topped up. What is not ours stays, and a card that has it gets nothing
from us, unless the operator lets us adopt it. The types take turns, in the operator's order: in its turn
a type takes the first open card that has it already, or that is to get a new type and has room for it.
Because a card that has a wanted type counts as its turn, a deal that was cut short anywhere ends as it
began. Only what nobody uses is removed. What a card has room for shows when it is empty: while one is being
emptied, no other gets a type that could be another one then. What waits for a holder may wait for weeks, and
keeps its card reserved for the type that it was dealt, so the end is the same whatever comes in between.
Asked again after every change: a plan is good for the Host that it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.desired import MdevsWanted, WantedType
from nodeagent.model.host import Host, MdevType
from nodeagent.model.plan import Plan
from nodeagent.model.problem import Problem, ProblemCode, note, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import card_desired, card_plans
from nodeagent.policy.change.card_plans import CardPlan
from nodeagent.policy.change.card_states import CardState, card_states

NO_MACHINE = "no machine id in /etc/machine-id: mdevs are neither made nor removed without one"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A card in the round: the wanted type that it has, or else the types that it could be given."""

    card: str
    kept: str | None = None
    fits: frozenset[str] = frozenset()

    def takes(self, type_id: str) -> bool:
        """True if the type may have this card."""
        return self.kept == type_id if self.kept is not None else type_id in self.fits


def assign(types: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
    """Card → type, for the cards that get one."""
    assigned: dict[str, str] = {}
    left = list(candidates)
    while True:
        before = len(left)
        for type_id in types:
            candidate = next((candidate for candidate in left if candidate.takes(type_id)), None)
            if candidate is not None:
                assigned[candidate.card] = type_id
                left.remove(candidate)
        if len(left) == before:
            return assigned


def obstacles(wanted: MdevsWanted) -> tuple[Problem, ...]:
    """Why mdevs are not managed although the operator wants it."""
    return (wrong(ProblemCode.CHANGE, "", wanted.obstacle),) if wanted.obstacle else ()


def plan(snapshot: Snapshot) -> Plan:
    """The plan for this host: removals first, then creations, card by card in address order.

    Nothing at all unless mdevs are managed; without a machine id nobody knows which ones are ours.
    """
    host, wanted = snapshot.host, snapshot.desired.mdevs
    if not wanted.manage:
        return Plan(problems=obstacles(wanted))
    if not snapshot.machine_id:
        return Plan(problems=(wrong(ProblemCode.CHANGE, "", NO_MACHINE),))
    listed = card_desired.for_node(wanted, dict(snapshot.desired.labels))
    states = card_states(snapshot, listed)
    planned = _planned(states, tuple(card_desired.type_ids(listed, _mdev_types(states))), snapshot)
    removals = [step for each in planned for step in each.removals]
    creations = [step for each in planned for step in each.creations]
    problems = (
        *(wrong(ProblemCode.CHANGE, "", text) for text in _problems(wanted, listed, states, host)),
        *(
            wrong(ProblemCode.SHORTFALL, each.card.address, text)
            for each in planned
            for text in each.problems
        ),
    )
    return Plan(
        tuple(removals + creations),
        tuple(waiting for each in planned for waiting in each.waiting),
        tuple(each.card for each in planned),
        tuple(dict.fromkeys(problems)),
        tuple(note(ProblemCode.OTHER_CARDS, text, about=text) for text in _for_others(listed, states)),
    )


def _planned(states: Sequence[CardState], order: Sequence[str], snapshot: Snapshot) -> list[CardPlan]:
    """What becomes of each card: by the round, or by itself if it has a list of its own or is left alone."""
    candidates = {state.card.address: _candidate(state) for state in states}
    inside = [candidates[state.card.address] for state in states if _in_round(state)]
    assigned = assign(order, inside)
    planned = []
    for state in states:
        candidate = candidates[state.card.address]
        type_id = assigned.get(candidate.card) if _in_round(state) else _alone(state, candidate)
        planned.append(card_plans.plan(state, type_id, snapshot))
    new = {candidate.card: candidate for candidate in inside if candidate.kept is None}
    emptied = next(
        (each.card.address for each in planned if each.removals and each.card.address in new), None
    )
    if emptied is None:
        return planned
    return [
        card_plans.put_off(each, f"its type is decided when {emptied} is empty")
        if each.creations and each.card.address in new and len(new[each.card.address].fits) > 1
        else each
        for each in planned
    ]


def _in_round(state: CardState) -> bool:
    return state.desired.shared and not state.left_alone


def _candidate(state: CardState) -> Candidate:
    """What the card has or could get; one that must be emptied first is taken to have room for all."""
    desired, card = state.desired.types, state.card
    kept = next((each for each in desired if state.has(each)), None)
    emptied = any(each.own for each in state.exists)
    fits = (each for each in desired if each in card.types and (emptied or card.room(each) > 0))
    return Candidate(card.address, kept, frozenset(fits))


def _alone(state: CardState, candidate: Candidate) -> str | None:
    """The type of a card outside the round; one that is left alone keeps what is wanted of ours."""
    if state.desired.definitions:
        return next(iter(state.desired.types))
    if state.left_alone:
        return candidate.kept
    return next((each for each in state.desired.types if candidate.takes(each)), None)


def _problems(
    wanted: MdevsWanted, listed: Sequence[WantedType], states: Sequence[CardState], host: Host
) -> list[str]:
    """What cannot be meant, or not on this node; the rest is done all the same."""
    mdev_types = _mdev_types(states)
    if not mdev_types:
        asked = listed or wanted.definitions or any(rule.types for rule in wanted.cards)
        return ["no card of this node offers mediated devices or vGPU types"] if asked else []
    asked = (*listed, *(each for state in states for each in state.desired.unmet))
    shunned = card_desired.excluded(wanted, mdev_types)
    meant = {each: card_desired.type_ids([each], mdev_types).keys() for each in asked}
    others = _for_others(listed, states)
    unknown = [text for each in asked if not meant[each] and (text := _unoffered(each)) not in others]
    both = [
        f'the type "{each.name}" is both wanted and excluded: it is not made'
        for each in asked
        if meant[each] & shunned
    ]
    here = [
        f'{state.card.address} does not offer the type "{each.name}" that is asked of it'
        for state in states
        for each in state.desired.unmet
        if meant[each] - shunned and not (state.unread or state.card.partial)
    ]
    lost = card_desired.unmet(wanted.definitions, host, shunned)
    if wanted.cards and not any(card_desired.rules_for(state.card, wanted.cards, host) for state in states):
        lost.append("no entry of the vgpu-device-manager configuration fits a card of this node")
    unread = any(state.unread for state in states)
    return [*([] if _partial(states) else unknown), *both, *here, *([] if unread else lost)]


def _for_others(listed: Sequence[WantedType], states: Sequence[CardState]) -> tuple[str, ...]:
    """What of the node's list no card here offers, while one offers some of it.

    So a list is written for cards of several families.
    """
    mdev_types = _mdev_types(states)
    foreign = [each for each in listed if not card_desired.type_ids([each], mdev_types)]
    return () if len(foreign) == len(listed) or _partial(states) else tuple(map(_unoffered, foreign))


def _unoffered(wanted: WantedType) -> str:
    return f'no card of this node offers the type "{wanted.name}"'


def _partial(states: Sequence[CardState]) -> bool:
    """True if not all types of all cards are known."""
    return any(state.unread or state.card.partial for state in states)


def _mdev_types(states: Sequence[CardState]) -> tuple[MdevType, ...]:
    return tuple(mdev_type for state in states for mdev_type in state.card.types.values())
