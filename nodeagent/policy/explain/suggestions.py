# SPDX-License-Identifier: Apache-2.0
"""Suggests devices for a resource that has none: by an alias, from a card, or with another driver. Pure.

A suggested device is matched with rules, aliases and names like a real device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodeagent.model.host import HostDevice, Mdev, MdevType
from nodeagent.model.ids import PciAddress, vgpu_key
from nodeagent.model.snapshot import Names, Snapshot
from nodeagent.model.spec import Spec
from nodeagent.policy import groups
from nodeagent.policy.change.cards import Card, Parent, find_cards
from nodeagent.policy.explain.why import label
from nodeagent.policy.offer import matches


class Suggestion(NamedTuple):
    """A device that the resource could have, and the missing condition for that."""

    message: str
    missing: str


def suggestions(name: str, snapshot: Snapshot) -> tuple[Suggestion, ...]:
    """Return all suggestions: an alias, virt-handler, cards, functions on another driver."""
    return (
        *_from_names(name, snapshot.spec),
        *_from_cards(name, snapshot),
        *_from_functions(name, snapshot),
    )


def _from_names(name: str, spec: Spec) -> Iterator[Suggestion]:
    for old, new in spec.aliases:
        if old == name:
            yield Suggestion(
                f"an alias renames this resource to {new}", f"explain that resource: nodeagent explain {new}"
            )
        if new == name:
            yield Suggestion(
                f"an alias renames a discovered resource to this name: {old}",
                f"no device is discovered as {old}",
            )
    theirs = next((rule for rule in spec.virt_handler_rules.values() if rule.name == name), None)
    if theirs is not None:
        yield Suggestion(
            f"virt-handler offers it ({label(theirs.name, theirs.place)})", "kubectl describe node shows it"
        )


def _from_cards(name: str, snapshot: Snapshot) -> Iterator[Suggestion]:
    for card in find_cards(snapshot):
        for type_id, known in card.types.items():
            parents = [each for each in card.parents if type_id in {of.type_id for of in each.types}]
            if any(_matches_as(name, *_imagine(parent, known, snapshot), snapshot) for parent in parents):
                what = f"{card.address} offers its type {type_id}"
                yield Suggestion(what, _missing_for_type(card, type_id, snapshot))


def _imagine(parent: Parent, mdev_type: MdevType, snapshot: Snapshot) -> tuple[HostDevice | None, Names]:
    """Return a hypothetical instance of the type on the parent, and the names of all types."""
    function = snapshot.host.functions.get(PciAddress(parent.address))
    if not parent.vgpu:
        vendor = function.vendor if function is not None else None
        mdev = Mdev("", parent.address, mdev_type.type_id, mdev_type.name, vendor=vendor)
        return mdev, snapshot.names
    names = {vgpu_key(mdev_type.type_id): mdev_type.name} if mdev_type.name else {}
    vgpu = None if function is None else function._replace(vgpu_type=mdev_type.type_id)
    return vgpu, {**snapshot.names, **names}


def _matches_as(name: str, imagined: HostDevice | None, names: Names, snapshot: Snapshot) -> bool:
    if imagined is None:
        return False
    match = matches.find_match(imagined, None, snapshot.spec, names)
    return match is not None and match.resource == name


def _missing_for_type(card: Card, type_id: str, snapshot: Snapshot) -> str:
    """Return why the card has no instance of the type, and so the first thing that has to change."""
    wanted, room = snapshot.spec.mdevs, card.room(type_id)
    present = [each.type_id or "unknown type" for each in card.instances]
    if not room:
        has = ", ".join(f"{present.count(each)} of {each}" for each in dict.fromkeys(present))
        return (
            f"the card has no room while it has {has}"
            if present
            else "the card has no room for this vGPU type now"
        )
    if wanted.obstacle is not None:
        return wanted.obstacle.line
    if not wanted.manage:
        return f"up to {room} fit, but none is created: mdevs.manage is false"
    if type_id not in card.spec.types:
        return f"up to {room} fit, but the vGPU type is not desired on this card: see mdevs.types"
    return f"up to {room} fit; nodeagent plan shows why"


def _from_functions(name: str, snapshot: Snapshot) -> Iterator[Suggestion]:
    """Yield functions that the resource would match on a VFIO driver."""
    for function in snapshot.host.functions.values():
        if groups.is_assignable(function) or function.bridge:
            continue
        on_vfio = function._replace(driver="vfio-pci", vfio=True, vgpu=False)
        if _matches_as(name, on_vfio, snapshot.names, snapshot):
            yield Suggestion(
                f"{function.address} would match this resource if it were bound to a VFIO driver",
                f"its driver is {function.driver or 'none'}: nodeagent explain {function.address}",
            )
