# SPDX-License-Identifier: Apache-2.0
"""The kinds of host devices, one row each: how rules and discovery match and name them. Pure.

``health`` has the checks of each kind, ``grants`` the address and the nodes for a container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from nodeagent.model.host import Group, HostDevice, Kind, Mdev, PciFunction, UsbDevice
from nodeagent.model.snapshot import Names
from nodeagent.model.spec import DeviceRule, MdevRule, PciRule, Spec, UsbRule
from nodeagent.policy import groups, naming
from nodeagent.policy.offer import discovery
from nodeagent.policy.offer.discovery import Label

D = TypeVar("D", bound=HostDevice)


@dataclass(frozen=True, slots=True)
class DeviceKind(Generic[D]):
    """How rules and discovery match and name the devices of one kind."""

    rule: type[DeviceRule]  # the class of its rules
    type_of: Callable[[D], str | None]  # its type of mdev or vGPU; None: it has none
    selectors: Callable[[D], Iterable[str]]  # of the KubeVirt CR that may match it
    refusal: Callable[[D, Group | None, Spec], str | None]  # why discovery does not match it
    text: Callable[[D, Names], str | None]  # its name in pci.ids or sysfs
    label: Callable[[D, Names], Label]  # the source of its resource name


_FUNCTION: Final[DeviceKind[PciFunction]] = DeviceKind(
    rule=PciRule,
    type_of=groups.find_vgpu_type,
    selectors=lambda function: (f"{function.vendor}:{function.device}",),
    refusal=discovery.function_refusal,
    text=discovery.function_text,
    label=discovery.function_label,
)
_MDEV: Final[DeviceKind[Mdev]] = DeviceKind(
    rule=MdevRule,
    type_of=lambda mdev: mdev.type_id,
    selectors=lambda mdev: naming.type_names(mdev.type_id, mdev.type_name),
    refusal=discovery.mdev_refusal,
    text=discovery.mdev_text,
    label=discovery.mdev_label,
)
_USB: Final[DeviceKind[UsbDevice]] = DeviceKind(
    rule=UsbRule,
    type_of=lambda _: None,
    selectors=lambda device: (naming.usb_selector(device.vendor or "", device.product or ""),),
    refusal=lambda _, __, ___: "USB devices are offered by rules only",
    text=lambda device, _: device.text,
    label=lambda device, _: Label(Kind.USB, device.product or "", device.text),
)
_KINDS: Final[Mapping[type, DeviceKind[Any]]] = MappingProxyType(
    {PciFunction: _FUNCTION, Mdev: _MDEV, UsbDevice: _USB}
)


def find_kind(host_device: HostDevice) -> DeviceKind[Any]:
    """The row for a host device."""
    return _KINDS[type(host_device)]
