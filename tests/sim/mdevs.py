# SPDX-License-Identifier: Apache-2.0
"""The rules of the simulated cards without files: a Host as a scan finds it, and Actions that change it."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.base.errors import InternalError
from nodeagent.model.change import Action, ActionKind
from nodeagent.model.host import Group, Host, Mdev, MdevType, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, mdev_uuid
from nodeagent.sim.mdev import Card, Instance, MdevKernel


@dataclass(slots=True)
class ModelKernel(MdevKernel):
    """Cards in the terms of the planner."""

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
        raise InternalError(f"this kernel cannot {action.text}")

    def unbind(self, uuid: str) -> None:
        """An instance loses its driver: it is dead, and gives its room back."""
        self.made[uuid].dead = True

    def host(self) -> Host:
        """The Host that a scan would find now."""
        functions = [function for card in self.cards for function in self._functions(card)]
        made = {name: made for name, made in self.made.items() if mdev_uuid(name) is not None}
        groups = [Group(GroupNumber(one.group), (name,), node=True) for name, one in made.items()]
        return Host(
            functions={function.address: function for function in functions},
            groups={group.number: group for group in groups},
            mdevs={name: _mdev(name, one) for name, one in made.items() if not one.leaving},
            mdev_parents={
                parent: tuple(
                    MdevType(one.id, one.name, self.available(card, parent, one)) for one in card.types
                )
                for card in self.cards
                if not card.vgpu
                for parent in card.parents
            },
            iommu=True,
        )

    def _functions(self, card: Card) -> list[PciFunction]:
        plain = PciFunction(
            PciAddress(card.address), vendor="10de", device="1eb8", pci_class="030200", driver="nvidia"
        )
        vfs = tuple(PciAddress(vf) for vf in card.vfs)
        physical = plain._replace(vfs=vfs, sriov_capable=bool(vfs))
        return [physical, *(self._virtual(card, plain._replace(address=vf)) for vf in vfs)]

    def _virtual(self, card: Card, plain: PciFunction) -> PciFunction:
        function = plain._replace(physfn=PciAddress(card.address), vgpu=card.vgpu)
        if not card.vgpu:
            return function
        if (made := self.made.get(function.address)) is not None:
            return function._replace(vgpu_type=made.type.id)
        room = (one for one in card.types if self.available(card, function.address, one))
        return function._replace(vgpu_types=tuple((one.id, one.name or "") for one in room))


def _mdev(uuid: str, made: Instance) -> Mdev:
    driver = None if made.dead else "nvidia-vgpu-vfio"
    return Mdev(uuid, made.parent, made.type.id, made.type.name, driver, GroupNumber(made.group))
