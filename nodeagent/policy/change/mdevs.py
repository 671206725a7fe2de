# SPDX-License-Identifier: Apache-2.0
"""Plans mdevs and vendor vGPUs: computes the steps from the desired types, the cards, the existing instances
and their pods. Pure.

Each card gets one type, and as many instances of it as fit. Instances that nodeagent did not create are kept,
and no others are created beside them, unless the operator lets nodeagent adopt them. Types are assigned to
cards round-robin, in the operator's order. In its turn, a type is assigned to the first unassigned card that
has instances of the type, or that has no instances of any desired type and has room for this one. A card that
has instances of a desired type takes part in the round-robin, so the result is the same after an
interruption. Only unused instances are removed. nodeagent knows only for an empty card how many instances fit
on it. While a card is being emptied, cards that could get several types wait. A removal may wait weeks for a
pod; meanwhile the card remains assigned to the new type.

After the assignment each card is planned separately: no instance is created while instances of another type
exist. An mdev without a driver is removed and created again. An action that the kernel refused is retried
after a delay and keeps its position in the plan; all other actions continue.

The plan is made again after every change: a plan is valid only for the Host from which it was built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import islice

from nodeagent.model.change import (
    Action,
    CardPlan,
    Instance,
    Plan,
    Step,
    clear_vgpu_type,
    create_mdev,
    remove_mdev,
    set_vgpu_type,
)
from nodeagent.model.host import Host, MdevType, PciFunction
from nodeagent.model.problem import Problem, ProblemCode, note, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import MdevSpec, WantedType
from nodeagent.policy import groups, naming
from nodeagent.policy.change import cards, desired_types, guards, ownership
from nodeagent.policy.change.cards import Card, Parent

_MOST_SHOWN = 4  # GPUs that one line names
_MOST = 128
"""Instances of a type on one card without a count: no GPU has room for as many, but types of sample drivers
(and of a broken one) have room for thousands; each would be an IOMMU group and a device of the kubelet."""

NO_MACHINE = "no machine id in /etc/machine-id: mdevs are neither created nor removed without one"
_NEW_MACHINE_ID = "create it on the host: systemd-machine-id-setup"
_CHANGE_TYPES = (
    "change the configuration (nodeagent scan lists the types), or leave it if it is for other nodes"
)
_MIX = (
    "NVIDIA's driver mixes vGPUs of several sizes only in mixed-size mode: drain the node, stop nodeagent, "
    "remove the vGPUs of the card, run nvidia-smi vgpu -i CARD -shm 1 (again after each boot), and start "
    "nodeagent; MIG types need GPU instances of their size; otherwise change the counts"
)
_LOAD_DRIVER = (
    "load the vGPU driver of the card's vendor, and create the VFs of NVIDIA cards with SR-IOV (sriov); "
    "or change mdevs.types, or leave it if it is for other nodes"
)
_DEAL = (
    "no action is needed if this node has fewer cards than types, because a card keeps its type; to assign "
    "all types again, drain this node and set an empty list for this node (mdevs.nodes); when "
    "nodeagent plan shows no vGPUs, remove that empty list"
)


def find_obstacles(wanted: MdevSpec) -> tuple[Problem, ...]:
    """Why mdevs are not managed although ``mdevs.manage`` is set."""
    return () if wanted.obstacle is None else (wanted.obstacle.with_place(),)


def plan(snapshot: Snapshot) -> Plan:
    """The plan for this host: removals first, then creations, card by card in address order.

    The plan is empty unless mdevs are managed, or if the machine id is unknown: then UUIDs of mdevs do not
    show their owner.
    """
    wanted = snapshot.spec.mdevs
    if not wanted.manage:
        return Plan(problems=find_obstacles(wanted))
    if not snapshot.machine_id:
        return Plan(problems=(wrong(ProblemCode.CHANGE, "", NO_MACHINE, _NEW_MACHINE_ID),))
    listed = desired_types.list_for_node(wanted, dict(snapshot.spec.labels))
    found = cards.find_cards(snapshot)
    types = tuple(desired_types.match_by_id(listed, _mdev_types(found)))
    plans = _plan_cards(found, types, snapshot)
    problems = [
        wrong(ProblemCode.CHANGE, "", text, _CHANGE_TYPES)
        for text in _find_problems(wanted, listed, found, snapshot.host)
    ]
    problems += _find_missing_types(wanted, listed, found, snapshot.host)
    problems += [
        wrong(ProblemCode.SHORTFALL, each.address, text, _MIX if len(each.types) > 1 else _CHANGE_TYPES)
        for each in plans
        for text in each.shortfalls
    ]
    return Plan(
        (*(step for each in plans for step in each.removals), *(s for each in plans for s in each.creations)),
        tuple(step for each in plans for step in each.waiting),
        tuple(plans),
        tuple(dict.fromkeys(problems)),
        (
            *(
                note(ProblemCode.OTHER_CARDS, text, about=text)
                for text in _find_types_of_others(listed, found)
            ),
            *_find_types_without_card(types, found, plans),
        ),
    )


# The round


def _plan_cards(found: Sequence[Card], types: Sequence[str], snapshot: Snapshot) -> list[CardPlan]:
    """The plan of each card: the round-robin assigns its type, unless the card has a separate list or foreign
    instances.
    """
    in_round = [card for card in found if card.spec.shared and not card.has_foreign]
    assigned = assign_types(types, in_round)
    plans = [
        _plan_card(
            card, assigned.get(card.address, ()) if card in in_round else _choose_types(card), snapshot
        )
        for card in found
    ]
    new = {card.address: card for card in in_round if _find_present_type(card) is None}
    emptied = next((each.address for each in plans if each.removals and each.address in new), None)
    if emptied is None:
        return plans
    why = f"its vGPU type is assigned when {emptied} has no vGPUs"
    return [
        replace(each, types=(), notes=(*each.notes, why), creations=(), shortfalls=())
        if each.creations and each.address in new and len(_find_fitting_types(new[each.address])) > 1
        else each
        for each in plans
    ]


def assign_types(types: Sequence[str], open_cards: Sequence[Card]) -> dict[str, tuple[str]]:
    """Assign types to cards round-robin: card → its one type, for the cards that get one."""
    assigned: dict[str, tuple[str]] = {}
    remaining = list(open_cards)
    while True:
        before = len(remaining)
        for type_id in types:
            card = next((each for each in remaining if _can_assign(each, type_id)), None)
            if card is not None:
                assigned[card.address] = (type_id,)
                remaining.remove(card)
        if len(remaining) == before:
            return assigned


def _can_assign(card: Card, type_id: str) -> bool:
    """True if the card can be assigned to the type."""
    there = _find_present_type(card)
    return there == type_id if there is not None else type_id in _find_fitting_types(card)


def _find_present_type(card: Card) -> str | None:
    """The desired type of which the card has instances that nodeagent may remove."""
    own = {each.type_id for each in card.instances if each.own}
    return next((type_id for type_id in card.spec.types if type_id in own), None)


def _find_fitting_types(card: Card) -> list[str]:
    """The desired types that the card could get; all of them have room if the card is emptied first."""
    emptied = any(each.own for each in card.instances)
    return [each for each in card.spec.types if each in card.types and (emptied or card.room(each) > 0)]


def _choose_types(card: Card) -> tuple[str, ...]:
    """The types of a card that is not part of the round-robin; a card with foreign instances keeps its own
    instances of desired types.

    An entry of the card's list may name several type ids: it then means the type of existing instances, else
    the first type that fits.
    """
    if card.spec.definitions:
        return tuple(card.spec.types)
    own = {each.type_id for each in card.instances if each.own}
    if card.has_foreign:
        return tuple(type_id for type_id in card.spec.types if type_id in own)
    fitting = _find_fitting_types(card)
    named: dict[WantedType, list[str]] = {}
    for type_id, wanted in card.spec.types.items():
        named.setdefault(wanted, []).append(type_id)
    return tuple(
        min(ids, key=lambda type_id: (type_id not in own, type_id not in fitting)) for ids in named.values()
    )


# One card


def _plan_card(card: Card, types: Sequence[str], snapshot: Snapshot) -> CardPlan:
    """The plan of a card that gets instances of these types, or loses all own instances if there are no
    types.
    """
    going = tuple(_find_surplus(card, types))
    removals: list[Step] = []
    waiting: list[Step] = []
    for instance, why in going:
        action = _build_removal(card.address, instance)
        obstacle = _find_obstacle(instance, card, action, snapshot)
        if obstacle is None:
            removals.append(Step(action, why))
        else:
            waiting.append(Step(action, f"{why}; {obstacle}"))
    in_the_way = any(instance.type_id not in types for instance, _ in going)
    creations: list[Step] = []
    for type_id in () if in_the_way else types:
        taken = {step.action.device for step in creations}
        coming = tuple(_plan_creations(card, type_id, taken, snapshot))
        remaining = (
            len(coming) if card.spec.definitions else max(0, _find_limit(card, type_id) - card.count(type_id))
        )
        due = [step for step in coming if step.action.attempt not in snapshot.failures][:remaining]
        creations += due
        if len(due) < remaining:
            waiting += _list_retried(coming, snapshot)
    return CardPlan(
        card.address,
        tuple(types),
        card.instances,
        _build_notes(card, types, in_the_way),
        tuple(removals),
        tuple(creations),
        tuple(waiting),
        () if in_the_way or going else tuple(_find_shortfalls(card, types)),
    )


def _find_limit(card: Card, type_id: str) -> int:
    """How many instances of the vGPU type the card may have, if no definitions of mdevctl name the card."""
    return card.spec.count(type_id) or _MOST


def _find_surplus(card: Card, types: Sequence[str]) -> Iterator[tuple[Instance, str]]:
    """The own instances to remove, and why; of too many instances, those that no pod uses are removed, the
    highest ids first.
    """
    spec, kept = card.spec, dict[str | None, list[Instance]]()
    if spec.as_is is not None or (spec.definitions and card.has_foreign):
        return
    for instance in card.instances:
        if not instance.own:
            continue
        if spec.definitions:
            yield instance, "only mdevs that mdevctl defines are desired on this card"
        elif instance.type_id not in types:
            yield instance, f"{instance.type_id} is not desired on this card"
        elif instance.dead:
            yield instance, "the mdev has lost its driver; it is removed and created again"
        elif not instance.leaving:
            kept.setdefault(instance.type_id, []).append(instance)
    for type_id, present in kept.items():
        count = spec.count(type_id) or len(present)
        for instance in sorted(present, key=lambda each: each.holder is None)[count:]:
            yield instance, f"only {count} of {type_id} are desired on this card"


def _build_removal(card: str, instance: Instance) -> Action:
    type_id = instance.type_id or ""
    if instance.vgpu:
        return clear_vgpu_type(card, instance.id, type_id)
    return remove_mdev(card, instance.parent, type_id, instance.id)


def _find_obstacle(instance: Instance, card: Card, action: Action, snapshot: Snapshot) -> str | None:
    """The use for which a removal waits, as a text; None if it may begin."""
    if instance.leaving:
        return "its removal ends when the process that has the mdev open closes it"
    holder = instance.holder or snapshot.reservations.pending.get(instance.id)
    if holder is not None and holder.named:
        return f"in use by {holder}"
    if instance.id in snapshot.reservations.admitting:
        return "it was allocated to a pod a moment ago"
    if card.unread is not None:
        return card.unread
    if not snapshot.allocations.complete:
        return guards.UNKNOWN
    if holder is not None:
        return f"in use by {holder}"
    if instance.id in snapshot.open:
        return "a process on this host has it open, or open files cannot be read"
    refused = snapshot.failures.get(action.attempt)
    return None if refused is None else f"{refused}; it is retried later"


def _plan_creations(card: Card, type_id: str, taken: Set[str], snapshot: Snapshot) -> Iterator[Step]:
    """The steps that fill the card with instances of the type.

    ``taken`` are the parents on which other steps create instances, because a VF has one instance at most.
    """
    if card.has_foreign or card.unread is not None:
        return
    used = snapshot.host.mdevs.keys() | snapshot.host.leaving.keys()
    parents = [each for each in card.parents if each.address == card.address or each.address not in taken]
    if card.spec.definitions:
        yield from _plan_defined(card, parents, type_id, used)
        return
    named = _describe_type(type_id, card.spec.types[type_id].name)
    why = f"{named} is desired on this card"
    if card.count(type_id):
        why = f"there is room for more of {named}"
    elif card.spec.shared:
        why = f"{named} is assigned to this card (round-robin over mdevs.types)"
    for parent in parents:
        if not parent.vgpu:
            for uuid in islice(
                _new_uuids(parent, type_id, used, snapshot.machine_id), _find_limit(card, type_id)
            ):
                yield Step(create_mdev(card.address, parent.address, type_id, uuid), why)
        elif parent.available(type_id):
            yield Step(set_vgpu_type(card.address, parent.address, type_id), why)


def _describe_type(type_id: str, name: str) -> str:
    """The id of a vGPU type, with the name by which the type is configured."""
    is_id = naming.normalize_type(name) in naming.type_names(type_id, None)
    return type_id if is_id else f'{type_id} ("{name}")'


def _new_uuids(parent: Parent, type_id: str, used: Set[str], machine_id: str) -> Iterator[str]:
    """The UUIDs for as many mdevs as the parent has room for, with the lowest free indexes."""
    remaining = parent.available(type_id)
    for index in range(ownership.INDEXES if remaining else 0):
        uuid = ownership.build_uuid(machine_id, parent.address, type_id, index)
        if uuid in used:
            continue
        yield uuid
        remaining -= 1
        if not remaining:
            return


def _plan_defined(card: Card, parents: Sequence[Parent], type_id: str, used: Set[str]) -> Iterator[Step]:
    """The steps for mdevs that mdevctl defines and that do not exist yet, as long as there is room."""
    room = {parent.address: parent.available(type_id) for parent in parents}
    for definition in card.spec.definitions:
        if definition.type_id != type_id or definition.uuid in used or room.get(definition.parent, 0) < 1:
            continue
        room[definition.parent] -= 1
        action = create_mdev(card.address, definition.parent, type_id, definition.uuid)
        yield Step(action, "defined in mdevctl")


def _list_retried(coming: Sequence[Step], snapshot: Snapshot) -> list[Step]:
    """One waiting step for each kind of action that the kernel refused and that is retried later."""
    waiting: dict[str, Step] = {}
    for step in coming:
        failure = snapshot.failures.get(step.action.attempt)
        if failure is not None:
            waiting.setdefault(step.action.attempt, Step(step.action, f"{failure}; it is retried later"))
    return list(waiting.values())


def _build_notes(card: Card, types: Sequence[str], in_the_way: bool) -> tuple[str, ...]:
    notes = []
    if types and in_the_way:
        notes.append(f"the card gets {' and '.join(types)} when its other vGPUs are removed")
    if card.unread is not None:
        notes.append(f"{card.unread}: nothing is created or removed")
    elif card.has_foreign:
        reasons = dict.fromkeys(each.foreign for each in card.instances if not each.own)
        notes += [f"skipped: it has vGPUs {foreign}" for foreign in reasons]
    elif card.spec.as_is is not None:
        notes.append(f"unchanged: {card.spec.as_is}")
    elif not types and card.idle is not None:
        notes.append(card.idle)
    elif not types and not any(each.own for each in card.instances):
        notes.append("the card has no room for a desired vGPU type")
    for type_id in types if card.unread is None and not card.has_foreign else ():
        fits = card.count(type_id) + card.room(type_id)
        if card.spec.count(type_id) is None and fits > _MOST:
            notes.append(
                f"without a count, at most {_MOST} of {type_id} are created, but {fits} fit: see mdevs.types"
            )
    if any(mdev_type.available is None for parent in card.parents for mdev_type in parent.types):
        notes.append("available_instances of a vGPU type cannot be read, and counts as 0")
    return tuple(notes)


def _find_shortfalls(card: Card, types: Sequence[str]) -> Iterator[str]:
    """Counts and definitions that the card cannot meet, as texts."""
    if card.has_foreign or card.unread is not None:
        return
    defined = {each.uuid for each in card.spec.definitions}
    for type_id in types:
        present = sum(
            each.type_id == type_id and (not defined or each.id in defined) for each in card.instances
        )
        count, fits = card.spec.count(type_id), present + card.room(type_id)
        if count is not None and count > fits:
            named = _describe_type(type_id, card.spec.types[type_id].name)
            others = [
                f"{card.count(each)} of {each}" for each in types if each != type_id and card.count(each)
            ]
            beside = f" beside {' and '.join(others)}" if others else ""
            yield f"{card.address}: {count} of {named} are desired, and {fits} fit{beside}"


# What is wrong with the spec


def _find_problems(
    wanted: MdevSpec, listed: Sequence[WantedType], found: Sequence[Card], host: Host
) -> list[str]:
    """The parts of the spec that this node cannot meet, as texts; the rest is carried out."""
    mdev_types = _mdev_types(found)
    if not mdev_types:
        return []
    asked = (*listed, *(each for card in found for each in card.spec.unmet))
    excluded = desired_types.find_ids(wanted.excluded, mdev_types)
    meant = {each: desired_types.match_by_id([each], mdev_types).keys() for each in asked}
    others = _find_types_of_others(listed, found)
    unknown = [
        text for each in asked if not meant[each] and (text := _describe_unoffered(each)) not in others
    ]
    both = [
        f'the type "{each.name}" is both listed and excluded (mdevs.exclude), so it is not created'
        for each in asked
        if meant[each] & excluded
    ]
    here = [
        f'{card.address} does not offer the type "{each.name}" of its list'
        for card in found
        for each in card.spec.unmet
        if meant[each] - excluded and not (card.unread or card.partial)
    ]
    lost = [
        f"the definition {each.uuid} {flaw}"
        for each in wanted.definitions
        if (flaw := cards.find_flaw(each, host, excluded)) is not None
    ]
    if wanted.cards and not any(cards.find_rules(card, wanted.cards, host) for card in found):
        lost.append("no entry of the vgpu-device-manager configuration matches a card of this node")
    is_unread = any(card.unread for card in found)
    return [*([] if _is_partial(found) else unknown), *both, *here, *([] if is_unread else lost)]


def _find_missing_types(
    wanted: MdevSpec, listed: Sequence[WantedType], found: Sequence[Card], host: Host
) -> Iterator[Problem]:
    """A Problem if types are desired but no card supports vGPUs; its text names the drivers of the GPUs."""
    if not _mdev_types(found) and (listed or wanted.definitions or any(rule.types for rule in wanted.cards)):
        gpus = [each for each in host.functions.values() if (each.pci_class or "").startswith("03")]
        causes = naming.shorten([_describe_driver(each) for each in gpus if each.physfn is None], _MOST_SHOWN)
        text = "no card of this node offers mediated devices or vGPU types" + (
            f": {causes}" if causes else ""
        )
        yield wrong(ProblemCode.CHANGE, "", text, _LOAD_DRIVER if causes else _CHANGE_TYPES)


def _describe_driver(gpu: PciFunction) -> str:
    if gpu.driver == groups.VENDOR_DRIVER and gpu.sriov_capable and not gpu.vfs:
        return f"{gpu.address} has no VFs"
    return f"{gpu.address} has the driver {gpu.driver}" if gpu.driver else f"{gpu.address} has no driver"


def _find_types_of_others(listed: Sequence[WantedType], found: Sequence[Card]) -> tuple[str, ...]:
    """The types in the Node's list that no card of this host supports, if cards support other types in the
    list.

    Such types are not reported as a problem, because one list may be for several models of cards.
    """
    mdev_types = _mdev_types(found)
    missing = [each for each in listed if not desired_types.match_by_id([each], mdev_types)]
    return (
        () if len(missing) == len(listed) or _is_partial(found) else tuple(map(_describe_unoffered, missing))
    )


def _find_types_without_card(
    types: Sequence[str], found: Sequence[Card], plans: Sequence[CardPlan]
) -> Iterator[Problem]:
    """The types in the Node's list that are created nowhere, because all cards that support them have other
    types.
    """
    if any(each.removals for each in plans):
        return  # a card that is emptied may get the type
    types_of = {each.address: each.types for each in plans}
    assigned = {type_id for each in plans for type_id in each.types}
    for type_id in types:
        offering = [card.address for card in found if card.spec.shared and type_id in card.types]
        if offering and type_id not in assigned and all(types_of[each] for each in offering):
            have = naming.shorten([f"{each} has {' and '.join(types_of[each])}" for each in offering])
            text = f"{type_id} is desired, but no card is free: {have}"
            yield note(ProblemCode.NO_CARD, text, _DEAL, type_id)


def _describe_unoffered(wanted: WantedType) -> str:
    return f'no card of this node offers the type "{wanted.name}"'


def _is_partial(found: Sequence[Card]) -> bool:
    """True if not all types of all cards are known."""
    return any(card.unread or card.partial for card in found)


def _mdev_types(found: Sequence[Card]) -> tuple[MdevType, ...]:
    return tuple(mdev_type for card in found for mdev_type in card.types.values())
