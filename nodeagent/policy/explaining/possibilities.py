# SPDX-License-Identifier: Apache-2.0
"""What could become a device of a resource that has none: by an alias, of a card, with another driver. Pure.

Each possibility is put to the same matches as a real device, so rules, aliases and names all count.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodeagent.model.desired import Desired
from nodeagent.model.host import Host, HostDevice, Mdev, MdevType, PciFunction
from nodeagent.model.ids import PciAddress, vgpu_key
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.change.cards import Card, Parent, find_cards
from nodeagent.policy.explaining import rules
from nodeagent.policy.offer import matches
from nodeagent.policy.offer.turn import Decision


class Possibility(NamedTuple):
    """What could give a resource a device, and what is missing for that."""

    what: str
    missing: str


def possibilities(name: str, decision: Decision) -> tuple[Possibility, ...]:
    """All that could, the nearest to it first: an alias, virt-handler, cards, functions on another driver."""
    return (
        *_named(name, decision.snapshot.desired),
        *_of_cards(name, decision.snapshot),
        *_of_functions(name, decision.snapshot),
    )


def _named(name: str, desired: Desired) -> Iterator[Possibility]:
    for old, new in desired.aliases:
        if old == name:
            yield Possibility(f"an alias gives it the name {new}", f"ask for that: nodeagent explain {new}")
        if new == name:
            yield Possibility(f"an alias makes it of {old}", f"no device is discovered as {old}")
    theirs = next((rule for rule in desired.foreign.values() if rule.name == name), None)
    if theirs is not None:
        yield Possibility(f"virt-handler offers it ({rules.label(theirs)})", "kubectl describe node shows it")


def _of_cards(name: str, snapshot: Snapshot) -> Iterator[Possibility]:
    for card in find_cards(snapshot):
        for type_id, known in card.types.items():
            parent = next((each for each in card.parents if _makes(name, each, known, snapshot)), None)
            if parent is not None:
                what = f"{card.address} offers its type {type_id}"
                yield Possibility(what, _missing(card, type_id, snapshot))


def _makes(name: str, parent: Parent, mdev_type: MdevType, snapshot: Snapshot) -> bool:
    if all(offered.type_id != mdev_type.type_id for offered in parent.types):
        return False
    imagined = _imagined(parent, mdev_type, snapshot.host)
    if imagined is None:
        return False
    names = snapshot.names
    if parent.vgpu and mdev_type.name:
        names = {**names, vgpu_key(mdev_type.type_id): mdev_type.name}
    match = matches.match_of(imagined, None, snapshot.desired, names)
    return match is not None and match.resource == name


def _imagined(parent: Parent, mdev_type: MdevType, host: Host) -> HostDevice | None:
    """What would be there if the type were made on the parent."""
    function = host.functions.get(PciAddress(parent.address))
    if not parent.vgpu:
        vendor = function.vendor if function is not None else None
        return Mdev("", parent.address, mdev_type.type_id, mdev_type.name, vendor=vendor)
    return None if function is None else function._replace(vgpu_type=mdev_type.type_id)


def _missing(card: Card, type_id: str, snapshot: Snapshot) -> str:
    """Why the card has none of the type: the first thing that a person would have to see to."""
    wanted, room = snapshot.desired.mdevs, card.room(type_id)
    present = [each.type_id or "unknown type" for each in card.instances]
    if not room and present:
        has = ", ".join(f"{present.count(each)} of {each}" for each in dict.fromkeys(present))
        return f"it has no room while it has {has}"
    if not room:
        return "it has no room for it now"
    if wanted.obstacle:
        return wanted.obstacle
    fits = f"up to {room} fit"
    if not wanted.manage:
        return f"{fits}, but none is made: mdevs.manage is false"
    if type_id not in card.spec.types:
        return f"{fits}, but the type is not wanted on this card: see mdevs.types"
    return f"{fits}; nodeagent plan says what becomes of it"


def _of_functions(name: str, snapshot: Snapshot) -> Iterator[Possibility]:
    """Functions that would be taken for it if VFIO had them."""
    for function in snapshot.host.functions.values():
        if groups.ready(function) or function.bridge:
            continue
        match = matches.match_of(_with_vfio(function), None, snapshot.desired, snapshot.names)
        if match is not None and match.resource == name:
            yield Possibility(
                f"{function.address} would be one on a VFIO driver",
                f"its driver is {function.driver or 'none'}: nodeagent explain {function.address}",
            )


def _with_vfio(function: PciFunction) -> PciFunction:
    return function._replace(driver="vfio-pci", vfio=True, vgpu=False)
