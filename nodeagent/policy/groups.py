# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: may VFIO use this group, is a function on its way out, who uses the group. Pure.

The kernel refuses a group when one member is bound to a driver that lacks ``driver_managed_dma``
(drivers/iommu/iommu.c). In Linux 6.12 these drivers have it: all VFIO drivers, ``pcieport``, ``pci-stub``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto

from nodeagent.model.allocation import Allocations, Holder
from nodeagent.model.host import Group, Host, HostDevice, Missing, PciFunction, UsbDevice
from nodeagent.model.ids import GroupNumber, mdev_uuid, pci_address

VENDOR_DRIVER = "nvidia"
TOKEN_DRIVER = "vfio-pci"
FRIENDLY_DRIVERS = frozenset({"pcieport", "pci-stub"})
_ALL_REFUSE = (6, 6)  # the version of Linux
_VERSION = re.compile(r"(\d+)\.(\d+)")


def vfio_bound(function: PciFunction) -> bool:
    """True if a VFIO driver has the function; a blocked unbind on Linux 6.1 leaves ``vfio-dev`` behind.

    NVIDIA's own driver gives a VM its vGPUs through VFIO, and never the function as it is.
    """
    return function.vfio and function.driver not in (None, VENDOR_DRIVER)


def takes_vgpu(function: PciFunction) -> bool:
    """True if NVIDIA's driver can make a vGPU of it (its vendor-specific VFIO framework).

    KubeVirt asks the same: another driver makes none, nor is a function with VFs of its own one.
    """
    return function.vgpu and function.driver == VENDOR_DRIVER and not function.sriov_capable


def unfinished(function: PciFunction) -> bool:
    """True for a VF that NVIDIA's driver has taken and shows no vGPU types of.

    It makes ``nvidia/`` after the bind, and nobody tells of that.
    """
    return function.driver == VENDOR_DRIVER and function.physfn is not None and not function.vgpu


def vgpu_of(function: PciFunction) -> str | None:
    """The vGPU type that makes the VF ready for a VM on the vendor's own driver."""
    return function.vgpu_type if takes_vgpu(function) else None


def ready(function: PciFunction) -> bool:
    """True if its driver can give the function to a VM."""
    return vfio_bound(function) or vgpu_of(function) is not None


def needs_token(function: PciFunction) -> bool:
    """True for a VF that vfio-pci opens with a VF token only, which neither libvirt nor virt-launcher sends.

    So it does if it has made the VF itself, and it takes no PF that has VFs (vfio_pci_validate_vf_token and
    vfio_pci_vf_init in drivers/vfio/pci/vfio_pci_core.c).
    """
    return function.physfn is not None and function.pf_driver == TOKEN_DRIVER


def splits(function: PciFunction, host: Host) -> bool:
    """True if its driver makes mdevs of it, or has VFs of it that take vGPU types."""
    if function.driver is None or vfio_bound(function):
        return False
    vfs = (host.functions.get(address) for address in function.vfs)
    return function.address in host.mdev_parents or any(vf is not None and takes_vgpu(vf) for vf in vfs)


def blockers(members: Iterable[PciFunction]) -> tuple[PciFunction, ...]:
    """The members whose driver makes the kernel refuse the whole group; () if it is viable.

    NVIDIA's driver manages DMA itself in the build for KVM hosts, which is the one that makes vGPUs: then no
    function on it is in the way, the PF of the vGPUs among them (nv_pci_driver in its kernel module).
    """
    members = tuple(members)
    makes_vgpus = any(map(takes_vgpu, members))
    return tuple(
        member
        for member in members
        if member.driver is not None
        and not member.vfio
        and member.driver not in FRIENDLY_DRIVERS
        and not (makes_vgpus and member.driver == VENDOR_DRIVER)
    )


def not_isolated(group: Group | None, no_iommu: Missing | None) -> Missing | None:
    """Why VFIO can assign no function of this group, or without a group; None if an IOMMU isolates it."""
    if no_iommu is not None:
        return no_iommu
    if group is None:
        return Missing(
            "it has no IOMMU group, although an IOMMU is active on this host",
            "look at the kernel log for what keeps the IOMMU from it, unless it is just being removed",
        )
    if group.no_iommu:
        return Missing(
            "VFIO runs without an IOMMU here (vfio-noiommu): a guest could write to all memory",
            "switch the IOMMU on and enable_unsafe_noiommu_mode off",
        )
    return None


