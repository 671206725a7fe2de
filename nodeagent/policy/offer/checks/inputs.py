# SPDX-License-Identifier: Apache-2.0
"""What a check asks besides the device: the unit around it, and the use that a resource makes of it.

Named tuples, for each turn makes them anew, and at the start there is one of each for every device.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, HostDevice, PciFunction
from nodeagent.model.resource import Iommufd, Isolation
from nodeagent.model.usb import Loans


class Unit(NamedTuple):
    """What is decided at once: an IOMMU group with its devices, or one device that has none (group None).

    All USB devices are one such unit, too: ``loans`` say what of them was given, and ``in_containers`` of
    which a pod has a node.

    ``nodes`` and ``iommu`` are the host's; all else is of this unit alone. ``firmware``: the group has memory
    that firmware wants mapped 1:1, and this kernel gives no such group away. ``vfs``: those of the functions
    that are PFs on a VFIO driver, and who has them. ``mdevs``: how many a function on a driver of
    the host carries.
    """

    group: Group | None
    devices: tuple[HostDevice, ...] = ()
    functions: tuple[PciFunction, ...] = ()  # those of the devices that are PCI functions
    holders: Mapping[str, Holder] = MappingProxyType({})
    complete: bool = False  # False: the absence of a holder proves nothing
    admitting: frozenset[str] = frozenset()  # allocated to the pod under admission
    withdrawn: frozenset[str] = frozenset()  # getting another driver, or being removed
    vfs: tuple[PciFunction, ...] = ()
    vf_holders: Mapping[str, Holder] = MappingProxyType({})
    mdevs: Mapping[str, int] = MappingProxyType({})
    nodes: frozenset[str] = frozenset()
    iommu: bool = True
    firmware: bool = False
    loans: Loans = MappingProxyType({})
    in_containers: Mapping[str, Holder] = MappingProxyType({})

    @property
    def number(self) -> str:
        """The number of the group, for people."""
        return "?" if self.group is None else str(self.group.number)


class Use(NamedTuple):
    """How a device is offered: this decides which nodes and which conflicts matter.

    ``host_devices`` are those that the Device stands for, if not the asked one alone; the first gives its id.
    ``type_id`` is the type of mdev or vGPU under which it was taken; ``unnamed``: it has no name yet.
    """

    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    resource: str = ""  # under which it is offered; "": any, whoever holds it
    host_devices: tuple[str, ...] = ()
    type_id: str | None = None
    unnamed: bool = False
    force: tuple[str, ...] = ()  # of a USB rule: what the host may lose

    def device_id(self, host_device: HostDevice) -> str:
        """The id of the Device that stands for the host device."""
        return self.host_devices[0] if host_device.id in self.host_devices else host_device.id


ANY_USE = Use()
