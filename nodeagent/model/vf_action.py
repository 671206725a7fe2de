# SPDX-License-Identifier: Apache-2.0
"""The Actions on how many VFs a function has, and on who gets them first: see ``model.action``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class _OfVfs:
    """What both ways to another number of VFs have in common: ``count`` are made, or all removed (0).

    ``vfs`` are the addresses of those that are there before. ``lent``: the PF itself is one that is given to
    VMs, so nobody may get it meanwhile.
    """

    address: str
    count: int
    vfs: tuple[str, ...] = ()
    lent: bool = False

    @property
    def card(self) -> str:
        """The PF: it is a card with its VFs."""
        return self.address

    @property
    def device(self) -> str:
        """One for all PFs: the kernel holds one lock for all changes of this kind."""
        return "sriov_numvfs"

    @property
    def targets(self) -> frozenset[str]:
        """The PF, and what was there."""
        return frozenset((self.address, *self.vfs))

    @property
    def takes(self) -> frozenset[str]:
        """The VFs, if they are removed; and the PF, if it is lent."""
        return frozenset((*(() if self.count else self.vfs), *((self.address,) if self.lent else ())))

    @property
    def type_id(self) -> None:
        """A VF has no type when it is made."""
        return


@dataclass(frozen=True, slots=True)
class SetNumVfs(_OfVfs):
    """Make ``count`` VFs, or remove them all (0); the kernel knows 0 → n and n → 0 only.

    ``unprobed``: ``sriov_drivers_autoprobe`` is off before that, so that no driver of the host gets them.
    """

    unprobed: bool = False

    kind: ClassVar[str] = "set-num-vfs"

    @property
    def attempt(self) -> str:
        """This number on this PF."""
        return f"{self.address}/sriov_numvfs/{self.count}"

    @property
    def undo(self) -> SetNumVfs | None:
        """As many as there were. Which VFs there will be, and who uses them, nobody knows before."""
        return None if self.count else SetNumVfs(self.address, len(self.vfs), lent=self.lent)

    def describe(self) -> str:
        """The change in words."""
        kept = ", with sriov_drivers_autoprobe off" if self.unprobed else ""
        return f"set the number of VFs of {self.address} to {self.count}{kept}"


@dataclass(frozen=True, slots=True)
class RunSriovManage(_OfVfs):
    """Have NVIDIA's sriov-manage make all VFs that a GPU can have (``count``), or remove them (0)."""

    kind: ClassVar[str] = "run-sriov-manage"

    @property
    def attempt(self) -> str:
        """Making, or removing, those of this GPU."""
        return f"{self.address}/sriov-manage/{self.count}"

    @property
    def undo(self) -> RunSriovManage | None:
        """It knows all or none. Which VFs there will be, and who uses them, nobody knows before."""
        return None if self.count else RunSriovManage(self.address, len(self.vfs))

    def describe(self) -> str:
        """The change in words."""
        asked = f"make the {self.count} VFs" if self.count else "remove the VFs"
        return f"have sriov-manage {asked} of {self.address}"


@dataclass(frozen=True, slots=True)
class RestoreAutoprobe:
    """Switch ``sriov_drivers_autoprobe`` of a PF on again, which we have switched off."""

    address: str

    kind: ClassVar[str] = "restore-autoprobe"

    @property
    def card(self) -> str:
        """The PF."""
        return self.address

    @property
    def device(self) -> str:
        """That of the number of VFs: it counts in the moment in which they are made."""
        return "sriov_numvfs"

    @property
    def targets(self) -> frozenset[str]:
        """The PF."""
        return frozenset((self.address,))

    @property
    def takes(self) -> frozenset[str]:
        """Nothing: what has a driver keeps it."""
        return frozenset()

    @property
    def attempt(self) -> str:
        """This of the PF."""
        return f"{self.address}/sriov_drivers_autoprobe"

    @property
    def type_id(self) -> None:
        """A switch has no type."""
        return

    @property
    def undo(self) -> None:
        """It is switched off with the next VFs."""
        return

    def describe(self) -> str:
        """The change in words."""
        return f"switch sriov_drivers_autoprobe of {self.address} on again"
