# SPDX-License-Identifier: Apache-2.0
"""A simulated kernel for mdevs and vendor vGPUs: a Host, and writes that succeed or fail as Linux' do.

What ``create`` and ``remove`` answer, that the types of a parent share their instances, and that a blocked
removal leaves the bus but keeps its UUID and its room, was measured with the sample drivers mtty and mbochs
on Linux 6.1 and 6.12. That a vGPU card takes one type at a time is NVIDIA's documentation. No files, no
threads: a removal that would block says so by its return value.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.base.errors import InvariantBroken, KernelRefused
from nodeagent.model.change import Action, ActionKind
from nodeagent.model.host import Group, Host, Mdev, MdevType, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, mdev_uuid


@dataclass(frozen=True, slots=True)
class Type:
    """A type: how many of it a whole card holds at most, and its name, if it has one."""

    id: str
    most: int
    name: str | None = None


@dataclass(slots=True)
class Card:
    """A card: its types share its room; ``vfs`` are its parents (none: the card itself is the parent).

    ``mixed`` lets instances of several types be on the card at once, as the sample drivers do. ``vgpu``
    is the vendor-specific framework of VFIO: types are set on VFs, and there are no mdevs.
    """

    address: str
    types: tuple[Type, ...]
    vfs: tuple[str, ...] = ()
    mixed: bool = False
    vgpu: bool = False
    off: frozenset[str] = frozenset()  # types that say 0 available, whatever room there is

    @property
    def parents(self) -> tuple[str, ...]:
        """Where instances are made."""
        return self.vfs or (self.address,)


@dataclass(frozen=True, slots=True)
class _Made:
    parent: str
    type: Type
    group: int


class _Instances:
    """What was made: by name, those that are on their way out, and those without a driver."""

    def __init__(self) -> None:
        self.made: dict[str, _Made] = {}
        self.leaving: set[str] = set()
        self.dead: set[str] = set()
        self._next_group = 100

    def add(self, name: str, parent: str, mdev_type: Type, *, dead: bool) -> None:
        self.made[name] = _Made(parent, mdev_type, self._next_group)
        if dead:
            self.dead.add(name)
        self._next_group += 1

    def forget(self, name: str) -> None:
        self.made.pop(name, None)
        self.leaving.discard(name)
        self.dead.discard(name)

    def available(self, card: Card, parent: str, mdev_type: Type) -> int:
        """Room of the card for the type; a VF takes one instance at most."""
        alive = {name: made for name, made in self.made.items() if name not in self.dead}
        here = [made for made in alive.values() if made.parent in card.parents]
        if mdev_type.id in card.off or (
            not card.mixed and any(made.type.id != mdev_type.id for made in here)
        ):
            return 0
        if card.vfs and any(made.parent == parent for made in here):
            return 0
        used = sum(1 / made.type.most for made in here)
        room = int((1 - used) * mdev_type.most + 1e-6)
        return min(room, 1) if card.vfs else room


@dataclass(slots=True)
class MdevKernel:
    """Cards, what exists on them, who has it open, and which writes are to fail."""

    cards: list[Card]
    errors: dict[tuple[str, str], int] = field(default_factory=dict)  # (card, type) → errno of its writes
    held: set[str] = field(default_factory=set)
    stillborn: bool = False  # no driver takes what is made
    _exists: _Instances = field(default_factory=_Instances, init=False)

    def apply(self, action: Action) -> bool:
        """Make one change; False if it has begun and waits for a holder. :raises KernelRefused: as Linux."""
        if action.kind is ActionKind.CREATE_MDEV:
            self.create(action.parent, action.type_id or "", action.uuid)
            return True
        if action.kind is ActionKind.REMOVE_MDEV:
            return self.remove(action.uuid)
        if action.kind is ActionKind.SET_VGPU_TYPE:
            self.set_vgpu_type(action.address, action.type_id or "")
            return True
        if action.kind is ActionKind.CLEAR_VGPU_TYPE:
            self.set_vgpu_type(action.address, "0")
            return True
        raise InvariantBroken(f"this kernel cannot {action.text}")

    def create(self, parent: str, type_id: str, text: str) -> None:
        """Write a UUID to ``create`` of a type of a parent."""
        card = self.card(parent)
        mdev_type = _type(card, parent, type_id)
        uuid = mdev_uuid(text)
        if uuid is None:
            raise _refused(errno.EINVAL, f"{parent}/{type_id}/create")
        if uuid in self._exists.made:  # a removal that is still blocked keeps its UUID
            raise _refused(errno.EEXIST, f"{parent}/{type_id}/create")
        self._may_fail(card, type_id)
        if self._exists.available(card, parent, mdev_type) < 1:
            raise _refused(errno.ENOSPC, f"{parent}/{type_id}/create")
        self._exists.add(uuid, parent, mdev_type, dead=self.stillborn)

    def remove(self, uuid: str) -> bool:
        """Write 1 to ``remove`` of an instance; False if that blocks until ``release``."""
        made = self._exists.made.get(uuid)
        if made is None or uuid in self._exists.leaving:
            raise _refused(errno.ENOENT, f"{uuid}/remove")
        self._may_fail(self.card(made.parent), made.type.id)
        if uuid in self.held:
            self._exists.leaving.add(uuid)
            return False
        self._exists.forget(uuid)
        return True

    def set_vgpu_type(self, vf: str, type_id: str) -> None:
        """Write a type, or 0, to ``nvidia/current_vgpu_type`` of a VF."""
        card = self.card(vf)
        if vf in self.held:
            raise _refused(errno.EBUSY, f"{vf}/nvidia/current_vgpu_type")
        if type_id == "0":
            self._may_fail(card, self._exists.made[vf].type.id if vf in self._exists.made else "0")
            self._exists.forget(vf)
            return
        vgpu_type = _type(card, vf, type_id)
        self._may_fail(card, type_id)
        if vf in self._exists.made or self._exists.available(card, vf, vgpu_type) < 1:
            raise _refused(errno.EINVAL, f"{vf}/nvidia/current_vgpu_type")
        self._exists.add(vf, vf, vgpu_type, dead=self.stillborn)

    def hold(self, instance: str) -> None:
        """Somebody opens an instance."""
        self.held.add(instance)

    def release(self, instance: str) -> None:
        """Who had it open closes it: a removal that waited ends."""
        self.held.discard(instance)
        if instance in self._exists.leaving:
            self._exists.forget(instance)

    def unbind(self, uuid: str) -> None:
        """An instance loses its driver: it is dead, and gives its room back."""
        self._exists.dead.add(uuid)

    def switch_off(self, address: str, *type_ids: str) -> None:
        """These types of a card, and no others, say that none is available."""
        self.card(address).off = frozenset(type_ids)

    @property
    def instances(self) -> Mapping[str, tuple[str, str]]:
        """Instance → (parent, type), in the order in which they were made; without those on their way out."""
        return {
            name: (made.parent, made.type.id)
            for name, made in self._exists.made.items()
            if name not in self._exists.leaving
        }

    def host(self) -> Host:
        """What a scan would see now."""
        functions = [function for card in self.cards for function in _functions(card, self._exists)]
        dead = self._exists.dead
        made = {name: made for name, made in self._exists.made.items() if mdev_uuid(name) is not None}
        here = [_mdev(name, made[name], dead=name in dead) for name in self.instances if name in made]
        groups = [Group(GroupNumber(one.group), (name,), node=True) for name, one in made.items()]
        return Host(
            functions={function.address: function for function in functions},
            groups={group.number: group for group in groups},
            mdevs={mdev.uuid: mdev for mdev in here},
            mdev_parents={
                parent: _types(card, parent, self._exists)
                for card in self.cards
                if not card.vgpu
                for parent in card.parents
            },
            iommu=True,
        )

    def card(self, parent: str) -> Card:
        """The card that has this address or this parent. :raises KernelRefused: if there is none."""
        for card in self.cards:
            if parent in (card.address, *card.parents):
                return card
        raise _refused(errno.ENOENT, parent)

    def _may_fail(self, card: Card, type_id: str) -> None:
        number = self.errors.get((card.address, type_id))
        if number is not None:
            raise _refused(number, f"{card.address}/{type_id}")


def _type(card: Card, parent: str, type_id: str) -> Type:
    for mdev_type in card.types:
        if mdev_type.id == type_id:
            return mdev_type
    raise _refused(errno.EINVAL if card.vgpu else errno.ENOENT, f"{parent}/{type_id}")


def _mdev(uuid: str, made: _Made, *, dead: bool) -> Mdev:
    return Mdev(
        uuid,
        made.parent,
        made.type.id,
        made.type.name,
        driver=None if dead else "nvidia-vgpu-vfio",
        group=GroupNumber(made.group),
    )


def _functions(card: Card, exists: _Instances) -> list[PciFunction]:
    plain = PciFunction(
        PciAddress(card.address), vendor="10de", device="1eb8", pci_class="030200", driver="nvidia"
    )
    vfs = tuple(PciAddress(vf) for vf in card.vfs)
    physical = plain._replace(vfs=vfs, sriov_capable=bool(vfs))
    return [physical, *(_virtual(card, plain._replace(address=vf), exists) for vf in vfs)]


def _virtual(card: Card, plain: PciFunction, exists: _Instances) -> PciFunction:
    function = plain._replace(physfn=PciAddress(card.address), vgpu=card.vgpu)
    if not card.vgpu:
        return function
    made = exists.made.get(function.address)
    if made is not None:
        return function._replace(vgpu_type=made.type.id)
    room = (one for one in card.types if exists.available(card, function.address, one))
    return function._replace(vgpu_types=tuple((one.id, one.name or "") for one in room))


def _types(card: Card, parent: str, exists: _Instances) -> tuple[MdevType, ...]:
    return tuple(MdevType(one.id, one.name, exists.available(card, parent, one)) for one in card.types)


def _refused(number: int, path: str) -> KernelRefused:
    return KernelRefused(f"{path}: {errno.errorcode[number]}", errno=number, path=path)
