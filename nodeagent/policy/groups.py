# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: whether VFIO can use a group, and whether its functions are removed, open or in use. Pure.

The kernel refuses a group when one member is bound to a driver that lacks ``driver_managed_dma``
(drivers/iommu/iommu.c). In Linux 6.12 these drivers have ``driver_managed_dma``: all VFIO drivers,
``pcieport``, ``pci-stub``.
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
_ALL_IOMMUS_REFUSE = (6, 6)  # the version of Linux
_VERSION = re.compile(r"(\d+)\.(\d+)")


def is_vfio_bound(function: PciFunction) -> bool:
    """True if the function is bound to a VFIO driver. An unbind that waits on Linux 6.1 leaves ``vfio-dev``.

    False for a function on NVIDIA's own driver, which assigns vGPUs through VFIO, but never the function
    itself.
    """
    return function.vfio and function.driver not in (None, VENDOR_DRIVER)


def is_vgpu_capable(function: PciFunction) -> bool:
    """True if NVIDIA's driver can create a vGPU on this VF (vendor-specific VFIO framework).

    KubeVirt makes the same check: only this driver creates such vGPUs, and only on VFs.
    """
    return function.vgpu and function.driver == VENDOR_DRIVER and not function.sriov_capable


def is_unfinished(function: PciFunction) -> bool:
    """True for a VF on NVIDIA's driver that has no vGPU types yet.

    NVIDIA's driver creates the directory ``nvidia/`` of a VF after the bind, without an event.
    """
    return function.driver == VENDOR_DRIVER and function.physfn is not None and not function.vgpu


def find_vgpu_type(function: PciFunction) -> str | None:
    """The vGPU type of a VF; with a vGPU type, the VF can be assigned to a VM on the vendor driver."""
    return function.vgpu_type if is_vgpu_capable(function) else None


def is_assignable(function: PciFunction) -> bool:
    """True if the PCI function can be assigned to a VM with its present driver."""
    return is_vfio_bound(function) or find_vgpu_type(function) is not None


def needs_token(function: PciFunction) -> bool:
    """True for a VF that vfio-pci opens only with a VF token, which neither libvirt nor virt-launcher sends.

    A VF needs a VF token if its PF is on vfio-pci, which does not bind a PF that has VFs already
    (vfio_pci_validate_vf_token and vfio_pci_vf_init in drivers/vfio/pci/vfio_pci_core.c).
    """
    return function.physfn is not None and function.pf_driver == TOKEN_DRIVER


def describe_pf(function: PciFunction) -> str | None:
    """The PF of a VF, its interfaces and the number of the VF: "0000:5e:00.0 (ens1f0), VF 2"."""
    if function.physfn is None:
        return None
    names = f" ({', '.join(function.pf_interfaces)})" if function.pf_interfaces else ""
    number = "" if function.vf_number is None else f", VF {function.vf_number}"
    return f"{function.physfn}{names}{number}"


def is_split(function: PciFunction, host: Host) -> bool:
    """True if the driver of the function can create mdevs on the function, or vGPUs on its VFs."""
    if function.driver is None or is_vfio_bound(function):
        return False
    vfs = (host.functions.get(address) for address in function.vfs)
    return function.address in host.mdev_parents or any(vf is not None and is_vgpu_capable(vf) for vf in vfs)


def find_blockers(members: Iterable[PciFunction]) -> tuple[PciFunction, ...]:
    """The group's functions whose drivers make the kernel refuse the group to VFIO; () if there are none.

    NVIDIA's driver for KVM hosts, which can create vGPUs, has ``driver_managed_dma``: functions on this
    driver do not block the group, not even the PF of vGPUs (nv_pci_driver in its kernel module).
    """
    members = tuple(members)
    makes_vgpus = any(map(is_vgpu_capable, members))
    return tuple(
        member
        for member in members
        if member.driver is not None
        and not member.vfio
        and member.driver not in FRIENDLY_DRIVERS
        and not (makes_vgpus and member.driver == VENDOR_DRIVER)
    )


def find_missing_isolation(group: Group | None, no_iommu: Missing | None) -> Missing | None:
    """Why VFIO can assign no function of this group, or of none; None if an IOMMU isolates the group."""
    if group is not None and group.no_iommu:
        enable = "enable the IOMMU" if no_iommu is None else no_iommu.hint
        return Missing(
            "VFIO runs without an IOMMU on this host (vfio-noiommu): a guest could write to all memory",
            f"disable enable_unsafe_noiommu_mode of the module vfio; {enable}",
        )
    if group is not None:
        return None
    if no_iommu is not None:
        return no_iommu
    return Missing(
        "it has no IOMMU group, although an IOMMU is active on this host",
        "the kernel log may say why: dmesg | grep -i iommu; VFIO cannot assign it, so leave it to the host "
        "(a device that is being removed has no group either)",
    )


