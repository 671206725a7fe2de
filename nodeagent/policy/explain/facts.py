# SPDX-License-Identifier: Apache-2.0
"""What ``explain`` shows of one device as it was read: class, driver, power, opens, and so on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nodeagent.model.host import HostDevice, Mdev, PciFunction, UsbDevice
from nodeagent.policy import classes, groups
from nodeagent.policy.groups import OpenState
from nodeagent.policy.offer import discovery

Facts = list[tuple[str, str | None]]


def facts_of(host_device: HostDevice) -> dict[str, str]:
    """Return the facts that ``explain`` shows of a device, by their first word, without those unknown."""
    named, own = _FACTS.get(type(host_device), (_no_facts, _no_facts))
    facts = [
        *named(host_device),
        ("driver", host_device.driver or "none"),
        ("numa", None if host_device.numa_node is None else str(host_device.numa_node)),
        *own(host_device),
        ("fault", host_device.unreadable),
    ]
    return {key: value for key, value in facts if value}


def _no_facts(_: HostDevice) -> Facts:
    return []


def _class(function: PciFunction) -> Facts:
    code = function.pci_class
    return [("class", f"{code}  {classes.describe_class(function)}" if code else None)]


def _pci_facts(function: PciFunction) -> Facts:
    hints = function.hints
    return [
        ("power", function.power_state),
        ("opens", _opens(function)),
        ("pf", groups.describe_pf(function)),
        ("vfs", ", ".join(function.vfs)),
        ("vgpu", function.vgpu_type or ("none" if function.vgpu else None)),
        ("resets", " ".join(hints.reset_methods) if hints else None),
        ("errors", f"{hints.aer_fatal} fatal PCIe errors" if hints and hints.aer_fatal else None),
        ("vfio", function.vfio_device),
        ("note", _NO_FABRIC if discovery.is_nvswitch(function) else None),
    ]


_NO_FABRIC = "nodeagent sets no fabric partitions up: that is for NVIDIA's Fabric Manager, see docs/vgpu.md"


def _opens(function: PciFunction) -> str | None:
    """How often it is open; and that this is no reason to keep it, if it may be a former driver's doing."""
    if not groups.is_vfio_bound(function) or not (
        groups.is_open(function) or groups.has_leftover_count(function)
    ):
        return None
    note = {
        OpenState.OPEN: f" in {function.sight.process}" if function.sight and function.sight.process else "",
        OpenState.CLOSED: " by the kernel's count, left by an earlier driver: no process has it open",
        OpenState.UNKNOWN: " by the kernel's count, maybe left by an earlier driver: run this on the"
        " host as root to see the process",
    }
    return f"{function.enable}{note[groups.find_open_state(function)]}"


def _mdev_facts(mdev: Mdev) -> Facts:
    return [("parent", mdev.parent), ("vfio", mdev.vfio_device)]


def _usb_facts(device: UsbDevice) -> Facts:
    return [
        ("number", f"{device.place}  {device.node}"),
        ("serial", device.serial or "none"),
        ("classes", " ".join(each.code for each in device.interfaces)),
        ("used", "; ".join(map(str, device.uses.found)) or None),
        ("unseen", "; ".join(device.uses.unseen) or None),
    ]


_FACTS: Mapping[type, tuple[Callable[[Any], Facts], Callable[[Any], Facts]]] = {
    PciFunction: (_class, _pci_facts),
    Mdev: (lambda mdev: [("type", mdev.type_id)], _mdev_facts),
    UsbDevice: (lambda device: [("port", f"{device.name}  {device.path}")], _usb_facts),
}
"""What is told of a kind beside what all have: before that, and after it."""


def identity_of(host_device: HostDevice) -> dict[str, Any]:
    """Return the fields of the document that only devices of its kind have."""
    return {key: getattr(host_device, name) for key, name in _IDENTITY.get(type(host_device), {}).items()}


_IDENTITY: Mapping[type, Mapping[str, str]] = {
    PciFunction: {"address": "address", "device": "device", "vgpu_type": "vgpu_type"},
    Mdev: {"uuid": "uuid", "type": "type_id", "parent": "parent"},
    UsbDevice: {"device": "product", "address": "place"},
}
"""What tells a device of a kind from others beside its id: field → attribute."""
