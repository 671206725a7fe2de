# SPDX-License-Identifier: Apache-2.0
"""The kinds of host devices, one row each: all that differs between them on the way to a grant. Pure.

A new kind is a value in ``model.host``, a reader of it, and one more row here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from nodeagent.model.desired import Desired, DeviceRule, MdevRule, PciRule, UsbRule
from nodeagent.model.host import Group, Host, HostDevice, Kind, Mdev, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.resource import Iommufd, Reason
from nodeagent.model.snapshot import Names
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import groups, naming
from nodeagent.policy.offer import discovery, nodes
from nodeagent.policy.offer.checks import devices, holding, usb, vfio
from nodeagent.policy.offer.checks.inputs import Unit, Use
from nodeagent.policy.offer.discovery import Label

D = TypeVar("D", bound=HostDevice)


@dataclass(frozen=True, slots=True)
class DeviceKind(Generic[D]):
    """What policy knows of one kind of host device.

    ``checks`` go from what is wrong with the device itself, over what is wrong with its group, to who has it:
    the first that says no gives the Reason.
    """

    rule: type[DeviceRule]  # the rules that are for it
    type_of: Callable[[D], str | None]  # its type of mdev or vGPU; None: it has none
    selectors: Callable[[D], Iterable[str]]  # by which the KubeVirt CR may name it
    unready: Callable[[D, Group | None], str | None]  # why its driver gives it to no VM, in words
    refusal: Callable[[D, Group | None, Desired], str | None]  # of discovery, in words
    text: Callable[[D, Names], str | None]  # what people call it
    label: Callable[[D, Names], Label]  # what its resource is called after
    checks: tuple[Callable[[D, Unit, Use], Reason | None], ...]
    address: Callable[[D], str]  # by which virt-launcher finds it
    nodes: Callable[[D, Iommufd, Host], tuple[str, ...]]
    function: Callable[[D, Host], PciFunction | None]  # that it is, or is a part of: it sits where that sits


_FUNCTION: Final[DeviceKind[PciFunction]] = DeviceKind(
    rule=PciRule,
    type_of=groups.vgpu_of,
    selectors=lambda function: (f"{function.vendor}:{function.device}",),
    unready=discovery.unready,
    refusal=discovery.function_refusal,
    text=discovery.function_text,
    label=discovery.function_label,
    checks=(
        devices.unreadable,
        devices.going_away,
        devices.left_behind,
        vfio.no_group,
        vfio.firmware,
        devices.domain,
        devices.token,
        devices.driver,
        devices.withdrawn,
        devices.vgpu_type_changed,
        devices.unnamed,
        devices.fallen,
        devices.recovery,
        vfio.viability,
        vfio.nodes,
        holding.held,
        holding.through_vfs,
        holding.outside,
    ),
    address=lambda function: function.address,
    nodes=nodes.vfio,
    function=lambda function, _: function,
)
# An mdev is alone in its group, and nothing tells from outside that it is open.
_MDEV: Final[DeviceKind[Mdev]] = DeviceKind(
    rule=MdevRule,
    type_of=lambda mdev: mdev.type_id,
    selectors=lambda mdev: naming.type_names(mdev.type_id, mdev.type_name),
    unready=lambda _, __: None,
    refusal=discovery.mdev_refusal,
    text=discovery.mdev_text,
    label=discovery.mdev_label,
    checks=(
        devices.leaving,
        devices.unreadable,
        devices.dead,
        devices.mdev_type_changed,
        vfio.no_mdev_group,
        vfio.nodes,
        holding.held,
    ),
    address=lambda mdev: mdev.uuid,
    nodes=nodes.vfio,
    function=lambda mdev, host: host.functions.get(PciAddress(mdev.parent or "")),
)
# QEMU takes it from whatever driver has it, so its driver is no obstacle: who uses that is.
_USB: Final[DeviceKind[UsbDevice]] = DeviceKind(
    rule=UsbRule,
    type_of=lambda _: None,
    selectors=lambda device: (naming.usb_selector(device.vendor or "", device.product or ""),),
    unready=lambda _, __: None,
    refusal=lambda _, __, ___: "USB devices are offered by rules alone",
    text=lambda device, _: device.text,
    label=lambda device, _: Label(Kind.USB, device.product or "", device.text),
    checks=(devices.unreadable, usb.node, usb.replugged, usb.held, usb.used),
    address=lambda device: device.place,
    nodes=nodes.usb,
    function=lambda _, __: None,
)
_KINDS: Final[Mapping[type, DeviceKind[Any]]] = MappingProxyType(
    {PciFunction: _FUNCTION, Mdev: _MDEV, UsbDevice: _USB}
)


def of(host_device: HostDevice) -> DeviceKind[Any]:
    """The row for a host device."""
    return _KINDS[type(host_device)]
