# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: may VFIO use this group, is a function on its way out, who uses the group. Pure.

The kernel refuses a group when one member is bound to a driver that lacks ``driver_managed_dma``
(drivers/iommu/iommu.c). In Linux 6.12 these drivers have it: all VFIO drivers, ``pcieport``, ``pci-stub``.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.model.allocation import Allocations, Holder
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import GroupNumber

VENDOR_DRIVER = "nvidia"
FRIENDLY_DRIVERS = frozenset({"pcieport", "pci-stub"})


def vfio_bound(function: PciFunction) -> bool:
    """True if a VFIO driver has the function; a blocked unbind on Linux 6.1 leaves ``vfio-dev`` behind."""
    return function.vfio and function.driver is not None and not takes_vgpu(function)


def takes_vgpu(function: PciFunction) -> bool:
    """True if NVIDIA's driver can make a vGPU of it (its vendor-specific VFIO framework).

    KubeVirt asks the same: another driver makes none, nor is a function with VFs of its own one.
    """
    return function.vgpu and function.driver == VENDOR_DRIVER and not function.sriov_capable


def vgpu_of(function: PciFunction) -> str | None:
    """The vGPU type that makes the VF ready for a VM on the vendor's own driver."""
    return function.vgpu_type if takes_vgpu(function) else None


def ready(function: PciFunction) -> bool:
    """True if its driver can give the function to a VM."""
    return vfio_bound(function) or vgpu_of(function) is not None


def splits(function: PciFunction, host: Host) -> bool:
    """True if its driver makes mdevs of it, or has VFs of it that take vGPU types."""
    if function.driver is None or vfio_bound(function):
        return False
    vfs = (host.functions.get(address) for address in function.vfs)
    return function.address in host.mdev_parents or any(vf is not None and takes_vgpu(vf) for vf in vfs)


def blockers(members: Iterable[PciFunction]) -> tuple[PciFunction, ...]:
    """The members whose driver makes the kernel refuse the whole group; () if it is viable."""
    return tuple(
        member
        for member in members
        if member.driver is not None
        and not member.vfio
        and member.driver not in FRIENDLY_DRIVERS
        and vgpu_of(member) is None
    )


def going_away(function: PciFunction, group: Group | None) -> bool:
    """True if an unbind, remove or unplug waits for the holder of the function.

    The driver link goes first, the group's node and the count of opens stay until the holder closes
    (seen on Linux 6.1, 6.12 and 7.2).
    """
    return function.driver is None and bool(function.enable) and group is not None and group.node


def whole(number: GroupNumber) -> str:
    """The id that stands for all of a group: KubeVirt's own plugins list group numbers.

    See constructDPIdevices in its pkg/virt-handler/device-manager/pci_device.go.
    """
    return str(number)


def holder_of(allocations: Allocations, device_id: str, number: GroupNumber | None) -> Holder | None:
    """The pod that holds a device, by its id or by the number of its group."""
    return allocations.holder(device_id) or (None if number is None else allocations.holder(whole(number)))


def in_use(function: PciFunction) -> bool:
    """True if somebody has the VFIO device open: ``enable`` counts opens while a VFIO driver has it."""
    return vfio_bound(function) and bool(function.enable)
