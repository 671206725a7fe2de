# SPDX-License-Identifier: Apache-2.0
"""One card, once its type is known: what goes, what comes, and what must wait for what. Pure.

Nothing of another type is made while anything else is on the card. What has lost its driver is removed and
made anew. What the kernel has refused is not tried again before its time, and keeps its place; the rest is
done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace

from nodeagent.model.action import Action, Step, clear_vgpu_type, create_mdev, remove_mdev, set_vgpu_type
from nodeagent.model.host import Host
from nodeagent.model.plan import CardSummary, Existing, Instance
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import ownership
from nodeagent.policy.change.card_states import CardState
from nodeagent.policy.change.cards import Card, Parent


@dataclass(frozen=True, slots=True)
class CardPlan:
    """What becomes of one card."""

    card: CardSummary
    removals: tuple[Step, ...] = ()
    creations: tuple[Step, ...] = ()
    waiting: tuple[Step, ...] = ()
    problems: tuple[str, ...] = ()


def plan(state: CardState, type_id: str | None, snapshot: Snapshot) -> CardPlan:
    """What becomes of a card that is to have ``type_id``, or nothing of ours (None)."""
    going = tuple(_going(state, type_id))
    removals, waiting = _removals(state, going, snapshot)
    in_the_way = any(each.instance.type_id != type_id for each, _ in going)
    coming = () if type_id is None or in_the_way else _coming(state, type_id, snapshot)
    left = _left(state, type_id)
    possible = tuple(step for step in coming if step.action.attempt not in snapshot.failures)[:left]
    refused = () if len(possible) == left else _refused(coming, snapshot)
    notes = _notes(state, type_id, in_the_way)
    return CardPlan(
        CardSummary(state.card.address, type_id, state.exists, notes),
        removals,
        possible,
        (*waiting, *refused),
        () if in_the_way or going else _shortfall(state, type_id),
    )


def put_off(planned: CardPlan, why: str) -> CardPlan:
    """The same for a card that is not to get its type yet."""
    card = replace(planned.card, type_id=None, notes=(*planned.card.notes, why))
    return replace(planned, card=card, creations=(), problems=())


def _going(state: CardState, type_id: str | None) -> Iterator[tuple[Existing, str]]:
    """The own instances that are to go, and why."""
    kept = []
    if state.desired.as_is is not None or (state.desired.definitions and state.left_alone):
        return
    for existing in state.exists:
        if not existing.own:
            continue
        if state.desired.definitions:
            yield existing, "only what mdevctl defines is wanted on this card"
        elif existing.instance.type_id != type_id:
            yield existing, f"{existing.instance.type_id} is not wanted on this card"
        elif existing.instance.dead:
            yield existing, "it has lost its driver, and is made anew"
        elif not existing.leaving:
            kept.append(existing)
    yield from _too_many(state, type_id, kept)


def _too_many(state: CardState, type_id: str | None, kept: list[Existing]) -> Iterator[tuple[Existing, str]]:
    """What exceeds the count: the held stay first, then those with the lowest ids."""
    count = state.desired.types.get(type_id or "")
    if count is None:
        return
    free_last = sorted(kept, key=lambda existing: existing.holder is None)
    for existing in free_last[count:]:
        yield existing, f"only {count} of {type_id} are wanted on this card"


def _removals(
    state: CardState, going: tuple[tuple[Existing, str], ...], snapshot: Snapshot
) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
    steps, waiting = [], []
    for existing, why in going:
        action = _removal(state.card.address, existing.instance)
        obstacle = _obstacle(existing, state, action, snapshot)
        if obstacle is None:
            steps.append(Step(action, why))
        else:
            waiting.append(Step(action, f"{why}; {obstacle}"))
    return tuple(steps), tuple(waiting)


def _removal(card: str, instance: Instance) -> Action:
    type_id = instance.type_id or ""
    if instance.vgpu:
        return clear_vgpu_type(card, instance.id, type_id)
    return remove_mdev(card, instance.parent, type_id, instance.id)


def _obstacle(existing: Existing, state: CardState, action: Action, snapshot: Snapshot) -> str | None:
    """What a removal waits for; None if it may begin."""
    if existing.leaving:
        return "its removal is under way, and ends when whoever has it open closes it"
    holder = existing.holder or snapshot.reservations.pending.get(existing.instance.id)
    if holder is not None and holder.named:
        return f"held by {holder}"
    if existing.instance.id in snapshot.reservations.admitting:
        return "it was given to a pod a moment ago"
    if state.unread is not None:
        return state.unread
    if not snapshot.allocations.complete:
        return "who holds what is not known"
    if holder is not None:
        return f"held by {holder}"
    if existing.instance.id in snapshot.open:
        return "something on this host has it open, or that cannot be seen"
    refused = snapshot.failures.get(action.attempt)
    return None if refused is None else f"{refused}; it is tried again later"


def _coming(state: CardState, type_id: str, snapshot: Snapshot) -> tuple[Step, ...]:
    """An instance for each room that there is."""
    if state.left_alone or state.unread is not None:
        return ()
    if state.desired.definitions:
        return tuple(_defined(state, type_id, snapshot.host))
    why = _why(state, type_id, _present(state, type_id))
    return tuple(Step(action, why) for action in _new(state.card, type_id, snapshot))


def _left(state: CardState, type_id: str | None) -> int | None:
    """How many more the count allows; None for as many as fit."""
    count = None if state.desired.definitions else state.desired.types.get(type_id or "")
    return None if count is None else max(0, count - _present(state, type_id))


def _present(state: CardState, type_id: str | None) -> int:
    return sum(each.instance.type_id == type_id for each in state.exists)


def _refused(coming: Iterable[Step], snapshot: Snapshot) -> tuple[Step, ...]:
    """One for each attempt that is not to be made again yet."""
    waiting: dict[str, Step] = {}
    for step in coming:
        what = snapshot.failures.get(step.action.attempt)
        if what is not None:
            waiting.setdefault(step.action.attempt, Step(step.action, f"{what}; it is tried again later"))
    return tuple(waiting.values())


def _why(state: CardState, type_id: str, present: int) -> str:
    if present:
        return f"there is room for more of {type_id}"
    if state.desired.shared:
        return f"{type_id} is this card's in the round of the wanted types"
    return f"{type_id} is wanted on this card"


def _new(card: Card, type_id: str, snapshot: Snapshot) -> Iterator[Action]:
    host = snapshot.host
    taken = host.mdevs.keys() | host.leaving.keys()
    for parent in card.parents:
        if not parent.vgpu:
            for uuid in _new_uuids(parent, type_id, taken, snapshot.machine_id):
                yield create_mdev(card.address, parent.address, type_id, uuid)
        elif parent.available(type_id):
            yield set_vgpu_type(card.address, parent.address, type_id)


def _new_uuids(parent: Parent, type_id: str, taken: Set[str], machine_id: str) -> Iterator[str]:
    """As many as the parent has room for, with the lowest numbers that are free."""
    left = parent.available(type_id)
    for index in range(ownership.INDEXES if left else 0):
        uuid = ownership.uuid_of(machine_id, parent.address, type_id, index)
        if uuid in taken:
            continue
        yield uuid
        left -= 1
        if not left:
            return


def _defined(state: CardState, type_id: str, host: Host) -> Iterator[Step]:
    """The defined instances that do not exist yet, while there is room."""
    taken = host.mdevs.keys() | host.leaving.keys()
    room = {parent.address: parent.available(type_id) for parent in state.card.parents}
    for definition in state.desired.definitions:
        if definition.type_id != type_id or definition.uuid in taken or room.get(definition.parent, 0) < 1:
            continue
        room[definition.parent] -= 1
        action = create_mdev(state.card.address, definition.parent, type_id, definition.uuid)
        yield Step(action, "a definition of mdevctl asks for it")


def _notes(state: CardState, type_id: str | None, in_the_way: bool) -> tuple[str, ...]:
    notes = []
    if type_id is not None and in_the_way:
        notes.append(f"it gets {type_id} when it is empty")
    if state.unread is not None:
        notes.append(f"{state.unread}: nothing is made or removed")
    elif state.left_alone:
        reasons = dict.fromkeys(each.apart for each in state.exists if not each.own)
        notes += [f"something is on it that is {apart}: nothing is made beside it" for apart in reasons]
    elif state.desired.as_is is not None:
        notes.append(f"it stays as it is: {state.desired.as_is}")
    elif type_id is None and state.idle is not None:
        notes.append(state.idle)
    elif type_id is None and not any(each.own for each in state.exists):
        notes.append("no wanted type has room on it")
    if any(mdev_type.available is None for parent in state.card.parents for mdev_type in parent.types):
        notes.append("available_instances of a type cannot be read, and counts as 0")
    return tuple(notes)


def _shortfall(state: CardState, type_id: str | None) -> tuple[str, ...]:
    """Counts and definitions that the card cannot meet."""
    if type_id is None or state.left_alone or state.unread is not None:
        return ()
    card = state.card
    fits = _counted(state, type_id) + card.room(type_id)
    wanted = _wanted(state, type_id)
    problems = [
        f"the definition {each.uuid} would mix {each.type_id} with {type_id} on {card.address}"
        for each in state.desired.definitions
        if each.type_id != type_id
    ]
    if wanted is not None and wanted > fits:
        problems.append(f"{card.address}: {wanted} of {type_id} are wanted, and {fits} fit")
    return tuple(problems)


def _counted(state: CardState, type_id: str) -> int:
    """What is there of what is wanted: where instances are defined, only these."""
    defined = {each.uuid for each in state.desired.definitions}
    if defined:
        return sum(each.instance.id in defined for each in state.exists)
    return _present(state, type_id)


def _wanted(state: CardState, type_id: str) -> int | None:
    if state.desired.definitions:
        return sum(each.type_id == type_id for each in state.desired.definitions)
    return state.desired.types.get(type_id)
