# SPDX-License-Identifier: Apache-2.0
"""Small hosts made of values for the tests of the pure layers; a plain function is a T4 ready to be given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nodeagent.model.allocation import Allocations, Holder, Knowledge, Reservations, unnamed
from nodeagent.model.host import Group, Host, HostDevice, Mdev, PciFunction, UsbDevice
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.snapshot import Names, Snapshot
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec

NODES = frozenset({"/dev/vfio/vfio"})
GPU = "nvidia.com/gpu"
RULE = PciRule(GPU, (PciSelector(vendors=("10de",)),))
WISH = Spec(Discovery(enabled=False), rules=(RULE,))


def function(address: str = "0000:65:00.0", group: int | None = 1, **other: Any) -> PciFunction:
    """A T4 bound to vfio-pci; give ``driver=None`` or another one for a function that is not."""
    values: dict[str, Any] = {
        "vendor": "10de",
        "device": "1eb8",
        "subsystem_vendor": "10de",
        "subsystem_device": "12a2",
        "pci_class": "030200",
        "driver": "vfio-pci",
        "numa_node": 0,
        "enable": 0,
        "inode": 1,
    } | other
    values.setdefault("vfio", values["driver"] == "vfio-pci")
    number = None if group is None else GroupNumber(group)
    return PciFunction(PciAddress(address), group=number, **values)


UUID = "53764d0e-85a0-42b4-af5c-2046b460b1dc"


def mdev(uuid: str = UUID, group: int | None = 50, **other: Any) -> Mdev:
    """A GRID T4-1Q of a T4, ready to be given."""
    values: dict[str, Any] = {
        "parent": "0000:65:00.0",
        "type_id": "nvidia-222",
        "type_name": "GRID T4-1Q",
        "driver": "nvidia-vgpu-vfio",
        "numa_node": 0,
        "vendor": "10de",
    } | other
    return Mdev(uuid, group=None if group is None else GroupNumber(group), **values)


def vgpu(address: str = "0000:65:00.4", group: int = 20, **other: Any) -> PciFunction:
    """A VF on NVIDIA's own driver that is a vGPU of type 1147."""
    values = {
        "driver": "nvidia",
        "physfn": PciAddress("0000:65:00.0"),
        "vgpu": True,
        "vgpu_type": "1147",
    } | other
    return function(address, group, **values)


def host(*host_devices: HostDevice, **other: Any) -> Host:
    """A host of these functions and mdevs; each group has its node where something in it is ready."""
    members: dict[GroupNumber, list[HostDevice]] = {}
    for each in host_devices:
        if each.group is not None:
            members.setdefault(each.group, []).append(each)
    groups = {
        number: Group(number, tuple(each.id for each in found), "DMA", node=any(map(_has_node, found)))
        for number, found in members.items()
    }
    values: dict[str, Any] = {
        "nodes": NODES,
        "numa_nodes": frozenset({0, 1}),
        "iommu": True,
        "groups": groups,
    } | other
    functions = {each.address: each for each in host_devices if isinstance(each, PciFunction)}
    values.setdefault("usb", {each.id: each for each in host_devices if isinstance(each, UsbDevice)})
    values.setdefault("mdevs", {each.uuid: each for each in host_devices if isinstance(each, Mdev)})
    return Host(functions=functions, **values)


def _has_node(host_device: HostDevice) -> bool:
    if isinstance(host_device, PciFunction):
        return host_device.vfio or host_device.vgpu
    return host_device.driver is not None


def snapshot(
    here: Host,
    wish: Spec = WISH,
    *,
    names: Names | None = None,
    holders: Mapping[str, Holder] | None = None,
    reservations: Reservations | None = None,
    knowledge: Knowledge = Knowledge.COMPLETE,
) -> Snapshot:
    """A Snapshot in which the kubelet has told all holders."""
    allocations = Allocations.of({} if holders is None else holders, knowledge)
    return Snapshot(here, wish, names or {}, allocations, reservations or Reservations())


def reserved(ids: Iterable[str], resource: str = GPU, *, admitting: bool = True) -> Reservations:
    """An Allocate has given these away a moment ago, to one pod."""
    holders = {each: unnamed(ResourceName(resource), None) for each in ids}
    return Reservations(frozenset(ids) if admitting else frozenset(), pending=holders)


def holders(*device_ids: str, resource: str = GPU, pod: str = "vm") -> Mapping[str, Holder]:
    """One pod that holds these ids."""
    return {each: Holder("ns", pod, ResourceName(resource)) for each in device_ids}


def ids(items: Iterable[Any]) -> list[str]:
    """The ids of Devices."""
    return [item.id for item in items]
