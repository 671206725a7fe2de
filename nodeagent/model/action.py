# SPDX-License-Identifier: Apache-2.0
"""Action: one change of the host to make, as a value. Decided by ``policy``, carried out by ``kernel.apply``.

An Action says by itself all that others need to know of it, so a new one is a class here, a module in
``policy.change`` that plans it, and one in ``kernel.apply`` that writes it. For VFs see ``vf_action``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from nodeagent.model.ids import pci_order, vfio_driver
from nodeagent.model.vf_action import RestoreAutoprobe, RunSriovManage, SetNumVfs


class Action(Protocol):
    """What every change says of itself."""

    kind: ClassVar[str]
    """One of ``KINDS``."""

    @property
    def card(self) -> str:
        """The card that it works on."""

    @property
    def device(self) -> str:
        """What the write works on: two actions with one device are never under way at the same time."""

    @property
    def targets(self) -> frozenset[str]:
        """What is scanned afterwards: a write that returns without an error proves nothing."""

    @property
    def takes(self) -> frozenset[str]:
        """The ids that it takes away from whoever uses them."""

    @property
    def attempt(self) -> str:
        """What a refusal is about: the same attempt waits then, and no other does."""

    @property
    def type_id(self) -> str | None:
        """The type of what is made or removed, if it has one: a card's refusals are logged once for each."""

    @property
    def undo(self) -> Action | None:
        """The action that reverses it; None if that cannot be said before it is made."""

    def describe(self) -> str:
        """The change in words."""


@dataclass(frozen=True, slots=True)
class _OfMdev:
    """What both changes of a mediated device have in common."""

    card: str
    parent: str
    type_id: str
    uuid: str

    @property
    def device(self) -> str:
        """The parent: its types share their instances."""
        return self.parent

    @property
    def targets(self) -> frozenset[str]:
        """The instance; its parent's ``available_instances`` are to be read again, too."""
        return frozenset((self.uuid,))


@dataclass(frozen=True, slots=True)
class CreateMdev(_OfMdev):
    """Make a mediated device: its UUID goes to ``create`` of the type below the parent."""

    kind: ClassVar[str] = "create-mdev"

    @property
    def takes(self) -> frozenset[str]:
        """Nothing."""
        return frozenset()

    @property
    def attempt(self) -> str:
        """Creating on a parent: another UUID would fare no better."""
        return f"{self.parent}/{self.type_id}/create"

    @property
    def undo(self) -> Action:
        """Its removal."""
        return RemoveMdev(self.card, self.parent, self.type_id, self.uuid)

    def describe(self) -> str:
        """The change in words."""
        return f"create mdev {self.uuid} of type {self.type_id} on {self.parent}"


@dataclass(frozen=True, slots=True)
class RemoveMdev(_OfMdev):
    """Remove a mediated device; the write blocks for as long as anybody has it open."""

    kind: ClassVar[str] = "remove-mdev"

    @property
    def takes(self) -> frozenset[str]:
        """The instance."""
        return frozenset((self.uuid,))

    @property
    def attempt(self) -> str:
        """Removing this one instance."""
        return f"{self.uuid}/remove"

    @property
    def undo(self) -> Action:
        """Making it again, with the same UUID."""
        return CreateMdev(self.card, self.parent, self.type_id, self.uuid)

    def describe(self) -> str:
        """The change in words."""
        return f"remove mdev {self.uuid} of type {self.type_id} from {self.parent}"


@dataclass(frozen=True, slots=True)
class _OfVgpu:
    """What both changes of a VF with a vendor's vGPU type have in common."""

    card: str
    address: str
    type_id: str

    @property
    def device(self) -> str:
        """The VF."""
        return self.address

    @property
    def targets(self) -> frozenset[str]:
        """The VF."""
        return frozenset((self.address,))


@dataclass(frozen=True, slots=True)
class SetVgpuType(_OfVgpu):
    """Give a VF a vGPU type of the vendor's driver: ``nvidia/current_vgpu_type`` becomes ``type_id``."""

    kind: ClassVar[str] = "set-vgpu-type"

    @property
    def takes(self) -> frozenset[str]:
        """Nothing: a VF without a type cannot be given away."""
        return frozenset()

    @property
    def attempt(self) -> str:
        """Setting this type."""
        return f"{self.address}/{self.type_id}/set"

    @property
    def undo(self) -> Action:
        """Taking the type away."""
        return ClearVgpuType(self.card, self.address, self.type_id)

    def describe(self) -> str:
        """The change in words."""
        return f"set the vGPU type of {self.address} to {self.type_id}"


