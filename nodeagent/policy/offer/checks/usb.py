# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a USB device: no node, another number than its pod got, the host uses it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.usb import UsbDevice
from nodeagent.policy import uses
from nodeagent.policy.offer.checks import holding
from nodeagent.policy.offer.checks.inputs import Unit, Use


def node(device: UsbDevice, _: Unit, __: Use) -> Reason | None:
    """The kernel makes the node with the device; a container may hide it."""
    if device.present:
        return None
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {device.node} must exist",
        "look for udev or container mounts that hide /dev/bus/usb; plug the device in again if it stays away",
    )


def replugged(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has the device by a number that it has no more, or a part of its set has gone."""
    head = DeviceId(use.device_id(device))
    loans = unit.loans.get(head, ()) if _counts(head, unit) else ()
    present = {each.id: each for each in unit.devices if isinstance(each, UsbDevice)}
    for loan in loans:
        now = present.get(loan.id)
        if now is None:
            return Reason(
                ReasonCode.GONE,
                f"{loan.id}, which was given with it, is no longer on the host",
                "plug it in again, and restart the virtual machine: it is given all of the set anew then",
            )
        if now.place != loan.place:
            return Reason(
                ReasonCode.RE_ENUMERATED,
                f"the guest must re-attach it: it was plugged in again or reset, and is {now.place} now; "
                f"its pod was given {loan.place}",
                "restart the virtual machine: its new pod is given the number of now",
            )
    return None


def _counts(head: DeviceId, unit: Unit) -> bool:
    """True while somebody may have it: a loan is on record until it was given back, a moment longer."""
    return head in unit.holders or not unit.complete


def held(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has it under another resource, with another device of its set, or by a node of it."""
    own_id = use.device_id(device)
    own = unit.holders.get(own_id)
    if own is not None and (own.brought or use.resource not in ("", own.resource)):
        return holding.held_as_another(own)
    container = unit.in_containers.get(device.id)
    if container is not None and not (own is not None and own.is_with(container)):
        what = f"{container} has a node of it, which it got as {container.resource}"
        return Reason(ReasonCode.GROUP_HELD, what, holding.WITH_ITS_POD)
    present = {each.id for each in unit.devices}
    for head, loans in unit.loans.items():
        if head == own_id or not _counts(head, unit):
            continue
        for loan in loans:
            if loan.id == device.id or (loan.place == device.place and loan.id not in present):
                holder = unit.holders.get(head)
                return Reason(
                    ReasonCode.GROUP_HELD,
                    f"held by {holder or UNNAMED}, which got it with {head}",
                    holding.WITH_ITS_POD,
                )
    return None


def used(device: UsbDevice, _: Unit, use: Use) -> Reason | None:
    """QEMU takes it from its drivers without asking: what is mounted would be lost."""
    found = refusal(device, use.force)
    return None if found is None else Reason(ReasonCode.USED_BY_HOST, *found)


def refusal(device: UsbDevice, force: Iterable[str]) -> tuple[str, str] | None:
    """What the host uses of it, and what to do; None if nothing, or if ``force`` names it."""
    known_as = (device.id, device.name, device.path)
    forced = any(fnmatchcase(name, pattern) for name in known_as for pattern in force)
    return next(uses.refusals(device.uses, device.id, forced), None)
