# SPDX-License-Identifier: Apache-2.0
"""Health: whether a device can be allocated to a VM, and the Reason if it cannot. Pure.

One function for each kind of device calls its checks in order: first those of the device itself, then those
of its group and nodes, then whether it is in use. The first check that fails gives the Reason. The checks run
again after each change of the host, so a device is Healthy again when the cause has ended.
``kinds.find_reason`` calls the checks for ``units``, for ``not_offered`` and for ``explain``. The checks of
USB devices are in ``usb_health``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import (
    NO_VFIO,
    Group,
    HostDevice,
    Loans,
    Mdev,
    Missing,
    PciFunction,
    Recovery,
    VfioDevice,
)
from nodeagent.model.ids import pci_order
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode, Via
from nodeagent.policy import classes, groups
from nodeagent.policy.offer import discovery

WAITS_HINT = "stop the VM that uses it; the removal then completes"
LEAVES_SLICE = "it becomes available when the API server has removed it from the slice"
WITH_ITS_POD = "it becomes available when that pod ends"
HIDDEN_NODE = "check for udev rules or container mounts that hide /dev/vfio"
_FIND_OPENER = "on the host, run fuser -v /dev/vfio/* to see the process"


class Unit(NamedTuple):
    """Devices that are decided together: an IOMMU group, or one device without a group (group None).

    All USB devices are one unit, too: ``loans`` are the allocated ones, and ``in_containers`` those with a
    node that a pod has.

    ``nodes``, ``no_iommu`` and ``no_vfio`` are facts about the whole host. ``firmware``: the kernel refuses
    the group to VFIO, because firmware needs memory mapped 1:1. ``vfs``: the VFs of functions that are PFs on
    a VFIO driver. ``mdevs``: the number of mdevs on a function with a host driver. A named tuple, because at
    the start one is built for every group.
    """

    group: Group | None
    devices: tuple[HostDevice, ...] = ()
    functions: tuple[PciFunction, ...] = ()  # those of the devices that are PCI functions
    holders: Mapping[str, Holder] = MappingProxyType({})
    complete: bool = False  # False: a device without a known pod may be in use
    admitting: frozenset[str] = frozenset()  # allocated to the pod under admission
    withdrawn: frozenset[str] = frozenset()  # being bound to another driver, or removed
    unwanted: frozenset[str] = frozenset()  # to be bound or removed once they are not in use
    in_slices: frozenset[str] = frozenset()  # in a ResourceSlice of this node
    vfs: tuple[PciFunction, ...] = ()
    vf_holders: Mapping[str, Holder] = MappingProxyType({})
    mdevs: Mapping[str, int] = MappingProxyType({})
    nodes: frozenset[str] = frozenset()
    no_iommu: Missing | None = None
    no_vfio: Missing | None = None
    boot_framebuffers: tuple[tuple[str, str], ...] = ()
    ruled: frozenset[str] = frozenset()  # functions that a passthrough rule is to bind
    split: frozenset[str] = frozenset()  # functions with vGPUs
    firmware: bool = False
    loans: Loans = MappingProxyType({})
    in_containers: Mapping[str, Holder] = MappingProxyType({})

    @property
    def number(self) -> str:
        """The number of the IOMMU group, for messages."""
        return "?" if self.group is None else str(self.group.number)


class Use(NamedTuple):
    """The options of the rule that offers a device; the checks of device nodes and conflicts depend on them.

    ``host_devices``: the host devices of the Device, if it has several; the id of the first is the id of the
    Device. ``type_id``: the type that the mdev or vGPU had when the rule matched it. ``unnamed``: the name of
    the type is not known yet.
    """

    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    resource: str = ""  # under which it is offered; "": any
    host_devices: tuple[str, ...] = ()
    type_id: str | None = None
    unnamed: bool = False
    force: tuple[str, ...] = ()  # of a USB rule: devices that are offered although the host uses them
    via: Via = Via.DEVICE_PLUGIN

    def device_id(self, host_device: HostDevice) -> str:
        """The id of the Device that contains the host device."""
        return self.host_devices[0] if host_device.id in self.host_devices else host_device.id


ANY_USE = Use()


def check_function(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Why a PCI function, or a vGPU on a VF, cannot be allocated; None if it is Healthy."""
    return (
        unreadable(function)
        or _going_away(groups.is_going_away(function, unit.group))
        or _left_behind(function)
        or _no_group(unit)
        or _firmware(unit)
        or _domain(function)
        or _token(function)
        or _driver(function, unit, use)
        or _boot_framebuffer(function, unit)
        or _withdrawn(unit)
        or _unwanted(function.address, unit)
        or _type_changed(groups.find_vgpu_type(function), use)
        or _unnamed(function, use)
        or _fallen(function)
        or _recovery(function)
        or _viability(unit)
        or _nodes(function, unit, use)
        or _held(function, unit, use)
        or _held_through_vfs(function, unit)
        or _opened_outside(function, unit, use)
    )


