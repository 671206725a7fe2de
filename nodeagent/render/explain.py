# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain DEVICE`` prints: the story of one device, the verdict first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import classes, groups
from nodeagent.policy.explain.cards import CardExplanation
from nodeagent.policy.explain.devices import DeviceExplanation, is_blocked
from nodeagent.policy.groups import OpenState
from nodeagent.policy.offer import discovery, kinds
from nodeagent.render import cards
from nodeagent.render.answers import DeviceAnswer
from nodeagent.render.table import table


def text(explanation: DeviceExplanation, card: CardExplanation | None = None) -> str:
    """The verdict, what to do, then all that led to it, and what is made of it if it is a card."""
    lines = [f"{explanation.host_device.id}  {explanation.verdict}"]
    if explanation.to_do:
        lines.append(f"  {'to do' if explanation.row.resource else 'to offer it'}: {explanation.to_do}")
    lines += ["", f"  device  {_name(explanation)}"]
    lines += [f"  {key:<7} {value}" for key, value in _facts(explanation.host_device)]
    lines += ["", f"  group   {_group(explanation)}"]
    if explanation.host_device.group is not None and explanation.members:
        own = explanation.host_device.id
        rows = [
            (each.address, each.driver or "-", means(each.role, own=each.address == own))
            for each in explanation.members
        ]
        lines.append(table(("MEMBER", "DRIVER", "MEANS"), rows, indent="          "))
    lines += ["", "  card", *(f"          {line}".rstrip() for line in cards.lines(card))] if card else []
    lines += ["", "  rules"] + [f"          {rule}: {says}" for rule, says in explanation.rules]
    if explanation.env is not None and explanation.reason is None:
        lines += [
            "",
            f"  a pod would get  {explanation.env}",
            f"                   {' '.join(explanation.nodes)}",
        ]
    if explanation.row.holder is not None:
        lines += ["", f"  held by {explanation.row.holder}"]
    return "\n".join(lines)


def _name(explanation: DeviceExplanation) -> str:
    known = " ".join(name for name in (explanation.vendor_name, explanation.row.name) if name)
    host_device = explanation.host_device
    if isinstance(host_device, PciFunction):
        return f"{host_device.vendor or '?'}:{host_device.device or '?'}  {known or 'unknown to pci.ids'}"
    if isinstance(host_device, UsbDevice):
        return f"{host_device.vendor or '?'}:{host_device.product or '?'}  {known or 'without a name'}"
    return f"{kinds.of(host_device).rule.kind}  {known or 'of a type that cannot be read'}"


_ROLES = {
    "vfio": "ready for VFIO",
    "bridge": "a bridge, does not matter",
    "unbound": "no driver, does not matter",
    "friendly": "may stay beside VFIO",
    "blocks": "BLOCKS the group: a host driver has it",
    "splits": "its driver splits it: its parts are given, not it",
    "vacant": "its driver can give it a vGPU type; it has none",
}


def means(role: str, *, own: bool = False) -> str:
    """What a member means for the group; ``own``: it is the explained one, to which a driver matters."""
    return "no driver, so VFIO cannot give it" if own and role == "unbound" else _ROLES[role]


def _group(explanation: DeviceExplanation) -> str:
    if explanation.host_device.group is None:
        return "none"
    if isinstance(explanation.host_device, Mdev):
        return f"{explanation.host_device.group}  its own"
    roles = [member.role for member in explanation.members]
    return f"{explanation.host_device.group}  {viability(explanation.viable, roles)}"


def viability(viable: bool, roles: Iterable[str]) -> str:
    """Return whether VFIO may have a group, or need not have it."""
    if viable:
        return "viable"
    return "NOT viable" if is_blocked(roles) else "not for VFIO, its driver gives parts of it"


Facts = list[tuple[str, str | None]]


def _facts(host_device: HostDevice) -> list[tuple[str, str]]:
    named, own = _FACTS.get(type(host_device), (_no_facts, _no_facts))
    facts = [
        *named(host_device),
        ("driver", host_device.driver or "none"),
        ("numa", None if host_device.numa_node is None else str(host_device.numa_node)),
        *own(host_device),
        ("fault", host_device.unreadable),
    ]
    return [(key, value) for key, value in facts if value]


def _no_facts(_: HostDevice) -> Facts:
    return []


def _class(function: PciFunction) -> Facts:
    code = function.pci_class
    return [("class", f"{code}  {classes.words(function)}" if code else None)]


def _pci_facts(function: PciFunction) -> Facts:
    hints = function.hints
    return [
        ("power", function.power_state),
        ("opens", _opens(function)),
        ("pf", function.physfn),
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
    if not groups.vfio_bound(function) or not (groups.is_open(function) or groups.has_count_left(function)):
        return None
    note = {
        OpenState.OPEN: f" in {function.sight.process}" if function.sight and function.sight.process else "",
        OpenState.CLOSED: " by its count, which a former driver has left: no process has it open",
        OpenState.UNKNOWN: " by its count, which a former driver may have left: who has it open cannot be"
        " seen from here",
    }
    return f"{function.enable}{note[groups.open_state(function)]}"


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


def answer(explanation: DeviceExplanation, card: CardExplanation | None = None) -> DeviceAnswer:
    """The same for programs."""
    host_device, reason = explanation.host_device, explanation.reason
    return DeviceAnswer(
        host_device.id,
        kinds.of(host_device).rule.kind,
        explanation.verdict,
        explanation.to_do,
        explanation.row.resource,
        None if explanation.row.resource is None else reason is None,
        reason,
        host_device.vendor,
        explanation.vendor_name,
        explanation.row.name,
        host_device.driver,
        host_device.group,
        explanation.viable,
        explanation.members,
        explanation.rules,
        explanation.env,
        tuple(explanation.nodes),
        explanation.row.holder,
        dict(_facts(host_device)),
        split=card,
        **_identity(host_device),
    )


def _identity(host_device: HostDevice) -> dict[str, Any]:
    return {key: getattr(host_device, name) for key, name in _IDENTITY.get(type(host_device), {}).items()}


_IDENTITY: Mapping[type, Mapping[str, str]] = {
    PciFunction: {"address": "address", "device": "device", "vgpu_type": "vgpu_type"},
    Mdev: {"uuid": "uuid", "type": "type_id", "parent": "parent"},
    UsbDevice: {"device": "product", "address": "place"},
}
"""What tells a device of a kind from others beside its id: field → attribute."""
