# SPDX-License-Identifier: Apache-2.0
"""Who has a device, or another one of its IOMMU group: a pod, or something else on this host. Pure."""

from __future__ import annotations

from nodeagent.model.allocation import Holder
from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.resource import Isolation, Reason, ReasonCode
from nodeagent.policy import groups
from nodeagent.policy.offer.checks.inputs import Unit, Use

WITH_ITS_POD = "it becomes available when that pod ends"


def held(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has the device under another resource, or another device of the group.

    The pod that is being admitted may take more of the group, but of no resource twice: the kubelet asks once
    for each container and resource, and VFIO lets one process open a group.
    """
    own_id = use.device_id(host_device)
    own = unit.holders.get(own_id)
    if own is not None and (own.brought or use.resource not in ("", own.resource)):
        return held_as_another(own)
    if use.isolation is Isolation.NONE:
        return None
    for device_id, holder in unit.holders.items():
        if device_id == own_id:
            continue
        if own is not None and holder.is_with(own):
            continue
        if own is not None:
            return _held_by_two(own, holder, device_id)
        if holder.got(device_id) not in unit.admitting or holder.resource == use.resource:
            return _held_by(holder, device_id)
    return None


def _held_by(holder: Holder, device_id: str) -> Reason:
    return Reason(
        ReasonCode.GROUP_HELD,
        f"IOMMU group held by {holder}, which has {device_id}",
        WITH_ITS_POD,
    )


def _held_by_two(own: Holder, other: Holder, device_id: str) -> Reason:
    """Given before it could be known: only one of them can use the group."""
    return Reason(
        ReasonCode.GROUP_HELD,
        f"held by {own}, while {other} has {device_id} of its IOMMU group: only one of them can use it",
        "it ends when one of the two ends; what comes in its place is given another group, if one is free",
    )


def held_as_another(holder: Holder) -> Reason:
    """The kubelet counts ids by resource: under this one it would give the device away a second time."""
    of = f" with {holder.brought}" if holder.brought and not holder.brought.isdecimal() else ""
    return Reason(
        ReasonCode.GROUP_HELD,
        f"held by {holder}, which got it as {holder.resource}{of}",
        WITH_ITS_POD,
    )


def through_vfs(function: PciFunction, unit: Unit, _: Use) -> Reason | None:
    """Either a PF is open, or VFs of it are: vfio-pci refuses the PF while a VF token is in use.

    A PF that a pod has already stays as it is; its VFs are never given (``devices.token``).
    """
    if function.address in unit.holders:
        return None
    for vf in unit.vfs:
        if vf.physfn != function.address:
            continue
        if vf.address in unit.vf_holders:
            return _held_through(vf, unit.vf_holders[vf.address])
        if groups.is_open(vf):
            return _open_through(vf) if unit.complete else _holder_unknown(vf, "VF")
    return None


def _held_through(vf: PciFunction, holder: Holder) -> Reason:
    return Reason(
        ReasonCode.GROUP_HELD,
        f"its VF {vf.address} is held by {holder}: either it is given, or its VFs are",
        WITH_ITS_POD,
    )


def _open_through(vf: PciFunction) -> Reason:
    return Reason(
        ReasonCode.HELD_OUTSIDE,
        f"its VF {vf.address} is open, and no pod of this node has it: either it is given, or its VFs are",
        "on the host, fuser -v /dev/vfio/* names the process",
    )


def outside(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Something is open in the group, and no pod of this node has it."""
    watched = (function,) if use.isolation is Isolation.NONE else unit.functions
    opened = [each for each in watched if groups.is_open(each)]
    if not opened or _accounted(function, unit, use):
        return None
    for member in opened:
        if not _accounted(member, unit, use):
            if unit.complete:
                return _held_outside(member, function)
            if member is not function:
                return _holder_unknown(member)
    return None


def _accounted(member: PciFunction, unit: Unit, use: Use) -> bool:
    """True if a pod has the function; with one of a bundle it has all of it."""
    return member.address in unit.holders or use.device_id(member) in unit.holders


def _held_outside(member: PciFunction, function: PciFunction) -> Reason:
    process = member.sight.process if member.sight is not None else None
    return _open_outside(member.id, process, function)


def _open_outside(device_id: str, process: str | None, asked: HostDevice) -> Reason:
    itself = "it is" if device_id == asked.id else f"{device_id} of its group is"
    by = f": see {process}" if process else ""
    return Reason(
        ReasonCode.HELD_OUTSIDE,
        f"{itself} open, and no pod of this node has it{by}",
        "on the host, fuser -v /dev/vfio/* names the process",
    )


def _holder_unknown(member: PciFunction, what: str = "") -> Reason:
    named = f"its {what} {member.address}" if what else f"{member.address} of its IOMMU group"
    return Reason(
        ReasonCode.GROUP_HELD,
        f"{named} is open, and the kubelet does not say yet who has it",
        "it is decided as soon as the kubelet's pod-resources socket answers",
    )