def check_mdev(mdev: Mdev, unit: Unit, use: Use) -> Reason | None:
    """Why an mdev cannot be allocated; None if it is Healthy.

    An mdev is alone in its group, and the kernel does not show whether it is open. Linux removes a deleted
    mdev from its bus at once; the group of the mdev remains until the process that uses the mdev closes it.
    """
    return (
        _going_away(mdev.leaving)
        or unreadable(mdev)
        or _dead(mdev)
        or _unwanted(mdev.uuid, unit)
        or _type_changed(mdev.type_id, use)
        or _no_mdev_group(unit)
        or _nodes(mdev, unit, use)
        or _held(mdev, unit, use)
    )


# The device itself.


def unreadable(host_device: HostDevice) -> Reason | None:
    """Unhealthy while the attributes of the device cannot be read."""
    if host_device.unreadable is None:
        return None
    return Reason(
        ReasonCode.UNREADABLE,
        host_device.unreadable,
        "a removal may be waiting for the device; it is checked again when the read returns",
    )


def _going_away(waits: bool) -> Reason | None:
    """Unhealthy while the driver is being unbound from the device and a process still has it open."""
    if not waits:
        return None
    return Reason(
        ReasonCode.GOING_AWAY,
        "being removed but still in use: an unbind or removal waits until its user closes it",
        WAITS_HINT,
    )


def _left_behind(function: PciFunction) -> Reason | None:
    """Unhealthy for a VF whose PF was removed: its configuration space reads all ones."""
    if not function.left_behind:
        return None
    return Reason(
        ReasonCode.GONE,
        f"its physical function {function.physfn} was removed without this VF, so the VF does not respond",
        f"drain and reboot the node, and do not write sriov_numvfs of {function.physfn} before: "
        "that can crash the kernel",
    )


def _domain(function: PciFunction) -> Reason | None:
    """Unhealthy for a PCI domain of more than four digits, which virt-launcher cannot parse."""
    if len(function.address) == len("0000:00:00.0"):
        return None
    return Reason(
        ReasonCode.EXCLUDED,
        "its PCI domain has more than four digits, which virt-launcher cannot parse",
        "disable Intel VMD for this device in the firmware",
    )


def _token(function: PciFunction) -> Reason | None:
    """Unhealthy for a VF whose PF is on vfio-pci: opening it needs the VF token of the PF's user."""
    if not groups.needs_token(function):
        return None
    return Reason(
        ReasonCode.NEEDS_TOKEN,
        f"its PF {function.physfn} is on vfio-pci: it needs a VF token, which libvirt does not send",
        f"assign the whole PF {function.physfn} to VMs; or, when it and its VFs are not in use, set their "
        "number to 0, bind the PF to its vendor driver, and create the VFs with that driver",
    )


