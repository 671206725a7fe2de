# SPDX-License-Identifier: Apache-2.0
"""Is this function or mdev fit to be given to a VM, and if not, for which Reason. Pure: no second opinion.

The checks go from what is wrong with the part itself, over what is wrong with its group, to who holds
the group. The first that says no gives the Reason. Every Reason is decided anew at each turn, so one that
can end by itself ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, HostDevice, Mdev, PciFunction, Recovery
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode
from nodeagent.policy import groups
from nodeagent.policy.offer import matches

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"


@dataclass(frozen=True, slots=True)
class UnitState:
    """All that the health of one group's functions and mdevs depends on."""

    group: Group | None
    members: tuple[PciFunction, ...]
    mdevs: tuple[Mdev, ...] = ()
    holders: Mapping[str, Holder] = field(default_factory=dict)  # of the group's members
    holders_known: bool = False  # False: the absence of a holder proves nothing
    settling: frozenset[str] = frozenset()  # ids allocated a moment ago: their pod may take more
    nodes: frozenset[str] = frozenset()
    iommu: bool = True


@dataclass(frozen=True, slots=True)
class Handout:
    """What the rule says about handing out: these decide which nodes and conflicts matter.

    ``host_devices`` are those that the Device stands for, if not the asked one alone; the first gives its id.
    ``type_id`` is the type of mdev or vGPU under which it was taken.
    """

    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    resource: str = ""  # under which it is offered; "": any, whoever holds it
    host_devices: tuple[str, ...] = ()
    type_id: str | None = None

    def device_id(self, host_device: HostDevice) -> str:
        """The id of the Device to which the part belongs."""
        return self.host_devices[0] if host_device.id in self.host_devices else host_device.id


P = TypeVar("P", PciFunction, Mdev)
_Check = Callable[[P, UnitState, Handout], Reason | None]


def reason(host_device: HostDevice, state: UnitState, handout: Handout) -> Reason | None:
    """Why the part cannot be given away; None if it is Healthy."""
    if isinstance(host_device, Mdev):
        return _first(_MDEV_CHECKS, host_device, state, handout)
    return _first(_PCI_CHECKS, host_device, state, handout)


def _first(checks: Iterable[_Check[P]], host_device: P, state: UnitState, handout: Handout) -> Reason | None:
    for check in checks:
        found = check(host_device, state, handout)
        if found is not None:
            return found
    return None


def _unreadable(host_device: HostDevice, _: UnitState, __: Handout) -> Reason | None:
    if host_device.unreadable is None:
        return None
    return Reason(
        ReasonCode.UNREADABLE,
        host_device.unreadable,
        "a removal may be waiting for the device; it is looked at again when the read returns",
    )


def _no_group(_: PciFunction, state: UnitState, __: Handout) -> Reason | None:
    if state.group is None:
        why = "no IOMMU group" if state.iommu else "no IOMMU group: this host has no active IOMMU"
        return Reason(
            ReasonCode.NO_GROUP,
            why,
            "switch the IOMMU on in the firmware and on the kernel command line (intel_iommu=on)",
        )
    if state.group.no_iommu:
        return Reason(
            ReasonCode.NO_GROUP,
            "VFIO runs without an IOMMU here (vfio-noiommu): a guest could write to all memory",
            "switch the IOMMU on and enable_unsafe_noiommu_mode off",
        )
    return None


def _going_away(function: PciFunction, state: UnitState, _: Handout) -> Reason | None:
    return _waits_for_holder() if groups.going_away(function, state.group) else None


def _waits_for_holder() -> Reason:
    return Reason(
        ReasonCode.GOING_AWAY,
        "going away, still in use: an unbind or removal waits for its holder",
        "stop the virtual machine that has it; the removal then completes",
    )


def _leaving(mdev: Mdev, state: UnitState, handout: Handout) -> Reason | None:
    """Linux takes a removed mdev off its bus at once; its group stays until the holder closes it."""
    return _waits_for_holder() if mdev.leaving else None


def _dead(mdev: Mdev, _: UnitState, __: Handout) -> Reason | None:
    """An instance whose driver has let go is not taken back: binding it again fails with ENODEV (6.12)."""
    if mdev.driver is not None:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        "it has no driver any more: nobody can use this instance",
        f"remove it (echo 1 > /sys/bus/mdev/devices/{mdev.uuid}/remove) and create it anew",
    )


def _no_mdev_group(_: Mdev, state: UnitState, __: Handout) -> Reason | None:
    if state.group is not None:
        return None
    return Reason(
        ReasonCode.NO_GROUP,
        "no IOMMU group: its driver gives it none",
        "look for messages of the parent's driver in the kernel log; remove it and create it anew",
    )


def _type_changed(host_device: HostDevice, _: UnitState, handout: Handout) -> Reason | None:
    now = matches.type_of(host_device)
    if handout.type_id is None or now == handout.type_id:
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type was {handout.type_id} and is {now or 'none'} now",
        f"give it the type {handout.type_id} again, or let a resource offer {now or 'what it has'}",
    )


def _driver(function: PciFunction, state: UnitState, handout: Handout) -> Reason | None:
    if groups.ready(function):
        return None
    if groups.takes_vgpu(function):
        return _no_vgpu(function, handout)
    driver = f"its driver is {function.driver}" if function.driver else "it has no driver"
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{driver}, not a VFIO driver",
        f"bind {function.address} to vfio-pci",
    )