@dataclass(frozen=True, slots=True)
class ClearVgpuType(_OfVgpu):
    """Take the vGPU type of a VF away: ``nvidia/current_vgpu_type`` becomes 0. It is ``type_id`` before."""

    kind: ClassVar[str] = "clear-vgpu-type"

    @property
    def takes(self) -> frozenset[str]:
        """The VF, which is nobody's without a type."""
        return frozenset((self.address,))

    @property
    def attempt(self) -> str:
        """Clearing whatever is set."""
        return f"{self.address}/clear"

    @property
    def undo(self) -> Action:
        """Setting the same type again."""
        return SetVgpuType(self.card, self.address, self.type_id)

    def describe(self) -> str:
        """The change in words."""
        return f"clear the vGPU type of {self.address}"


class Move(NamedTuple):
    """A function on its way from the driver ``now`` to the driver ``to``; None is no driver.

    ``back``: the driver that it gets if its group cannot follow: its own, before anything was bound here. So
    what has arrived already (``now`` is ``to``) is among the moves as well.
    """

    address: str
    now: str | None
    to: str | None
    back: str | None


@dataclass(frozen=True, slots=True)
class _OfDrivers:
    """What both changes of drivers have in common: functions of one IOMMU group, in the order of the moves.

    All of them or none: what fails is taken back. ``lent`` are the functions of the group that are given to
    VMs now, moved or not: nobody may get one meanwhile. The host may lose those in ``forced``, whatever it
    does with them.
    """

    card: str
    moves: tuple[Move, ...]
    lent: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The group, by its first function."""
        return self.card

    @property
    def targets(self) -> frozenset[str]:
        """The functions."""
        return frozenset(move.address for move in self.moves)

    @property
    def takes(self) -> frozenset[str]:
        """What of the group can be given to a VM."""
        return frozenset(self.lent)

    @property
    def type_id(self) -> None:
        """A driver is no type."""
        return

    def _named(self) -> str:
        """The addresses, by driver to come: ``0000:3b:00.0, 0000:3b:00.1 to vfio-pci``."""
        by_driver: dict[str | None, list[str]] = {}
        moves = [move for move in self.moves if move.now != move.to] or self.moves
        for move in sorted(moves, key=lambda move: pci_order(move.address)):
            by_driver.setdefault(move.to, []).append(move.address)
        return "; ".join(
            f"{', '.join(each)} to {driver or 'no driver'}" for driver, each in by_driver.items()
        )


@dataclass(frozen=True, slots=True)
class BindDrivers(_OfDrivers):
    """Give functions of one IOMMU group to VFIO drivers."""

    kind: ClassVar[str] = "bind-drivers"

    @property
    def attempt(self) -> str:
        """Binding this group."""
        return f"{self.card}/bind"

    @property
    def undo(self) -> Action:
        """Giving them back."""
        backs = tuple(Move(move.address, move.to, move.back, move.back) for move in reversed(self.moves))
        return RestoreDrivers(self.card, backs, tuple(sorted(self.targets)))

    def describe(self) -> str:
        """The change in words."""
        return f"bind {self._named()}"


@dataclass(frozen=True, slots=True)
class RestoreDrivers(_OfDrivers):
    """Give functions of one IOMMU group the drivers back that they had before they were bound."""

    kind: ClassVar[str] = "restore-drivers"

    @property
    def attempt(self) -> str:
        """Restoring this group."""
        return f"{self.card}/restore"

    @property
    def undo(self) -> Action | None:
        """Binding them again; None where they have no VFIO driver any more."""
        moves = tuple(Move(move.address, move.to, move.now, move.to) for move in reversed(self.moves))
        return BindDrivers(self.card, moves) if all(vfio_driver(move.to) for move in moves) else None

    def describe(self) -> str:
        """The change in words; what has its driver already may still have our override."""
        if any(move.now != move.to for move in self.moves):
            return f"give back {self._named()}"
        addresses = sorted((move.address for move in self.moves), key=pci_order)
        return f"see that no driver_override of ours is left on {', '.join(addresses)}"


def moved(action: Action) -> frozenset[str]:
    """The functions that get another driver by it, or may when it is taken back."""
    if not isinstance(action, BindDrivers | RestoreDrivers):
        return frozenset()
    return frozenset(move.address for move in action.moves if len({move.now, move.to, move.back}) > 1)


def occupied(action: Action) -> frozenset[str]:
    """What no other action may be made on meanwhile: its device, and functions that get another driver.

    A group is named by its first function, and may lose that meanwhile.
    """
    return moved(action) | {action.device}


_ALL = (
    *(CreateMdev, RemoveMdev, SetVgpuType, ClearVgpuType),
    *(SetNumVfs, RunSriovManage, RestoreAutoprobe, BindDrivers, RestoreDrivers),
)
KINDS = tuple(kind.kind for kind in _ALL)
"""The kinds of all Actions that there are."""


@dataclass(frozen=True, slots=True)
class Step:
    """An action, and why it is to be taken; of one that waits also what for."""

    action: Action
    why: str

    @property
    def place(self) -> tuple[str, str | None]:
        """Card and type: what a refusal is logged for, however many attempts there are refused."""
        return self.action.card, self.action.type_id