def _driver(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy unless the function is on a VFIO driver, or on the vendor driver with a vGPU type."""
    if groups.is_assignable(function):
        return None
    if groups.is_vgpu_capable(function):
        before = f", it was {use.type_id}" if use.type_id else ""
        return Reason(
            ReasonCode.MDEV_TYPE_CHANGED,
            f"no vGPU type is set on it (nvidia/current_vgpu_type is 0{before})",
            f"on the host, write a type to /sys/bus/pci/devices/{function.address}/nvidia/current_vgpu_type",
        )
    if groups.is_unfinished(function):
        return Reason(
            ReasonCode.MDEV_TYPE_CHANGED,
            "it is a VF on NVIDIA's driver that has no vGPU: it has no nvidia/current_vgpu_type",
            "the driver creates that file a moment after it has bound the VF; if it does not, check the "
            "driver: only the build for KVM hosts creates vGPUs, "
            f"and {function.address} itself cannot be assigned to a VM",
        )
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        discovery.describe_driver(function),
        advise_vfio(function, unit),
    )


def _boot_framebuffer(function: PciFunction, unit: Unit) -> Reason | None:
    """Unhealthy while the firmware's framebuffer is in a memory region of the function: vfio-pci cannot claim
    the region.

    Then reads and mappings of the region fail (``vfio_pci_core_setup_barmap`` in
    drivers/vfio/pci/vfio_pci_core.c).
    """
    owner = dict(unit.boot_framebuffers).get(function.address)
    if owner is None or not function.vfio:
        return None
    return Reason(
        ReasonCode.USED_BY_HOST,
        f"the framebuffer of the firmware ({owner}) uses its memory region, so a VM cannot use the device",
        "let the firmware use another display, or add initcall_blacklist=sysfb_init to the kernel's "
        "command line, which ends the console on this display; then drain the node and reboot",
    )


def advise_vfio(function: PciFunction, unit: Unit, also: str = "", leave: str = classes.LEAVE) -> str:
    """The fix for a function that is not on VFIO: a bind, but only if it can succeed and removes nothing."""
    used = classes.describe_uses(function)
    if function.address in unit.ruled and not used:
        return "a passthrough rule matches it: nodeagent plan shows why it is not bound"
    if function.address in unit.split and not used:
        return "leave it on its driver, which creates vGPUs (mdevs); remove it from rules for whole GPUs"
    kept = next((each for each in groups.find_blockers(unit.functions) if classes.describe_uses(each)), None)
    if kept is not None and not used:
        return f"{kept.address} of its IOMMU group is {classes.describe_uses(kept)}: {leave}"
    mdevs = unit.mdevs.get(function.address, 0)
    advice = classes.advise_bind(function, also, mdevs, leave)
    if unit.no_vfio is None or used or classes.describe_children(function, mdevs):
        return advice
    return f"{unit.no_vfio.hint}; then {advice}" if unit.no_vfio == NO_VFIO else unit.no_vfio.hint


def _dead(mdev: Mdev) -> Reason | None:
    """Unhealthy for an mdev without a driver: binding it again fails with ENODEV (6.12).

    While a process has the mdev open, the unbind still waits, and a removal would hang behind it.
    """
    if mdev.driver is not None:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        "it has no driver any more, so this instance cannot be used",
        "once no process has it open, remove it on the host "
        f"(echo 1 > /sys/bus/mdev/devices/{mdev.uuid}/remove) and create it again",
    )


def _type_changed(now: str | None, use: Use) -> Reason | None:
    """Unhealthy if the mdev or vGPU has another type than at the time when the rule matched it."""
    before = use.type_id
    if before is None or now == before:
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its vGPU type was {before} and is {now or 'none'} now",
        f"set the type {before} again, or add a rule that offers {now or 'it'}",
    )


def _unnamed(function: PciFunction, use: Use) -> Reason | None:
    """Unhealthy while only the number of the vGPU type is known: the resource name would change later."""
    if not use.unnamed:
        return None
    number = groups.find_vgpu_type(function)
    return Reason(
        ReasonCode.TYPE_NAME_UNKNOWN,
        f"the name of its vGPU type {number} is not known yet, and nodeagent does not use the "
        "number as a resource name",
        "make the vGPU manager's vgpuConfig.xml visible to nodeagent, or name the type in a rule: "
        f'pci: [{{vgpuTypes: ["{number}"]}}]',
    )


def _fallen(function: PciFunction) -> Reason | None:
    """Unhealthy while the PCI function does not respond on the bus."""
    if function.answers is not False and function.recovery is not Recovery.FALLEN:
        return None
    return Reason(
        ReasonCode.GONE,
        "fallen off the bus: its configuration space reads all ones",
        "check the kernel log and the card's slot and power; it is Healthy again when it responds",
    )


def _recovery(function: PciFunction) -> Reason | None:
    """Unhealthy while the kernel's AER recovery of the function is running, or after it has failed."""
    if function.recovery in (None, Recovery.FALLEN):
        return None
    if function.recovery is Recovery.RUNNING:
        return Reason(
            ReasonCode.RECOVERY_FAILED,
            "the kernel is recovering it from a PCIe error",
            "wait: a recovery takes seconds, and counts as failed after two minutes",
        )
    failed = function.recovery is Recovery.FAILED
    return Reason(
        ReasonCode.RECOVERY_FAILED,
        "the kernel could not recover it from a fatal PCIe error"
        if failed
        else "the kernel began to recover it from a PCIe error, and did not report the result",
        # a manual reset raises no event, so it would not end this Reason
        "once it is not in use, unbind it and bind it again, or re-plug the card; the kernel log has the AER "
        "messages",
    )


# Its group and its nodes.


def _no_group(unit: Unit) -> Reason | None:
    """Unhealthy without an IOMMU group: there is no isolation, so VFIO refuses the function."""
    missing = groups.find_missing_isolation(unit.group, unit.no_iommu)
    return None if missing is None else Reason(ReasonCode.NO_GROUP, missing.message, missing.hint)


def _no_mdev_group(unit: Unit) -> Reason | None:
    """Unhealthy for an mdev without an IOMMU group: VFIO cannot open it."""
    if unit.group is not None:
        return None
    return Reason(
        ReasonCode.NO_GROUP,
        "the mdev has no IOMMU group: its driver creates none",
        "check the kernel log for messages of the parent's driver; once it is not in use, remove it and "
        "create it again",
    )


def _firmware(unit: Unit) -> Reason | None:
    """Unhealthy if firmware uses memory through a function of the group: VFIO would remove that mapping."""
    if not unit.firmware:
        return None
    return Reason(
        ReasonCode.FIRMWARE_MAPPED,
        f"firmware has memory mapped 1:1 for IOMMU group {unit.number} (direct in its reserved_regions): "
        "Linux does not assign such a group to a VM",
        "no kernel setting helps; drain the node, and in the firmware's setup disable the option that shares "
        'memory with this slot: on HPE ProLiant "Shared Memory features", on AMD boards "Pre-Boot DMA '
        'Protection"; or update the firmware',
    )


def _withdrawn(unit: Unit) -> Reason | None:
    """Unhealthy while drivers of the group are changed: if a step fails, the whole group is restored."""
    if not unit.withdrawn:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{min(unit.withdrawn, key=pci_order)} is being bound to another driver, or removed",
        "wait until the change is done; nodeagent status shows it",
    )


