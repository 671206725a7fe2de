# SPDX-License-Identifier: Apache-2.0
"""Action: one change of the host to make, as a value. Decided by ``policy``, carried out by ``kernel.apply``.

``describe()`` is the change in words. ``key`` names what to look at afterwards to see what became of it
(a write that returns without an error proves nothing). ``device`` is what the write works on: two actions
with one device are never under way at the same time. ``attempt`` tells what a refusal is about: the same
attempt waits then, and no other does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CreateMdev:
    """Make a mediated device: its UUID goes to ``create`` of the type below the parent."""

    parent: str
    type_id: str
    uuid: str

    @property
    def key(self) -> str:
        """The instance; its parent's ``available_instances`` are to be read again, too."""
        return self.uuid

    @property
    def device(self) -> str:
        """The parent: its types share their instances."""
        return self.parent

    @property
    def attempt(self) -> str:
        """Creating on a parent: another UUID would fare no better."""
        return f"{self.parent}/{self.type_id}/create"

    def describe(self) -> str:
        """The change in words."""
        return f"create mdev {self.uuid} of type {self.type_id} on {self.parent}"


@dataclass(frozen=True, slots=True)
class RemoveMdev:
    """Remove a mediated device; the write blocks for as long as anybody has it open."""

    uuid: str
    parent: str
    type_id: str

    @property
    def key(self) -> str:
        """The instance; its parent's ``available_instances`` are to be read again, too."""
        return self.uuid

    @property
    def device(self) -> str:
        """The parent: its types share their instances."""
        return self.parent

    @property
    def attempt(self) -> str:
        """Removing this one instance."""
        return f"{self.uuid}/remove"

    def describe(self) -> str:
        """The change in words."""
        return f"remove mdev {self.uuid} of type {self.type_id} from {self.parent}"


@dataclass(frozen=True, slots=True)
class SetVgpuType:
    """Give a VF a vGPU type of the vendor's driver: ``nvidia/current_vgpu_type`` becomes ``type_id``."""

    address: str
    type_id: str

    @property
    def key(self) -> str:
        """The VF."""
        return self.address

    @property
    def device(self) -> str:
        """The VF."""
        return self.address

    @property
    def attempt(self) -> str:
        """Setting this type."""
        return f"{self.address}/{self.type_id}/set"

    def describe(self) -> str:
        """The change in words."""
        return f"set the vGPU type of {self.address} to {self.type_id}"


@dataclass(frozen=True, slots=True)
class ClearVgpuType:
    """Take the vGPU type of a VF away: ``nvidia/current_vgpu_type`` becomes 0."""

    address: str

    @property
    def key(self) -> str:
        """The VF."""
        return self.address

    @property
    def device(self) -> str:
        """The VF."""
        return self.address

    @property
    def attempt(self) -> str:
        """Clearing whatever is set."""
        return f"{self.address}/clear"

    def describe(self) -> str:
        """The change in words."""
        return f"clear the vGPU type of {self.address}"


@dataclass(frozen=True, slots=True)
class SetNumVfs:
    """Make ``count`` VFs, or none; the kernel knows 0 → n and n → 0 only."""

    address: str
    count: int

    @property
    def key(self) -> str:
        """The PF."""
        return self.address

    @property
    def device(self) -> str:
        """One for all PFs: the kernel holds one lock for all changes of this kind."""
        return "sriov_numvfs"

    @property
    def attempt(self) -> str:
        """This number on this PF."""
        return f"{self.address}/sriov_numvfs/{self.count}"

    def describe(self) -> str:
        """The change in words."""
        return f"set the number of VFs of {self.address} to {self.count}"


Action = CreateMdev | RemoveMdev | SetVgpuType | ClearVgpuType | SetNumVfs


@dataclass(frozen=True, slots=True)
class Step:
    """An action to take now, for the card that it belongs to, and why."""

    action: Action
    card: str
    type_id: str | None
    why: str

    @property
    def place(self) -> tuple[str, str | None]:
        """Card and type: what a refusal is told for, however many attempts there are refused."""
        return self.card, self.type_id


@dataclass(frozen=True, slots=True)
class Waiting:
    """An action that must wait, for the card that it belongs to, and what for."""

    action: Action
    card: str
    why: str
