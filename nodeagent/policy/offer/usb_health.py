# SPDX-License-Identifier: Apache-2.0
"""The health checks of USB devices, in order, like those in ``health``. Pure.

This module is loaded when a USB device is checked; USB devices are scanned only if there are rules for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from nodeagent.model.allocation import UNNAMED, Holder
from nodeagent.model.host import HostDevice, Loan, UsbDevice
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import classes
from nodeagent.policy.offer.health import WITH_ITS_POD, Unit, Use, explain_other_resource, unreadable


def reason(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """Why the USB device cannot be allocated by this rule; None if it is Healthy.

    QEMU detaches the host drivers of the device, so a host driver does not matter, but the device must not be
    in use by the host.
    """
    return (
        unreadable(device)
        or _node(device)
        or _replugged(device, unit, use)
        or _held(device, unit, use)
        or _used_by_host(device, use)
    )


def _node(device: UsbDevice) -> Reason | None:
    """Unhealthy while the device node does not exist: a container mount may hide the kernel's device node."""
    if device.present:
        return None
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {device.node} must exist",
        "check for udev rules or container mounts that hide /dev/bus/usb; if it stays missing, re-plug it",
    )


def _replugged(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy if the USB device has another number than at the allocation, or a part of its set is gone."""
    present = {each.id: each for each in unit.devices if isinstance(each, UsbDevice)}
    for loan in _find_live_loans(DeviceId(use.device_id(device)), unit):
        now = present.get(loan.id)
        if now is None:
            other = find_replacement(loan, unit.devices)
            state = "no longer on the host" if other is None else f"{other.id} now, at port {loan.name}"
            return Reason(
                ReasonCode.GONE,
                f"{loan.id}, which was allocated with it, is {state}",
                "re-plug it, and restart the VM, so that it gets the whole set again",
            )
        if now.place != loan.place:
            return Reason(
                ReasonCode.RE_ENUMERATED,
                f"re-plugged or reset while in use: it is {now.place} now, and its pod got {loan.place}",
                "restart the VM, so that its new pod gets the present number",
            )
    return None


def explain_replaced(device_id: str, holder: Holder, snapshot: Snapshot) -> Reason | None:
    """The Reason if the allocated USB device is gone and another one is at its port; else None.

    Some USB devices get other ids when they are first used, because the driver then loads their firmware.
    """
    for loan in snapshot.loans.get(DeviceId(device_id), ()):
        other = find_replacement(loan, snapshot.host.usb.values()) if loan.id == device_id else None
        if other is not None:
            return Reason(
                ReasonCode.RE_ENUMERATED,
                f"it is {other.id} now, at port {loan.name}; still in use by {holder}",
                "restart the VM, so that its new pod gets the present device; its rule has to match both ids",
            )
    return None


def find_replacement(loan: Loan, devices: Iterable[HostDevice]) -> UsbDevice | None:
    """The USB device that is now at the port of an allocated one; None while the latter is on the host."""
    at_port = None
    for each in devices:
        if each.id == loan.id:
            return None
        if isinstance(each, UsbDevice) and each.name == loan.name:
            at_port = each
    return at_port


def _find_live_loans(head: DeviceId, unit: Unit) -> tuple[Loan, ...]:
    """The recorded USB devices that a pod may still use; a record remains for a moment after the release."""
    return unit.loans.get(head, ()) if head in unit.holders or not unit.complete else ()


def _held(device: UsbDevice, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy while a pod uses the device as part of another resource or set, or by its device node."""
    own_id = use.device_id(device)
    own = unit.holders.get(own_id)
    elsewhere = explain_other_resource(own, use)
    if elsewhere is not None:
        return elsewhere
    container = unit.in_containers.get(device.id)
    if container is not None and not (own is not None and own.is_with(container)):
        text = f"{container} uses its device node, which was allocated as {container.resource}"
        return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
    present = {each.id for each in unit.devices}
    for head in unit.loans:
        for loan in _find_live_loans(head, unit) if head != own_id else ():
            holder = unit.holders.get(head) or UNNAMED
            if loan.id == device.id:
                text = f"in use by {holder}, which got it with {head}"
                return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
            if loan.id not in present and (device.name == loan.name or device.place == loan.place):
                same = "port" if device.name == loan.name else "number"
                text = f"it has the {same} of {loan.id}, which is in use by {holder}"
                return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
    return None


def _used_by_host(device: UsbDevice, use: Use) -> Reason | None:
    """Unhealthy while the host uses the USB device: a mounted file system would be lost, for example."""
    refusal = find_host_use(device, use.force)
    return None if refusal is None else Reason(ReasonCode.USED_BY_HOST, *refusal)


def find_host_use(device: UsbDevice, force: Iterable[str]) -> tuple[str, str] | None:
    """The host's use of the device, and the fix; None if the host does not use it or ``force`` names it."""
    known_as = (device.id, device.name, device.path)
    forced = any(fnmatchcase(name, pattern) for name in known_as for pattern in force)
    return next(classes.find_refusals(device.uses, device.id, forced), None)