def _unwanted(device_id: str, unit: Unit) -> Reason | None:
    """Unhealthy for a device to be removed: if another pod got it, the removal could wait for ever."""
    if device_id not in unit.unwanted:
        return None
    use = f"in use by {unit.holders[device_id]}" if device_id in unit.holders else "in use"
    return Reason(
        ReasonCode.GOING_AWAY,
        f"{use}; nodeagent removes it, or restores its driver, when it is released",
        "stop the VM that uses it, or include the device in the configuration again",
    )


def _viability(unit: Unit) -> Reason | None:
    """Unhealthy while a function of the group is on a host driver: the kernel refuses the whole group."""
    blocking = groups.find_blockers(unit.functions)
    if not blocking:
        return None
    used = next((blocker for blocker in blocking if classes.describe_uses(blocker)), None)
    chosen = used or blocking[0]  # a function in use by the host cannot be bound, so the advice is about it
    advice = advise_vfio(
        chosen, unit, " as well, or unbind it", "exclude its whole IOMMU group from the rules"
    )
    named = ", ".join(f"{blocker.address} ({blocker.driver})" for blocker in blocking)
    return Reason(
        ReasonCode.GROUP_NOT_VIABLE,
        f"IOMMU group {unit.number} is not viable: {named} has a host driver",
        f"{used.address} is {advice}" if used else advice,
    )