def _no_vgpu(function: PciFunction, handout: Handout) -> Reason:
    before = f", it was {handout.type_id}" if handout.type_id else ""
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"no vGPU type is set on it (nvidia/current_vgpu_type is 0{before})",
        f"write a type to /sys/bus/pci/devices/{function.address}/nvidia/current_vgpu_type",
    )


def _recovery(function: PciFunction, _: UnitState, __: Handout) -> Reason | None:
    if function.recovery is None:
        return None
    if function.recovery is Recovery.RUNNING:
        return Reason(
            ReasonCode.RECOVERY_FAILED,
            "the kernel is recovering it from a PCIe error",
            "wait; if it stays so, look at the kernel log for AER messages",
        )
    return Reason(
        ReasonCode.RECOVERY_FAILED,
        "the kernel could not recover it from a fatal PCIe error",
        "reset or re-plug the card, or unbind and bind it again; the kernel log has the AER messages",
    )


def _viability(_: PciFunction, state: UnitState, __: Handout) -> Reason | None:
    found = groups.blockers(state.members)
    if not found:
        return None
    named = ", ".join(f"{blocker.address} ({blocker.driver})" for blocker in found)
    number = state.group.number if state.group else "?"
    return Reason(
        ReasonCode.GROUP_NOT_VIABLE,
        f"IOMMU group {number} is not viable: {named} has a host driver",
        f"bind {found[0].address} to vfio-pci as well, or unbind it",
    )


def _nodes(host_device: HostDevice, state: UnitState, handout: Handout) -> Reason | None:
    legacy = state.group is not None and state.group.node and CONTAINER_NODE in state.nodes
    modern = host_device.cdev and IOMMUFD_NODE in state.nodes
    fits = {Iommufd.NEVER: legacy, Iommufd.ONLY: modern, Iommufd.AUTO: legacy or modern}
    if fits[handout.iommufd]:
        return None
    number = state.group.number if state.group else "?"
    wanted = (
        f"/dev/vfio/devices/{host_device.vfio_device or 'vfio?'} and {IOMMUFD_NODE}"
        if handout.iommufd is Iommufd.ONLY
        else f"/dev/vfio/{number} and {CONTAINER_NODE}"
    )
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {wanted} must exist",
        "look for udev or container mounts that hide /dev/vfio; bind the device again if the node stays away",
    )


def _domain(function: PciFunction, _: UnitState, __: Handout) -> Reason | None:
    if len(function.address) == len("0000:00:00.0"):
        return None
    return Reason(
        ReasonCode.EXCLUDED,
        "its PCI domain has more than four digits, which virt-launcher cannot read",
        "switch Intel VMD off for this device in the firmware",
    )


def _held(host_device: HostDevice, state: UnitState, handout: Handout) -> Reason | None:
    own_id = handout.device_id(host_device)
    own = state.holders.get(own_id)
    if own is not None:
        return _held_as_another(own) if handout.resource not in ("", own.resource) else None
    if handout.isolation is Isolation.NONE:
        return None
    for device_id, holder in state.holders.items():
        if device_id not in state.settling:
            return Reason(
                ReasonCode.GROUP_HELD,
                f"IOMMU group held by {holder}, which has {device_id}",
                "it becomes available when that pod ends",
            )
    return None


def _held_as_another(holder: Holder) -> Reason:
    """The kubelet counts by resource: under this one it would give the device away a second time."""
    return Reason(
        ReasonCode.GROUP_HELD,
        f"held by {holder}, which got it as {holder.resource}",
        "it becomes available when that pod ends",
    )


def _outside(function: PciFunction, state: UnitState, handout: Handout) -> Reason | None:
    if _accounted(function, state, handout):
        return None
    watched = (function,) if handout.isolation is Isolation.NONE else state.members
    for member in watched:
        if groups.in_use(member) and not _accounted(member, state, handout):
            if state.holders_known:
                return _held_outside(member, function)
            if member is not function:
                return _holder_unknown(member)
    return None


def _accounted(member: PciFunction, state: UnitState, handout: Handout) -> bool:
    """True if a pod has the function; with one of a bundle it has all of it."""
    return any(
        found in state.holders or found in state.settling
        for found in (member.address, handout.device_id(member))
    )


def _held_outside(member: PciFunction, function: PciFunction) -> Reason:
    itself = "it is" if member is function else f"{member.address} of its group is"
    return Reason(
        ReasonCode.HELD_OUTSIDE,
        f"{itself} open, and no pod of this node has it",
        "find the process with: fuser -v /dev/vfio/*",
    )


def _holder_unknown(member: PciFunction) -> Reason:
    return Reason(
        ReasonCode.GROUP_HELD,
        f"{member.address} of its IOMMU group is open, and the kubelet does not say yet who has it",
        "it is decided as soon as the kubelet's pod-resources socket answers",
    )


_PCI_CHECKS: tuple[_Check[PciFunction], ...] = (
    _unreadable,
    _going_away,
    _no_group,
    _domain,
    _driver,
    _type_changed,
    _recovery,
    _viability,
    _nodes,
    _held,
    _outside,
)
# An mdev is alone in its group, and nothing tells from outside that it is open.
_MDEV_CHECKS: tuple[_Check[Mdev], ...] = (
    _leaving,
    _unreadable,
    _dead,
    _type_changed,
    _no_mdev_group,
    _nodes,
    _held,
)
