# SPDX-License-Identifier: Apache-2.0
"""Health of USB devices: the checks in their order, as in ``health``. Pure.

Loaded when a USB device is checked, which only rules for USB devices have read.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.host import Loan, UsbDevice
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.policy import classes
from nodeagent.policy.offer.health import WITH_ITS_POD, Unit, Use, held_as_another, unreadable


def reason(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """Why the device cannot be put to this use; None if it is Healthy.

    QEMU takes it from whatever driver has it, so its driver is no obstacle: who uses that is.
    """
    return (
        unreadable(device)
        or _node(device)
        or _replugged(device, unit, use)
        or _held(device, unit, use)
        or _used_by_host(device, use)
    )


def _node(device: UsbDevice) -> Reason | None:
    """The kernel makes the node with the device; a container may hide it."""
    if device.present:
        return None
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {device.node} must exist",
        "look for udev or container mounts that hide /dev/bus/usb; plug the device in again if it stays away",
    )


def _replugged(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has the device by a number that it has no more, or a part of its set has gone."""
    present = {each.id: each for each in unit.devices if isinstance(each, UsbDevice)}
    for loan in _live_loans(DeviceId(use.device_id(device)), unit):
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


def _live_loans(head: DeviceId, unit: Unit) -> tuple[Loan, ...]:
    """The loans while somebody may have them: one is on record until it was given back, a moment longer."""
    return unit.loans.get(head, ()) if head in unit.holders or not unit.complete else ()


def _held(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has it under another resource, with another device of its set, or by a node of it."""
    own_id = use.device_id(device)
    own = unit.holders.get(own_id)
    elsewhere = held_as_another(own, use)
    if elsewhere is not None:
        return elsewhere
    container = unit.in_containers.get(device.id)
    if container is not None and not (own is not None and own.is_with(container)):
        text = f"{container} has a node of it, which it got as {container.resource}"
        return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
    present = {each.id for each in unit.devices}
    for head in unit.loans:
        for loan in _live_loans(head, unit) if head != own_id else ():
            if loan.id == device.id or (loan.place == device.place and loan.id not in present):
                holder = unit.holders.get(head) or UNNAMED
                text = f"held by {holder}, which got it with {head}"
                return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
    return None


def _used_by_host(device: UsbDevice, use: Use) -> Reason | None:
    """QEMU takes it from its drivers without asking: what is mounted would be lost."""
    refusal = host_use(device, use.force)
    return None if refusal is None else Reason(ReasonCode.USED_BY_HOST, *refusal)


def host_use(device: UsbDevice, force: Iterable[str]) -> tuple[str, str] | None:
    """What the host uses of it, and what to do; None if nothing, or if ``force`` names it."""
    known_as = (device.id, device.name, device.path)
    forced = any(fnmatchcase(name, pattern) for name in known_as for pattern in force)
    return next(classes.refusals(device.uses, device.id, forced), None)