def kept_by_firmware(group: Group | None, host: Host) -> bool:
    """True if the kernel refuses to give the group away: a member's memory has to stay mapped 1:1.

    Intel's IOMMU driver does so since Linux 3.17. Since 6.6 the kernel does for all of them, as whoever takes
    a group begins with no mapping at all (commit a48ce36e2786, ``require_direct`` in drivers/iommu/iommu.c).
    """
    if group is None or not group.direct:
        return False
    version = _VERSION.match(host.release or "")
    return host.vtd or version is None or (int(version[1]), int(version[2])) >= _ALL_REFUSE


def going_away(function: PciFunction, group: Group | None) -> bool:
    """True if an unbind, remove or unplug waits for the holder of the function.

    The driver link goes first, the group's node and the count of opens stay until the holder closes
    (seen on Linux 6.1, 6.12 and 7.2). What a driver of the host has left of its count is nobody's; a bridge
    is enabled for what is behind it (``pci_enable_bridge`` in drivers/pci/pci.c).
    """
    if is_waited_for(function):
        return True
    counted = function.driver is None and bool(function.enable) and function.enable != function.idle
    return counted and not function.bridge and group is not None and group.node


def is_waited_for(function: PciFunction) -> bool:
    """True if it is open for certain, though it has no driver any more: its count was lower under VFIO."""
    lowest = function.lowest
    return function.driver is None and lowest is not None and (function.enable or 0) > lowest


def whole(number: GroupNumber) -> str:
    """The id that stands for all of a group: KubeVirt's own plugins list group numbers.

    See constructDPIdevices in its pkg/virt-handler/device-manager/pci_device.go.
    """
    return str(number)


def may_have_had(device_id: str, number: GroupNumber, host: Host) -> bool:
    """False if what has this number now cannot be the group of a device that has left: numbers come again.

    An mdev has a group of its own, and a function shares one with others of its bus, or by a bridge, which is
    in it as well (``pci_device_group`` in the kernel's drivers/iommu/iommu.c).
    """
    address = pci_address(device_id)
    if address is None:
        return mdev_uuid(device_id) is None
    bus = address.rpartition(":")[0]
    members = host.groups[number].members if number in host.groups else ()
    return any(each.startswith(f"{bus}:") for each in members) or any(
        member.bridge for member in host.members(number)
    )


def holder_of(allocations: Allocations, device_id: str, number: GroupNumber | None) -> Holder | None:
    """The pod that holds a device, by its id or by the number of its group."""
    return allocations.holder(device_id) or (None if number is None else allocations.holder(whole(number)))


class OpenState(Enum):
    """Whether somebody has the VFIO device of a function open."""

    CLOSED = auto()
    OPEN = auto()
    UNKNOWN = auto()


def open_state(function: PciFunction) -> OpenState:
    """Whether it is open, by the kernel's count of opens (``enable``), also while an unbind waits for that.

    A count that was lower under the present driver tells, whatever /proc shows: a process that ends has no
    table of descriptors any more while the kernel still closes what was in it (``exit_files`` in fs/file.c).
    The count that a driver before may have left tells nothing: then it is what /proc shows, if that is all.
    """
    if not vfio_bound(function):
        return OpenState.OPEN if is_waited_for(function) else OpenState.CLOSED
    if function.enable is None:
        return OpenState.UNKNOWN
    if has_count_left(function):
        sight = function.sight
        if sight is None or (sight.process is None and not sight.whole):
            return OpenState.UNKNOWN
        return OpenState.CLOSED if sight.process is None else OpenState.OPEN
    return OpenState.OPEN if function.enable > (function.idle or 0) else OpenState.CLOSED


def has_count_left(function: PciFunction) -> bool:
    """True if its count is as low as ever under this VFIO driver, and not zero.

    A former driver may have left it: i915 and radeon never call pci_disable_device.
    """
    return vfio_bound(function) and bool(function.idle) and function.enable == function.idle


def is_open(function: PciFunction) -> bool:
    """True if it is open for certain."""
    return open_state(function) is OpenState.OPEN


def is_counted(device: HostDevice) -> bool:
    """True if a count of the kernel tells whether it is open: mdevs and a vendor's vGPUs have none."""
    if isinstance(device, UsbDevice):
        return True
    if not isinstance(device, PciFunction) or takes_vgpu(device):
        return False
    return device.enable is not None and not has_count_left(device)