def _nodes(host_device: VfioDevice, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy while one of the device nodes that a container would get does not exist."""
    legacy = unit.group is not None and unit.group.node and CONTAINER_NODE in unit.nodes
    modern = host_device.cdev and IOMMUFD_NODE in unit.nodes
    enough = {Iommufd.NEVER: legacy, Iommufd.ONLY: modern, Iommufd.AUTO: legacy or modern}
    if enough[use.iommufd]:
        return None
    only = use.iommufd is Iommufd.ONLY
    if only and IOMMUFD_NODE not in unit.nodes:
        return no_iommufd()
    if unit.group is not None and unit.group.stale and not only:
        return Reason(
            ReasonCode.NODE_MISSING,
            f"/dev/vfio/{unit.number} is not the device node of the IOMMU group: it has the "
            "number of another device",
            "remove that node, which the kernel has not created, and bind the device again: then "
            "the kernel creates the right one",
        )
    if only:
        missing = [f"/dev/vfio/devices/{host_device.vfio_device or 'vfio?'}"]
    else:
        group_node = unit.group is not None and unit.group.node
        missing = [] if group_node else [f"/dev/vfio/{unit.number}"]
        missing += [] if CONTAINER_NODE in unit.nodes else [CONTAINER_NODE]
    return Reason(
        ReasonCode.NODE_MISSING,
        f"{' and '.join(missing)} {'does' if len(missing) == 1 else 'do'} not exist",
        f"{HIDDEN_NODE}; if the node stays missing, bind the device again",
    )


def no_iommufd() -> Reason:
    """The Reason for a missing iommufd: a build option of Linux 6.2 and newer, off in Debian up to 7.2."""
    return Reason(
        ReasonCode.NODE_MISSING,
        f"this host has no iommufd ({IOMMUFD_NODE} does not exist), and its resource has iommufd: only",
        "modprobe iommufd if the kernel has it (CONFIG_IOMMUFD, CONFIG_VFIO_DEVICE_CDEV); "
        "else set iommufd: auto or never",
    )


# Its users, and those of its group.


def _held(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy while a pod uses the device under another resource, or another device of its group.

    The pod under admission may be allocated other devices of the group, but not two devices of one resource:
    the kubelet calls Allocate once for each container and resource, and only one process can open a group.
    """
    own_id = use.device_id(host_device)
    own = unit.holders.get(own_id)
    elsewhere = explain_other_resource(own, use)
    if elsewhere is None and own_id in unit.in_slices and use.resource and use.via is Via.DEVICE_PLUGIN:
        elsewhere = Reason(ReasonCode.OTHER_API, "still in a ResourceSlice of this node", LEAVES_SLICE)
    if elsewhere is not None or use.isolation is Isolation.NONE:
        return elsewhere
    for device_id, holder in unit.holders.items():
        if device_id == own_id or (own is not None and holder.is_with(own)):
            continue
        if own is not None:  # allocated before the conflict could be known
            return Reason(
                ReasonCode.GROUP_HELD,
                f"in use by {own}, while {holder} has {device_id} of its IOMMU group: "
                "only one of them can use it",
                "delete one of the two pods; its replacement gets another group, if one is free",
            )
        if holder.allocated_id(device_id) not in unit.admitting or holder.resource == use.resource:
            return Reason(
                ReasonCode.GROUP_HELD, f"IOMMU group in use by {holder}, which has {device_id}", WITH_ITS_POD
            )
    return None


def explain_other_resource(holder: Holder | None, use: Use) -> Reason | None:
    """The Reason for a device allocated under another resource, or through the other API (``Via``)."""
    if holder is None:
        return None
    if not holder.came_with and use.resource in ("", holder.resource):
        if not use.resource or holder.claim is (use.via is Via.DRA):
            return None
        by = "through DRA" if holder.claim else "from the device plugin"
        return Reason(ReasonCode.OTHER_API, f"in use by {holder}, which got it {by}", WITH_ITS_POD)
    of = f" with {holder.came_with}" if holder.came_with and not holder.came_with.isdecimal() else ""
    return Reason(
        ReasonCode.GROUP_HELD, f"in use by {holder}, which got it as {holder.resource}{of}", WITH_ITS_POD
    )


def _held_through_vfs(function: PciFunction, unit: Unit) -> Reason | None:
    """Unhealthy while a VF of the PF is in use: vfio-pci refuses to open the PF while a VF token is in use.

    A PF that a pod uses stays Healthy; its VFs are never allocated (``_token``).
    """
    if function.address in unit.holders:
        return None
    for vf in unit.vfs:
        if vf.physfn != function.address:
            continue
        if (holder := unit.vf_holders.get(vf.address)) is not None:
            return Reason(
                ReasonCode.GROUP_HELD,
                f"its VF {vf.address} is in use by {holder}: a PF and its VFs cannot be in use at once",
                WITH_ITS_POD,
            )
        if groups.is_open(vf) and not unit.complete:
            return _holder_unknown(f"its VF {vf.address}")
        if groups.is_open(vf):
            return Reason(
                ReasonCode.HELD_OUTSIDE,
                f"its VF {vf.address} is open, and no pod of this node has it: "
                "a PF and its VFs cannot be in use at once",
                _FIND_OPENER,
            )
    return None


def _opened_outside(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Unhealthy while a function of the group is open, although no pod of this node has it."""
    watched = (function,) if use.isolation is Isolation.NONE else unit.functions
    opened = [each for each in watched if groups.is_open(each)]
    if not opened or _is_accounted(function, unit, use):
        return None
    for member in opened:
        if _is_accounted(member, unit, use):
            continue
        if unit.complete:
            itself = "it is" if member is function else f"{member.id} of its group is"
            process = member.sight.process if member.sight is not None else None
            by = f": see {process}" if process else ""
            text = f"{itself} open, and no pod of this node has it{by}"
            return Reason(ReasonCode.HELD_OUTSIDE, text, _FIND_OPENER)
        if member is not function:
            return _holder_unknown(f"{member.address} of its IOMMU group")
    return None


def _is_accounted(member: PciFunction, unit: Unit, use: Use) -> bool:
    """True if a pod uses the PCI function, or the bundle to which the function belongs."""
    return member.address in unit.holders or use.device_id(member) in unit.holders


def _holder_unknown(opened: str) -> Reason:
    return Reason(
        ReasonCode.GROUP_HELD,
        f"{opened} is open, and the kubelet has not reported yet which pod uses it",
        "wait until the kubelet's pod-resources socket answers",
    )
