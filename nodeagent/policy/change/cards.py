# SPDX-License-Identifier: Apache-2.0
"""Cards: the physical functions that can be split, with what they offer and what exists on them. Pure.

A card is a physical function with all its VFs; a parent that is no PCI function (a sample driver's) is a
card of its own. Two ways of splitting are alike here: mdev parents of the kernel, and VFs of NVIDIA's
vendor-specific VFIO framework (``nvidia/current_vgpu_type``), where each VF holds at most one instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.host import Host, MdevType, PciFunction
from nodeagent.model.ids import PciAddress, pci_address, pci_order
from nodeagent.model.ledger import Ledger
from nodeagent.model.plan import Instance
from nodeagent.policy import groups


@dataclass(frozen=True, slots=True)
class Parent:
    """Where instances are made: an mdev parent, or a VF that takes a vGPU type (``vgpu``)."""

    address: str
    types: tuple[MdevType, ...]
    vgpu: bool = False

    def available(self, type_id: str) -> int:
        """How many instances of the type can still be made here; unknown is none."""
        return sum(mdev_type.available or 0 for mdev_type in self.types if mdev_type.type_id == type_id)


@dataclass(frozen=True, slots=True)
class Card:
    """A physical function, its parents and instances, each in address order.

    ``before`` are types that its VFs have listed since boot: with a type a VF lists no others. ``partial``:
    there may be more of them, as a VF has a type and was never seen without.
    """

    address: str
    parents: tuple[Parent, ...]
    instances: tuple[Instance, ...] = ()
    before: tuple[MdevType, ...] = ()
    partial: bool = False

    @property
    def types(self) -> dict[str, MdevType]:
        """The types that the card knows, by id: what its parents offer, did offer, or what is on it."""
        known: dict[str, MdevType] = {}
        for parent in self.parents:
            for mdev_type in parent.types:
                if mdev_type.type_id not in known or known[mdev_type.type_id].name is None:
                    known[mdev_type.type_id] = mdev_type
        for mdev_type in self.before:
            known.setdefault(mdev_type.type_id, mdev_type)
        for instance in self.instances:
            type_id = instance.type_id
            if type_id is not None and type_id not in known:
                known[type_id] = MdevType(type_id, instance.name, 0)
        return known

    @property
    def unread(self) -> bool:
        """True if something is on the card whose parent is not there.

        Its types were never read, or its driver is going away, and takes the instances with it.
        """
        read = {parent.address for parent in self.parents}
        return any(instance.parent not in read for instance in self.instances)

    def room(self, type_id: str) -> int:
        """How many instances of the type can still be made, as far as its parents tell."""
        return sum(parent.available(type_id) for parent in self.parents)


def cards(host: Host, ledger: Ledger) -> tuple[Card, ...]:
    """All cards of the host in address order; parents that are no PCI functions come last."""
    before: dict[str, dict[str, MdevType]] = {}
    for vf, type_ids in ledger.listed.items():
        known = {type_id: MdevType(type_id, ledger.names.get(type_id), 0) for type_id in type_ids}
        before.setdefault(card_of(host, vf), {}).update(known)
    parents: dict[str, list[Parent]] = {}
    instances: dict[str, list[Instance]] = {}
    for parent in _parents(host, ledger.names):
        parents.setdefault(card_of(host, parent.address), []).append(parent)
    for instance in _instances(host):
        instances.setdefault(card_of(host, instance.parent), []).append(instance)
    return tuple(
        Card(
            address,
            tuple(sorted(parents.get(address, ()), key=lambda parent: order(parent.address))),
            tuple(sorted(instances.get(address, ()), key=_instance_order)),
            tuple(before.get(address, {}).values()),
            any(each.vgpu and each.id not in ledger.listed for each in instances.get(address, ())),
        )
        for address in sorted({*parents, *instances}, key=order)
    )


def card_of(host: Host, parent: str) -> str:
    """The card to which a parent belongs."""
    function = host.functions.get(PciAddress(parent))
    return parent if function is None or function.physfn is None else function.physfn


def order(address: str) -> tuple[bool, int, str]:
    """Sort key: PCI addresses first, in their order."""
    return (pci_address(address) is None, *pci_order(address))


def _instance_order(instance: Instance) -> tuple[tuple[bool, int, str], str]:
    return order(instance.parent), instance.id


def _parents(host: Host, vgpu_names: Mapping[str, str]) -> list[Parent]:
    parents = [Parent(address, types) for address, types in host.mdev_parents.items()]
    vfs = (function for function in host.functions.values() if groups.takes_vgpu(function))
    return parents + [_vgpu(function, vgpu_names) for function in vfs]


def _vgpu(function: PciFunction, vgpu_names: Mapping[str, str]) -> Parent:
    """A VF makes one instance of any type that it lists, unless it has one."""
    present = function.vgpu_type
    if present is None:
        types = tuple(MdevType(type_id, name or None, 1) for type_id, name in function.vgpu_types)
    else:
        known = dict(function.vgpu_types) | dict(vgpu_names)
        types = (MdevType(present, known.get(present), 0),)
    return Parent(function.address, types, vgpu=True)


def _instances(host: Host) -> list[Instance]:
    instances = [
        Instance(
            mdev.uuid,
            mdev.parent,
            mdev.type_id,
            group=mdev.group,
            name=mdev.type_name,
            dead=mdev.driver is None,
        )
        for mdev in host.mdevs.values()
        if mdev.parent is not None
    ]
    return instances + [
        Instance(
            function.address,
            function.address,
            function.vgpu_type,
            group=function.group,
            vgpu=True,
        )
        for function in host.functions.values()
        if groups.vgpu_of(function) is not None
    ]