def is_kept_by_firmware(group: Group | None, host: Host) -> bool:
    """True if the kernel refuses the group to VFIO, because the firmware needs memory mapped 1:1 for it.

    Since Linux 3.17 Intel's IOMMU driver refuses groups for which firmware needs memory mapped 1:1. Since
    Linux 6.6 the kernel does so with all IOMMUs, because a VFIO user starts without any mapping (commit
    a48ce36e2786, ``require_direct`` in drivers/iommu/iommu.c).
    """
    if group is None or not group.direct:
        return False
    version = _VERSION.match(host.release or "")
    return host.vtd or version is None or (int(version[1]), int(version[2])) >= _ALL_IOMMUS_REFUSE


def is_going_away(function: PciFunction, group: Group | None) -> bool:
    """True if an unbind, removal or unplug of the function waits until a process closes the function.

    The kernel removes the link to the driver first; the device node of the group and the open count remain
    until the process closes the function (seen on Linux 6.1, 6.12 and 7.2). An open count that a host driver
    left is ignored. The open count of a bridge is ignored, too, because the kernel enables a bridge for the
    devices behind it (``pci_enable_bridge`` in drivers/pci/pci.c).
    """
    if is_open_without_driver(function):
        return True
    counted = function.driver is None and bool(function.enable) and function.enable != function.idle
    return counted and not function.bridge and group is not None and group.node


def is_open_without_driver(function: PciFunction) -> bool:
    """True if the function has no driver, but a process has it open: its open count was lower under VFIO."""
    lowest = function.lowest
    return function.driver is None and lowest is not None and (function.enable or 0) > lowest


def whole_group_id(number: GroupNumber) -> str:
    """The device id of a whole IOMMU group: virt-handler's device plugins list group numbers.

    See constructDPIdevices in its pkg/virt-handler/device-manager/pci_device.go.
    """
    return str(number)


def may_be_former_group(device_id: str, number: GroupNumber, host: Host) -> bool:
    """False if the group with this number is not the group of an unplugged device: numbers are reused.

    Each mdev has a separate IOMMU group. A function shares a group with others of its bus, or through a
    bridge, which is in the group as well (``pci_device_group`` in the kernel's drivers/iommu/iommu.c).
    """
    address = pci_address(device_id)
    if address is None:
        return mdev_uuid(device_id) is None
    bus = address.rpartition(":")[0]
    members = host.groups[number].members if number in host.groups else ()
    return any(each.startswith(f"{bus}:") for each in members) or any(
        member.bridge for member in host.members(number)
    )


def find_holder(allocations: Allocations, device_id: str, number: GroupNumber | None) -> Holder | None:
    """The pod to which the kubelet has allocated a device, by the device's id or by its group number."""
    return allocations.holder(device_id) or (
        None if number is None else allocations.holder(whole_group_id(number))
    )


class OpenState(Enum):
    """Whether a process has the VFIO device of a function open."""

    CLOSED = auto()
    OPEN = auto()
    UNKNOWN = auto()


def find_open_state(function: PciFunction) -> OpenState:
    """The result follows from the kernel's open count (``enable``), even while an unbind waits.

    A count above the lowest one under the present driver means that the function is open, even if /proc shows
    no open file: a process that exits has no descriptor table any more while the kernel still closes its
    files (``exit_files`` in fs/file.c). A count that a former driver may have left proves nothing: then the
    open files in /proc count, if all processes could be read.
    """
    if not is_vfio_bound(function):
        return OpenState.OPEN if is_open_without_driver(function) else OpenState.CLOSED
    if function.enable is None:
        return OpenState.UNKNOWN
    if has_leftover_count(function):
        sight = function.sight
        if sight is None or (sight.process is None and not sight.whole):
            return OpenState.UNKNOWN
        return OpenState.CLOSED if sight.process is None else OpenState.OPEN
    return OpenState.OPEN if function.enable > (function.idle or 0) else OpenState.CLOSED


def has_leftover_count(function: PciFunction) -> bool:
    """True if the open count of the function is above zero, but never was lower under its VFIO driver.

    A former driver may have left this count: i915 and radeon never call pci_disable_device.
    """
    return is_vfio_bound(function) and bool(function.idle) and function.enable == function.idle


def is_open(function: PciFunction) -> bool:
    """True if a process certainly has the device open."""
    return find_open_state(function) is OpenState.OPEN


def is_counted(device: HostDevice) -> bool:
    """True if the kernel has an open count for the device; mdevs and vendor vGPUs have no such count."""
    if isinstance(device, UsbDevice):
        return True
    if not isinstance(device, PciFunction) or is_vgpu_capable(device):
        return False
    return device.enable is not None and not has_leftover_count(device)
