# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain DEVICE`` prints: the story of one device, the verdict first."""

from __future__ import annotations

from typing import Any

from nodeagent.model.host import PciFunction
from nodeagent.policy.explain import Explanation
from nodeagent.show.table import table


def text(told: Explanation) -> str:
    """The verdict, what to do, then all that led to it."""
    function = told.function
    name = " ".join(part for part in (told.vendor_name, told.device_name) if part) or "unknown to pci.ids"
    lines = [f"{function.address}  {told.verdict}"]
    if told.reason is not None and told.reason.hint:
        lines.append(f"  to do: {told.reason.hint}")
    lines += ["", f"  device  {function.vendor or '?'}:{function.device or '?'}  {name}"]
    lines += [f"  {key:<7} {value}" for key, value in _facts(function)]
    lines += ["", f"  group   {_group(told)}"]
    rows = [(member.address, member.driver or "-", _ROLES[member.role]) for member in told.members]
    lines += [table(("MEMBER", "DRIVER", "MEANS"), rows, indent="          ")]
    lines += ["", "  rules"] + [f"          {rule}: {says}" for rule, says in told.rules]
    if told.env is not None:
        lines += ["", f"  a pod would get  {told.env}", f"                   {' '.join(told.nodes)}"]
    if told.holder is not None:
        lines += ["", f"  held by {told.holder}"]
    return "\n".join(lines)


_ROLES = {
    "vfio": "ready for VFIO",
    "bridge": "a bridge, does not matter",
    "unbound": "no driver, does not matter",
    "friendly": "may stay beside VFIO",
    "blocks": "BLOCKS the group: a host driver has it",
}


def _group(told: Explanation) -> str:
    if told.function.group is None:
        return "none"
    return f"{told.function.group}  {'viable' if told.viable else 'NOT viable'}"


def _facts(function: PciFunction) -> list[tuple[str, str]]:
    hints = function.hints
    facts = [
        ("class", function.pci_class),
        ("driver", function.driver or "none"),
        ("numa", None if function.numa_node is None else str(function.numa_node)),
        ("power", function.power_state),
        ("opens", str(function.enable) if function.vfio and function.enable else None),
        ("pf", function.physfn),
        ("vfs", ", ".join(function.vfs)),
        ("vfio", function.vfio_device),
        ("resets", " ".join(hints.reset_methods) if hints else None),
        ("errors", f"{hints.aer_fatal} fatal PCIe errors" if hints and hints.aer_fatal else None),
        ("fault", function.unreadable),
    ]
    return [(key, value) for key, value in facts if value]


def document(told: Explanation) -> dict[str, Any]:
    """The same as plain data."""
    function, reason = told.function, told.reason
    return {
        "address": function.address,
        "verdict": told.verdict,
        "resource": told.resource,
        "healthy": None if told.resource is None else reason is None,
        "reason": None if reason is None else {"code": reason.code, "what": reason.what, "hint": reason.hint},
        "vendor": function.vendor,
        "device": function.device,
        "vendorName": told.vendor_name,
        "deviceName": told.device_name,
        "driver": function.driver,
        "group": function.group,
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
