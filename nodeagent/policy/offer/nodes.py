# SPDX-License-Identifier: Apache-2.0
"""Which device nodes a container needs for a device that it is given. Pure.

``/dev/vfio/vfio`` is among them wherever it exists: virt-handler changes owners only when it is there.
"""

from __future__ import annotations

from nodeagent.model.host import Host, VfioDevice
from nodeagent.model.ids import GroupNumber
from nodeagent.model.resource import Iommufd
from nodeagent.model.usb import UsbDevice

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"


def usb(device: UsbDevice, _: Iommufd, __: Host) -> tuple[str, ...]:
    """The node of a USB device, through which QEMU takes it."""
    return (device.node,)


def vfio(host_device: VfioDevice, iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The nodes for a function or mdev: of its group, its own, and those that all of VFIO shares."""
    group = host.groups.get(host_device.group) if host_device.group is not None else None
    paths = [CONTAINER_NODE] if CONTAINER_NODE in host.nodes else []
    if iommufd is not Iommufd.ONLY and group is not None and group.node:
        paths.append(group_node(group.number))
    if iommufd is not Iommufd.NEVER and host_device.cdev and IOMMUFD_NODE in host.nodes:
        paths += [f"/dev/vfio/devices/{host_device.vfio_device}", IOMMUFD_NODE]
    return tuple(paths)


def group_node(number: GroupNumber) -> str:
    """The node of a group that has an IOMMU behind it."""
    return f"/dev/vfio/{number}"
