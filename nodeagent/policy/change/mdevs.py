# SPDX-License-Identifier: Apache-2.0
"""The plan for mdevs and vendor vGPUs: what is wanted × cards × what exists × who holds it → steps. Pure.

One type for each card, filled and topped up. What is not ours stays, and a card that has it gets nothing
from us, unless the operator lets us adopt it. Only what nobody uses is removed; what waits keeps its card
reserved for the type that it was dealt, so the end is the same whatever comes in between. Asked again after
every change: a plan is good for the Host that it was made from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.model.action import Step, Waiting
from nodeagent.model.desired import MdevsWanted, WantedType
from nodeagent.model.host import Host, MdevType
from nodeagent.policy.change import card_desired, card_plans, definitions
from nodeagent.policy.change.assignment import Hand, deal
from nodeagent.policy.change.card_plans import CardPlan
from nodeagent.policy.change.card_states import Basis, Stand, stands


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, what must wait, how each card stands, and what is wrong with the wishes."""

    steps: tuple[Step, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    cards: tuple[CardPlan, ...] = ()
    problems: tuple[str, ...] = ()


def plan(host: Host, wanted: MdevsWanted, basis: Basis) -> Plan:
    """The plan for this host: removals first, then creations, card by card in address order.

    Nothing at all unless ``wanted.manage``.
    """
    if not wanted.manage:
        return Plan()
    listed = card_desired.for_node(wanted, basis.labels)
    found = stands(host, wanted, listed, basis)
    dealt = _dealt(found, tuple(card_desired.type_ids(listed, _kinds(found))))
    filled = [card_plans.fill(stand, dealt[stand.card.address], host, basis) for stand in found]
    removals = [step for each in filled for step in each.removals]
    creations = [step for each in filled for step in each.creations]
    problems = (*_problems(wanted, listed, found, host), *(text for each in filled for text in each.problems))
    return Plan(
        tuple(removals + creations),
        tuple(waiting for each in filled for waiting in each.waiting),
        tuple(each.card for each in filled),
        tuple(dict.fromkeys(problems)),
    )


def _dealt(found: Sequence[Stand], order: Sequence[str]) -> dict[str, str | None]:
    """Card → type: by the round, or by itself where it has a list of its own or is left alone."""
    hands = {stand.card.address: _hand(stand) for stand in found}
    inside = [stand.card.address for stand in found if stand.wish.shared and not stand.left_alone]
    dealt = deal(order, [hands[address] for address in inside])
    outside = {stand.card.address: _alone(stand, hands[stand.card.address]) for stand in found}
    return outside | {address: dealt.get(address) for address in inside}


def _hand(stand: Stand) -> Hand:
    """What the card has or could get; one that must be emptied first is taken to have room for all."""
    wish, card = stand.wish.types, stand.card
    kept = next((each for each in wish if stand.has(each)), None)
    emptied = any(each.own for each in stand.exists)
    fits = (each for each in wish if each in card.types and (emptied or card.room(each) > 0))
    return Hand(card.address, kept, frozenset(fits))


def _alone(stand: Stand, hand: Hand) -> str | None:
    """The type of a card outside the round; one that is left alone keeps what is wanted of ours."""
    if stand.wish.definitions:
        return next(iter(stand.wish.types))
    if stand.left_alone:
        return hand.kept
    return next((each for each in stand.wish.types if hand.takes(each)), None)


def _problems(
    wanted: MdevsWanted, listed: Sequence[WantedType], found: Sequence[Stand], host: Host
) -> list[str]:
    """What cannot be meant, or not on this node; the rest is done all the same."""
    kinds = _kinds(found)
    if not kinds:
        asked = listed or wanted.definitions or any(rule.types for rule in wanted.cards)
        return ["no card of this node offers mediated devices or vGPU types"] if asked else []
    asked = (*listed, *(each for stand in found for each in stand.wish.unmet))
    shunned = card_desired.excluded(wanted, kinds)
    meant = {each: card_desired.type_ids([each], kinds).keys() for each in asked}
    unknown = [f'no card of this node offers the type "{each.name}"' for each in asked if not meant[each]]
    both = [
        f'the type "{each.name}" is both wanted and excluded: it is not made'
        for each in asked
        if meant[each] & shunned
    ]
    here = [
        f'{stand.card.address} does not offer the type "{each.name}" that is asked of it'
        for stand in found
        for each in stand.wish.unmet
        if meant[each] - shunned and not (stand.unread or stand.card.partial)
    ]
    lost = definitions.problems(wanted.definitions, host, shunned)
    if wanted.cards and not any(card_desired.rules_for(stand.card, wanted.cards, host) for stand in found):
        lost.append("no entry of the vgpu-device-manager configuration fits a card of this node")
    unread = any(stand.unread for stand in found)
    partial = unread or any(stand.card.partial for stand in found)
    return [*([] if partial else unknown), *both, *here, *([] if unread else lost)]


def _kinds(found: Sequence[Stand]) -> tuple[MdevType, ...]:
    return tuple(kind for stand in found for kind in stand.card.types.values())
