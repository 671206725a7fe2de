# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain DEVICE`` prints: the story of one device, the verdict first."""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.base.terminal import table
from nodeagent.model.host import Kind
from nodeagent.policy.explain.devices import DeviceExplanation, is_blocked
from nodeagent.render import cards


def text(explanation: DeviceExplanation) -> str:
    """The verdict, what to do, then all that led to it, and what is made of it if it is a card."""
    lines = [f"{explanation.id}  {explanation.verdict}"]
    if explanation.to_do:
        lines.append(f"  {'to do' if explanation.resource else 'to offer it'}: {explanation.to_do}")
    lines += ["", f"  device  {_name(explanation)}"]
    lines += [f"  {key:<7} {value}" for key, value in explanation.facts.items()]
    lines += ["", f"  group   {_group(explanation)}"]
    if explanation.group is not None and explanation.members:
        rows = [
            (each.address, each.driver or "-", means(each.role, own=each.address == explanation.id))
            for each in explanation.members
        ]
        lines.append(table(("MEMBER", "DRIVER", "MEANS"), rows, indent="          "))
    if explanation.split is not None:
        lines += ["", "  card", *(f"          {line}".rstrip() for line in cards.lines(explanation.split))]
    lines += ["", "  rules"] + [f"          {rule}: {says}" for rule, says in explanation.rules]
    if explanation.healthy and explanation.env is not None:
        lines += ["", f"  a pod would get  {explanation.env}", f"{' ' * 19}{' '.join(explanation.nodes)}"]
    if explanation.holder is not None:
        lines += ["", f"  held by {explanation.holder}"]
    return "\n".join(lines)


def _name(explanation: DeviceExplanation) -> str:
    known = " ".join(name for name in (explanation.vendor_name, explanation.device_name) if name)
    if explanation.device_kind == Kind.MDEV:
        return f"{explanation.device_kind}  {known or 'of a type that cannot be read'}"
    unknown = "without a name" if explanation.device_kind == Kind.USB else "unknown to pci.ids"
    return f"{explanation.vendor or '?'}:{explanation.device or '?'}  {known or unknown}"


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
    if explanation.group is None:
        return "none"
    if explanation.device_kind == Kind.MDEV:
        return f"{explanation.group}  its own"
    roles = [each.role for each in explanation.members]
    return f"{explanation.group}  {viability(explanation.viable, roles)}"


def viability(viable: bool, roles: Iterable[str]) -> str:
    """Return whether VFIO may have a group, or need not have it."""
    if viable:
        return "viable"
    return "NOT viable" if is_blocked(roles) else "not for VFIO, its driver gives parts of it"
