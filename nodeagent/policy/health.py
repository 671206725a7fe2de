# SPDX-License-Identifier: Apache-2.0
"""Is this PCI function fit to be given to a VM, and if not, for which Reason. Pure; health is decided here.

The checks go from what is wrong with the function itself, over what is wrong with its group, to who holds
the group. The first that says no gives the Reason. Every Reason is decided anew at each turn, so one that
can end by itself ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, PciFunction, Recovery
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode
from nodeagent.policy import groups

CONTAINER_NODE = "/dev/vfio/vfio"
IOMMUFD_NODE = "/dev/iommu"


@dataclass(frozen=True, slots=True)
class Situation:
    """All that the health of one group's functions depends on."""

    group: Group | None
    members: tuple[PciFunction, ...]
    holders: Mapping[str, Holder] = field(default_factory=dict)  # of the group's members
    holders_known: bool = False  # False: the absence of a holder proves nothing
    settling: frozenset[str] = frozenset()  # ids allocated a moment ago: their pod may take more
    nodes: frozenset[str] = frozenset()
    iommu: bool = True


@dataclass(frozen=True, slots=True)
class Terms:
    """What the rule says about handing out: these decide which nodes and conflicts matter.

    ``functions`` are those that the Device stands for, if not the asked one alone; the first gives its id.
    """

    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    resource: str = ""  # under which it is offered; "": any, whoever holds it
    functions: tuple[str, ...] = ()

    def device_id(self, function: PciFunction) -> str:
        """The id of the Device to which the function belongs."""
        return self.functions[0] if function.address in self.functions else function.address


def reason(function: PciFunction, situation: Situation, terms: Terms) -> Reason | None:
    """Why the function cannot be given away; None if it is Healthy."""
    for check in _CHECKS:
        found = check(function, situation, terms)
        if found is not None:
            return found
    return None


def _unreadable(function: PciFunction, _: Situation, __: Terms) -> Reason | None:
    if function.unreadable is None:
        return None
    return Reason(
        ReasonCode.UNREADABLE,
        function.unreadable,
        "a removal may be waiting for the device; it is looked at again when the read returns",
    )


def _no_group(function: PciFunction, situation: Situation, _: Terms) -> Reason | None:
    if situation.group is None:
        why = "no IOMMU group" if situation.iommu else "no IOMMU group: this host has no active IOMMU"
        return Reason(
            ReasonCode.NO_GROUP,
            why,
            "switch the IOMMU on in the firmware and on the kernel command line (intel_iommu=on)",
        )
    if situation.group.no_iommu:
        return Reason(
            ReasonCode.NO_GROUP,
            "VFIO runs without an IOMMU here (vfio-noiommu): a guest could write to all memory",
            "switch the IOMMU on and enable_unsafe_noiommu_mode off",
        )
    return None


def _going_away(function: PciFunction, situation: Situation, _: Terms) -> Reason | None:
    if not groups.going_away(function, situation.group):
        return None
    return Reason(
        ReasonCode.GOING_AWAY,
        "going away, still in use: an unbind or removal waits for its holder",
        "stop the virtual machine that has it; the removal then completes",
    )


def _driver(function: PciFunction, _: Situation, __: Terms) -> Reason | None:
    if groups.vfio_bound(function):
        return None
    driver = f"its driver is {function.driver}" if function.driver else "it has no driver"
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{driver}, not a VFIO driver",
        f"bind {function.address} to vfio-pci",
    )


def _recovery(function: PciFunction, _: Situation, __: Terms) -> Reason | None:
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


def _viability(_: PciFunction, situation: Situation, __: Terms) -> Reason | None:
    found = groups.blockers(situation.members)
    if not found:
        return None
    named = ", ".join(f"{blocker.address} ({blocker.driver})" for blocker in found)
    number = situation.group.number if situation.group else "?"
    return Reason(
        ReasonCode.GROUP_NOT_VIABLE,
        f"IOMMU group {number} is not viable: {named} has a host driver",
        f"bind {found[0].address} to vfio-pci as well, or unbind it",
    )


def _nodes(function: PciFunction, situation: Situation, terms: Terms) -> Reason | None:
    legacy = situation.group is not None and situation.group.node and CONTAINER_NODE in situation.nodes
    modern = function.cdev and IOMMUFD_NODE in situation.nodes
    fits = {Iommufd.NEVER: legacy, Iommufd.ONLY: modern, Iommufd.AUTO: legacy or modern}
    if fits[terms.iommufd]:
        return None
    number = situation.group.number if situation.group else "?"
    wanted = (
        f"/dev/vfio/devices/{function.vfio_device or 'vfio?'} and {IOMMUFD_NODE}"
        if terms.iommufd is Iommufd.ONLY
        else f"/dev/vfio/{number} and {CONTAINER_NODE}"
    )
    return Reason(
        ReasonCode.NODE_MISSING,
        f"a device node is missing: {wanted} must exist",
        "look for udev or container mounts that hide /dev/vfio; bind the device again if the node stays away",
    )


def _domain(function: PciFunction, _: Situation, __: Terms) -> Reason | None:
    if len(function.address) == len("0000:00:00.0"):
        return None
    return Reason(
        ReasonCode.EXCLUDED,
        "its PCI domain has more than four digits, which virt-launcher cannot read",
        "switch Intel VMD off for this device in the firmware",
    )


def _held(function: PciFunction, situation: Situation, terms: Terms) -> Reason | None:
    own_id = terms.device_id(function)
    own = situation.holders.get(own_id)
    if own is not None:
        return _held_as_another(own) if terms.resource not in ("", own.resource) else None
    if terms.isolation is Isolation.NONE:
        return None
    for device_id, holder in situation.holders.items():
        if device_id not in situation.settling:
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


def _outside(function: PciFunction, situation: Situation, terms: Terms) -> Reason | None:
    if _accounted(function, situation, terms):
        return None
    watched = (function,) if terms.isolation is Isolation.NONE else situation.members
    for member in watched:
        if groups.in_use(member) and not _accounted(member, situation, terms):
            if situation.holders_known:
                return _held_outside(member, function)
            if member is not function:
                return _holder_unknown(member)
    return None


def _accounted(member: PciFunction, situation: Situation, terms: Terms) -> bool:
    """True if a pod has the function; with one of a bundle it has all of it."""
    return any(
        found in situation.holders or found in situation.settling
        for found in (member.address, terms.device_id(member))
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


_CHECKS: tuple[Callable[[PciFunction, Situation, Terms], Reason | None], ...] = (
    _unreadable,
    _going_away,
    _no_group,
    _domain,
    _driver,
    _recovery,
    _viability,
    _nodes,
    _held,
    _outside,
)
