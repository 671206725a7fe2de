# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with the IOMMU group of a device and with its VFIO nodes. Pure."""

from __future__ import annotations

from nodeagent.model.host import Mdev, PciFunction, VfioDevice
from nodeagent.model.resource import Iommufd, Reason, ReasonCode
from nodeagent.policy import classes, groups
from nodeagent.policy.offer.checks.inputs import Unit, Use
from nodeagent.policy.offer.nodes import CONTAINER_NODE, IOMMUFD_NODE


def no_group(_: PciFunction, unit: Unit, __: Use) -> Reason | None:
    """Without an IOMMU group there is no isolation, so VFIO gives the function to nobody."""
    if unit.group is None and unit.iommu:
        return Reason(
            ReasonCode.NO_GROUP,
            "it has no IOMMU group, although an IOMMU is active on this host",
            "look at the kernel log for what keeps the IOMMU from it, unless it is just being removed",
        )
    if unit.group is None:
        return Reason(
            ReasonCode.NO_GROUP,
            "no IOMMU group: this host has no active IOMMU",
            "switch VT-d or AMD-Vi on in the firmware, on Intel also intel_iommu=on on the kernel command "
            "line, and reboot when the node is drained",
        )
    if unit.group.no_iommu:
        return Reason(
            ReasonCode.NO_GROUP,
            "VFIO runs without an IOMMU here (vfio-noiommu): a guest could write to all memory",
            "switch the IOMMU on and enable_unsafe_noiommu_mode off",
        )
    return None


FIRMWARE_SETUP = (
    "nothing in the kernel helps; when the node is drained, look in the firmware's setup for what shares "
    'memory with this slot: on HPE ProLiant "Shared Memory features", on AMD boards "Pre-Boot DMA '
    'Protection"; or for a newer firmware'
)


def firmware(_: PciFunction, unit: Unit, __: Use) -> Reason | None:
    """Firmware uses memory through a member of the group, whoever has that; VFIO would take it away."""
    if not unit.firmware:
        return None
    return Reason(
        ReasonCode.FIRMWARE_MAPPED,
        f"firmware has memory mapped 1:1 for IOMMU group {unit.number} (its reserved_regions say direct): "
        "Linux gives no such group to a virtual machine",
        FIRMWARE_SETUP,
    )


def no_mdev_group(_: Mdev, unit: Unit, __: Use) -> Reason | None:
    """Without an IOMMU group VFIO cannot open the mdev."""
    if unit.group is not None:
        return None
    return Reason(
        ReasonCode.NO_GROUP,
        "no IOMMU group: its driver gives it none",
        "look for messages of the parent's driver in the kernel log; once nobody uses it, remove it and "
        "create it anew",
    )


def viability(_: PciFunction, unit: Unit, __: Use) -> Reason | None:
    """The kernel refuses the whole group while a host driver has one of its functions."""
    blocking = groups.blockers(unit.functions)
    if not blocking:
        return None
    used = next((blocker for blocker in blocking if classes.in_use(blocker)), blocking[0])
    named = ", ".join(f"{blocker.address} ({blocker.driver})" for blocker in blocking)
    return Reason(
        ReasonCode.GROUP_NOT_VIABLE,
        f"IOMMU group {unit.number} is not viable: {named} has a host driver",
        _lose(used, unit.mdevs.get(used.address, 0)),
    )


def _lose(blocker: PciFunction, mdevs: int) -> str:
    """What to do about the function that blocks a group: nothing, while the host uses that one."""
    named = f"{blocker.address} is " if classes.in_use(blocker) else ""
    return named + classes.bind(
        blocker, " as well, or unbind it", mdevs, leave="leave all of its IOMMU group out of the rules"
    )


def nodes(host_device: VfioDevice, unit: Unit, use: Use) -> Reason | None:
    """The device nodes that a container would get have to exist."""
    legacy = unit.group is not None and unit.group.node and CONTAINER_NODE in unit.nodes
    modern = host_device.cdev and IOMMUFD_NODE in unit.nodes
    enough = {Iommufd.NEVER: legacy, Iommufd.ONLY: modern, Iommufd.AUTO: legacy or modern}
    if enough[use.iommufd]:
        return None
    if use.iommufd is Iommufd.ONLY and IOMMUFD_NODE not in unit.nodes:
        return _no_iommufd()
    if unit.group is not None and unit.group.stale and use.iommufd is not Iommufd.ONLY:
        return Reason(
            ReasonCode.NODE_MISSING,
            f"/dev/vfio/{unit.number} is not the group's: it has the number of another device",
            "remove that node, which the kernel has not made, and bind the device again: it makes its own",
        )
    wanted = (
        f"/dev/vfio/devices/{host_device.vfio_device or 'vfio?'} and {IOMMUFD_NODE}"
        if use.iommufd is Iommufd.ONLY
        else f"/dev/vfio/{unit.number} and {CONTAINER_NODE}"
    )
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {wanted} must exist",
        "look for udev or container mounts that hide /dev/vfio; bind the device again if the node stays away",
    )


def _no_iommufd() -> Reason:
    """The kernel has it from 6.2 on, if it was built so; Debian's up to 7.2 were not."""
    return Reason(
        ReasonCode.NODE_MISSING,
        f"this host has no iommufd ({IOMMUFD_NODE} does not exist), and its resource says iommufd: only",
        "load the module iommufd if the kernel has it (CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV), "
        "or say iommufd: auto or never for the resource",
    )
