# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain DEVICE`` prints: the story of one device, the verdict first."""

from __future__ import annotations

from typing import Any

from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.policy.offer.explain import Explanation
from nodeagent.render.table import table


def text(told: Explanation) -> str:
    """The verdict, what to do, then all that led to it."""
    lines = [f"{told.host_device.id}  {told.verdict}"]
    if told.reason is not None and told.reason.hint:
        lines.append(f"  to do: {told.reason.hint}")
    lines += ["", f"  device  {_name(told)}"]
    lines += [f"  {key:<7} {value}" for key, value in _facts(told.host_device)]
    lines += ["", f"  group   {_group(told)}"]
    if told.host_device.group is not None and told.members:
        rows = [(member.address, member.driver or "-", _ROLES[member.role]) for member in told.members]
        lines.append(table(("MEMBER", "DRIVER", "MEANS"), rows, indent="          "))
    lines += ["", "  rules"] + [f"          {rule}: {says}" for rule, says in told.rules]
    if told.env is not None and told.reason is None:
        lines += ["", f"  a pod would get  {told.env}", f"                   {' '.join(told.nodes)}"]
    if told.holder is not None:
        lines += ["", f"  held by {told.holder}"]
    return "\n".join(lines)


def _name(told: Explanation) -> str:
    known = " ".join(name for name in (told.vendor_name, told.device_name) if name)
    if isinstance(told.host_device, Mdev):
        return f"mdev  {known or 'of a type that cannot be read'}"
    return (
        f"{told.host_device.vendor or '?'}:{told.host_device.device or '?'}  {known or 'unknown to pci.ids'}"
    )


_ROLES = {
    "vfio": "ready for VFIO",
    "bridge": "a bridge, does not matter",
    "unbound": "no driver, does not matter",
    "friendly": "may stay beside VFIO",
    "blocks": "BLOCKS the group: a host driver has it",
}


def _group(told: Explanation) -> str:
    if told.host_device.group is None:
        return "none"
    if isinstance(told.host_device, Mdev):
        return f"{told.host_device.group}  its own"
    return f"{told.host_device.group}  {'viable' if told.viable else 'NOT viable'}"


def _facts(host_device: HostDevice) -> list[tuple[str, str]]:
    facts = [
        ("type", host_device.type_id) if isinstance(host_device, Mdev) else ("class", host_device.pci_class),
        ("driver", host_device.driver or "none"),
        ("numa", None if host_device.numa_node is None else str(host_device.numa_node)),
        *([("parent", host_device.parent)] if isinstance(host_device, Mdev) else _pci_facts(host_device)),
        ("vfio", host_device.vfio_device),
        ("fault", host_device.unreadable),
    ]
    return [(key, value) for key, value in facts if value]


def _pci_facts(function: PciFunction) -> list[tuple[str, str | None]]:
    hints = function.hints
    return [
        ("power", function.power_state),
        ("opens", str(function.enable) if function.vfio and function.enable else None),
        ("pf", function.physfn),
        ("vfs", ", ".join(function.vfs)),
        ("vgpu", function.vgpu_type or ("none" if function.vgpu else None)),
        ("resets", " ".join(hints.reset_methods) if hints else None),
        ("errors", f"{hints.aer_fatal} fatal PCIe errors" if hints and hints.aer_fatal else None),
    ]


def document(told: Explanation) -> dict[str, Any]:
    """The same as plain data."""
    host_device, reason = told.host_device, told.reason
    return {
        **_identity(host_device),
        "verdict": told.verdict,
        "resource": told.resource,
        "healthy": None if told.resource is None else reason is None,
        "reason": None if reason is None else {"code": reason.code, "what": reason.what, "hint": reason.hint},
        "vendor": host_device.vendor,
        "vendorName": told.vendor_name,
        "deviceName": told.device_name,
        "driver": host_device.driver,
        "group": host_device.group,
        "viable": told.viable,
        "members": [
            {"address": member.address, "driver": member.driver, "role": member.role}
            for member in told.members
        ],
        "rules": [{"rule": rule, "says": says} for rule, says in told.rules],
        "env": told.env,
        "nodes": list(told.nodes),
        "holder": told.holder,
    }


def _identity(host_device: HostDevice) -> dict[str, Any]:
    if isinstance(host_device, Mdev):
        return {"uuid": host_device.uuid, "type": host_device.type_id, "parent": host_device.parent}
    return {"address": host_device.address, "device": host_device.device, "vgpuType": host_device.vgpu_type}
