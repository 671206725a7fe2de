# SPDX-License-Identifier: Apache-2.0
"""The kinds of host devices, one row each: how a device is matched, named, checked and allocated. Pure.

To add a kind of device, add its record and its table to ``model.host``, its rule and selector to
``model.spec``, its checks of selectors to ``policy.selectors``, its reader to ``kernel.scan`` (a row of
``scanner.READERS``), a row to this module, and its texts to ``policy.explain.devices``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from nodeagent.model.host import Group, Host, HostDevice, Mdev, PciFunction, UsbDevice, VfioDevice
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Reason
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import DeviceRule, MdevRule, PciRule, Spec, UsbRule
from nodeagent.policy import groups, naming
from nodeagent.policy.offer import discovery, health
from nodeagent.policy.offer.discovery import Label
from nodeagent.policy.offer.health import Unit, Use

D = TypeVar("D", bound=HostDevice)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind(Generic[D]):
    """The properties and functions for one kind of device that differ between the kinds."""

    rule: type[DeviceRule]  # the class of its rules
    text: Callable[[D, Names], str | None]  # its name in pci.ids or sysfs
    health: Callable[[D, Unit, Use], Reason | None]  # why it cannot be allocated
    nodes: Callable[[D, Iommufd, Host], tuple[str, ...]]  # its device nodes in a container
    hint: Callable[[D], str]  # how a rule would match it
    address: Callable[[D], str] = lambda device: device.id  # its name in the environment variable
    never: Callable[[D], str] = lambda _: ""  # why a device is never assigned, whatever the rules say
    type_of: Callable[[D], str | None] = lambda _: None  # its type of mdev or vGPU; None: it has none
    selectors: Callable[[D], Iterable[str]] = lambda _: ()  # in the KubeVirt CR, that may match it
    # why discovery does not match it, and the source of its resource name; None: it is offered by rules only
    refusal: Callable[[D, Group | None, Spec], str | None] | None = None
    label: Callable[[D, Names], Label] | None = None


def find_kind(host_device: HostDevice) -> DeviceKind[Any]:
    """The row of the table for the kind of a host device."""
    return KINDS[type(host_device)]


def find_reason(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """Why the device cannot be allocated with these options; None if it is Healthy."""
    return find_kind(host_device).health(host_device, unit, use)


def _never_function(function: PciFunction) -> str:
    return "it is a PCI bridge, which is never assigned" if function.bridge else ""


def _never_usb(device: UsbDevice) -> str:
    return "it is a USB hub, which is never assigned" if device.hub else ""


def _hint_usb(device: UsbDevice) -> str:
    name = f'serials: ["{device.serial}"]' if device.serial else f'ports: ["{device.name}"]'
    return f"name it in a rule: usb: [{{{name}}}]"


def _usb_health(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    from nodeagent.policy.offer import usb_health  # here: most nodes have no rule for USB devices

    return usb_health.reason(device, unit, use)


def _vfio_nodes(host_device: VfioDevice, iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The device nodes of the device's IOMMU group, of the device itself, and of VFIO."""
    group = host.groups.get(host_device.group) if host_device.group is not None else None
    paths = [CONTAINER_NODE] if CONTAINER_NODE in host.nodes else []
    if iommufd is not Iommufd.ONLY and group is not None and group.node:
        paths.append(f"/dev/vfio/{group.number}")
    if iommufd is not Iommufd.NEVER and host_device.cdev and IOMMUFD_NODE in host.nodes:
        paths += [f"/dev/vfio/devices/{host_device.vfio_device}", IOMMUFD_NODE]
    return tuple(paths)


_FUNCTION: Final[DeviceKind[PciFunction]] = DeviceKind(
    rule=PciRule,
    text=discovery.function_text,
    health=health.check_function,
    nodes=_vfio_nodes,
    hint=lambda function: f'name it in a rule: pci: [{{addresses: ["{function.address}"]}}]',
    never=_never_function,
    type_of=groups.find_vgpu_type,
    selectors=lambda function: (f"{function.vendor}:{function.device}",),
    refusal=discovery.function_refusal,
    label=discovery.function_label,
)
_MDEV: Final[DeviceKind[Mdev]] = DeviceKind(
    rule=MdevRule,
    text=discovery.mdev_text,
    health=health.check_mdev,
    nodes=_vfio_nodes,
    hint=lambda _: "name its type in a rule",
    type_of=lambda mdev: mdev.type_id,
    selectors=lambda mdev: naming.type_names(mdev.type_id, mdev.type_name),
    refusal=discovery.mdev_refusal,
    label=discovery.mdev_label,
)
_USB: Final[DeviceKind[UsbDevice]] = DeviceKind(
    rule=UsbRule,
    text=lambda device, _: device.text,
    health=_usb_health,
    nodes=lambda device, _, __: (device.node,),
    hint=_hint_usb,
    address=lambda device: device.place,
    never=_never_usb,
    selectors=lambda device: (naming.usb_selector(device.vendor or "", device.product or ""),),
)
KINDS: Final[Mapping[type, DeviceKind[Any]]] = MappingProxyType(
    {PciFunction: _FUNCTION, Mdev: _MDEV, UsbDevice: _USB}
)
