# SPDX-License-Identifier: Apache-2.0
"""Health: whether a device can be allocated to a VM, and the Reason if it cannot. Pure.

One function for each kind of device calls its checks in order: first those of the device itself, then those
of its group and nodes, then whether it is in use. The first check that fails gives the Reason. Every turn
checks again, so a Reason that can end by itself ends by itself. ``units`` calls it for each offer,
``not_offered`` and ``explain`` for other devices. The checks of USB devices are in ``usb_health``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, HostDevice, Loans, Mdev, Missing, PciFunction, Recovery, VfioDevice
from nodeagent.model.ids import pci_order
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode
from nodeagent.policy import classes, groups
from nodeagent.policy.offer import discovery

WAITS_HINT = "stop the virtual machine that has it; the removal then completes"
WITH_ITS_POD = "it becomes available when that pod ends"
_FIND_OPENER = "on the host, fuser -v /dev/vfio/* names the process"


class Unit(NamedTuple):
    """What is decided at once: an IOMMU group with its devices, or one device that has none (group None).

    All USB devices are one such unit, too: ``loans`` say what of them was given, and ``in_containers`` of
    which a pod has a node.

    ``nodes``, ``no_iommu`` and ``no_vfio`` are the host's; all else is of this unit alone. ``firmware``: the
    group has memory that firmware wants mapped 1:1, and this kernel gives no such group away. ``vfs``: those
    of the functions that are PFs on a VFIO driver, and who has them. ``mdevs``: how many a function on a
    driver of the host carries. A named tuple, for at the start there is one for every group.
    """

    group: Group | None
    devices: tuple[HostDevice, ...] = ()
    functions: tuple[PciFunction, ...] = ()  # those of the devices that are PCI functions
    holders: Mapping[str, Holder] = MappingProxyType({})
    complete: bool = False  # False: the absence of a holder proves nothing
    admitting: frozenset[str] = frozenset()  # allocated to the pod under admission
    withdrawn: frozenset[str] = frozenset()  # getting another driver, or being removed
    unwanted: frozenset[str] = frozenset()  # the same, once they are not in use
    vfs: tuple[PciFunction, ...] = ()
    vf_holders: Mapping[str, Holder] = MappingProxyType({})
    mdevs: Mapping[str, int] = MappingProxyType({})
    nodes: frozenset[str] = frozenset()
    no_iommu: Missing | None = None
    no_vfio: Missing | None = None
    split: frozenset[str] = frozenset()  # functions whose vGPUs are wanted
    firmware: bool = False
    loans: Loans = MappingProxyType({})
    in_containers: Mapping[str, Holder] = MappingProxyType({})

    @property
    def number(self) -> str:
        """The number of the group, for people."""
        return "?" if self.group is None else str(self.group.number)


class Use(NamedTuple):
    """How a device is offered: this decides which nodes and which conflicts matter.

    ``host_devices`` are those that the Device stands for, if not the asked one alone; the first gives its id.
    ``type_id`` is the type of mdev or vGPU under which it was taken; ``unnamed``: it has no name yet.
    """

    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    resource: str = ""  # under which it is offered; "": any, whoever holds it
    host_devices: tuple[str, ...] = ()
    type_id: str | None = None
    unnamed: bool = False
    force: tuple[str, ...] = ()  # of a USB rule: what the host may lose

    def device_id(self, host_device: HostDevice) -> str:
        """The id of the Device that stands for the host device."""
        return self.host_devices[0] if host_device.id in self.host_devices else host_device.id


ANY_USE = Use()


def reason(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """Why the device cannot be put to this use; None if it is Healthy."""
    if isinstance(host_device, PciFunction):
        return _of_function(host_device, unit, use)
    if isinstance(host_device, Mdev):
        return _of_mdev(host_device, unit, use)
    from nodeagent.policy.offer import usb_health  # here: most nodes have no rule for USB devices

    return usb_health.reason(host_device, unit, use)


def _of_function(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """The checks of a PCI function, a vGPU among them."""
    return (
        unreadable(function)
        or _going_away(groups.going_away(function, unit.group))
        or _left_behind(function)
        or _no_group(unit)
        or _firmware(unit)
        or _domain(function)
        or _token(function)
        or _driver(function, unit, use)
        or _withdrawn(unit)
        or _unwanted(function.address, unit)
        or _type_changed(groups.vgpu_of(function), use)
        or _unnamed(function, use)
        or _fallen(function)
        or _recovery(function)
        or _viability(unit)
        or _nodes(function, unit, use)
        or _held(function, unit, use)
        or _held_through_vfs(function, unit)
        or _opened_outside(function, unit, use)
    )


def _of_mdev(mdev: Mdev, unit: Unit, use: Use) -> Reason | None:
    """The checks of an mdev: it is alone in its group, and nothing tells from outside that it is open.

    Linux takes a removed mdev off its bus at once; its group stays until the holder closes it.
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
    """Nothing is known of a device whose attributes cannot be read."""
    if host_device.unreadable is None:
        return None
    return Reason(
        ReasonCode.UNREADABLE,
        host_device.unreadable,
        "a removal may be waiting for the device; it is looked at again when the read returns",
    )


def _going_away(waits: bool) -> Reason | None:
    """The driver has let go of the device, but somebody still has it open."""
    if not waits:
        return None
    return Reason(
        ReasonCode.GOING_AWAY,
        "going away, still in use: an unbind or removal waits for its holder",
        WAITS_HINT,
    )


def _left_behind(function: PciFunction) -> Reason | None:
    """A VF that its PF does not know any more does not answer: its configuration space reads all ones."""
    if not function.left_behind:
        return None
    return Reason(
        ReasonCode.GONE,
        f"its physical function {function.physfn} was removed and left it behind: nothing answers there",
        f"reboot the node when it is drained, and write no number of VFs to {function.physfn} before: "
        "that can crash the kernel",
    )


def _domain(function: PciFunction) -> Reason | None:
    """virt-launcher reads PCI addresses with a domain of four digits only."""
    if len(function.address) == len("0000:00:00.0"):
        return None
    return Reason(
        ReasonCode.EXCLUDED,
        "its PCI domain has more than four digits, which virt-launcher cannot read",
        "switch Intel VMD off for this device in the firmware",
    )


def _token(function: PciFunction) -> Reason | None:
    """vfio-pci has made the VF: whoever opens that has to show that its PF belongs to him as well."""
    if not groups.needs_token(function):
        return None
    return Reason(
        ReasonCode.NEEDS_TOKEN,
        f"its PF {function.physfn} is on vfio-pci: so it opens with a VF token, which libvirt does not send",
        f"give the PF {function.physfn} to virtual machines as a whole; or, when nobody uses it or its VFs, "
        "set their number to 0, bind it to the driver of its vendor, and let that make the VFs",
    )


def _driver(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Only a VFIO driver, or the vendor driver with a vGPU type set, can give the function to a VM."""
    if groups.ready(function):
        return None
    if groups.takes_vgpu(function):
        before = f", it was {use.type_id}" if use.type_id else ""
        return Reason(
            ReasonCode.MDEV_TYPE_CHANGED,
            f"no vGPU type is set on it (nvidia/current_vgpu_type is 0{before})",
            f"on the host, write a type to /sys/bus/pci/devices/{function.address}/nvidia/current_vgpu_type",
        )
    if groups.unfinished(function):
        return Reason(
            ReasonCode.MDEV_TYPE_CHANGED,
            "it is a VF on NVIDIA's driver, and no vGPU by itself: "
            "it has no nvidia/current_vgpu_type to read",
            "that comes a moment after the driver has taken the VF; if it does not, the driver may be "
            "the wrong one: only the build for KVM hosts makes vGPUs, "
            f"and {function.address} as it is goes to no VM",
        )
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        discovery.describe_driver(function),
        advise_bind(function, unit),
    )


def advise_bind(function: PciFunction, unit: Unit, also: str = "", leave: str = classes.LEAVE) -> str:
    """What to do for VFIO to get the function; to bind it only where that can succeed and takes nothing."""
    if function.address in unit.split and not classes.in_use(function):
        return "leave it to its driver, which makes the wanted vGPUs of it (mdevs); or take their types out"
    mdevs = unit.mdevs.get(function.address, 0)
    advice = classes.bind(function, also, mdevs, leave)
    if unit.no_vfio is None or classes.in_use(function) or classes.carried(function, mdevs):
        return advice
    return unit.no_vfio.to_do


def _dead(mdev: Mdev) -> Reason | None:
    """An instance whose driver has let go is not taken back: binding it again fails with ENODEV (6.12).

    While somebody has it open the driver still waits, and a removal would hang behind it.
    """
    if mdev.driver is not None:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        "it has no driver any more: nobody can use this instance",
        "once nobody has it open any more, remove it on the host "
        f"(echo 1 > /sys/bus/mdev/devices/{mdev.uuid}/remove) and create it anew",
    )


def _type_changed(now: str | None, use: Use) -> Reason | None:
    """The mdev or vGPU has another type than the one under which it was taken."""
    before = use.type_id
    if before is None or now == before:
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type was {before} and is {now or 'none'} now",
        f"give it the type {before} again, or let a resource offer {now or 'what it has'}",
    )


def _unnamed(function: PciFunction, use: Use) -> Reason | None:
    """Discovery knows the type of a vGPU by its number only: pods would ask by a name that changes."""
    if not use.unnamed:
        return None
    number = groups.vgpu_of(function)
    return Reason(
        ReasonCode.TYPE_NAME_UNKNOWN,
        f"the name of its vGPU type {number} is not known yet, and it is not given under a number",
        "let the vGPU manager's vgpuConfig.xml be seen here, or name the type in a rule: "
        f'pci: [{{vgpuTypes: ["{number}"]}}]',
    )


def _fallen(function: PciFunction) -> Reason | None:
    """The function does not answer on the bus any more."""
    if function.answers is not False and function.recovery is not Recovery.FALLEN:
        return None
    return Reason(
        ReasonCode.GONE,
        "fallen off the bus: its configuration space reads all ones",
        "look at the kernel log and at the card's slot and power; it is Healthy again when it answers",
    )


def _recovery(function: PciFunction) -> Reason | None:
    """The kernel's AER recovery is at work on the function, or has failed."""
    if function.recovery in (None, Recovery.FALLEN):
        return None
    if function.recovery is Recovery.RUNNING:
        return Reason(
            ReasonCode.RECOVERY_FAILED,
            "the kernel is recovering it from a PCIe error",
            "wait: that takes seconds, or is taken for failed after two minutes",
        )
    failed = function.recovery is Recovery.FAILED
    return Reason(
        ReasonCode.RECOVERY_FAILED,
        "the kernel could not recover it from a fatal PCIe error"
        if failed
        else "the kernel began to recover it from a PCIe error, and its end was not heard",
        # a reset by hand raises no event, so it would leave the device as it is here
        "once nobody uses it, unbind it and bind it again, or re-plug the card; the kernel log has the AER "
        "messages",
    )


# Its group and its nodes.


def _no_group(unit: Unit) -> Reason | None:
    """Without an IOMMU group there is no isolation, so VFIO gives the function to nobody."""
    missing = groups.not_isolated(unit.group, unit.no_iommu)
    return None if missing is None else Reason(ReasonCode.NO_GROUP, missing.seen, missing.to_do)


def _no_mdev_group(unit: Unit) -> Reason | None:
    """Without an IOMMU group VFIO cannot open the mdev."""
    if unit.group is not None:
        return None
    return Reason(
        ReasonCode.NO_GROUP,
        "no IOMMU group: its driver gives it none",
        "look for messages of the parent's driver in the kernel log; once nobody uses it, remove it and "
        "create it anew",
    )


def _firmware(unit: Unit) -> Reason | None:
    """Firmware uses memory through a member of the group, whoever has that; VFIO would take it away."""
    if not unit.firmware:
        return None
    return Reason(
        ReasonCode.FIRMWARE_MAPPED,
        f"firmware has memory mapped 1:1 for IOMMU group {unit.number} (its reserved_regions say direct): "
        "Linux gives no such group to a virtual machine",
        "nothing in the kernel helps; when the node is drained, look in the firmware's setup for what shares "
        'memory with this slot: on HPE ProLiant "Shared Memory features", on AMD boards "Pre-Boot DMA '
        'Protection"; or for a newer firmware',
    )


def _withdrawn(unit: Unit) -> Reason | None:
    """What is refused of a change makes all of the group go back: nobody gets a part of it before the end."""
    if not unit.withdrawn:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{min(unit.withdrawn, key=pci_order)} is getting another driver, or is being removed",
        "it is decided when that is done: nodeagent status shows what is under way",
    )


def _unwanted(device_id: str, unit: Unit) -> Reason | None:
    """A device that is to be removed is allocated to no further pod: else the change could wait for ever."""
    if device_id not in unit.unwanted:
        return None
    use = f"in use by {unit.holders[device_id]}" if device_id in unit.holders else "in use"
    return Reason(
        ReasonCode.GOING_AWAY,
        f"{use}; nodeagent removes it, or restores its driver, when it is released",
        WAITS_HINT,
    )


def _viability(unit: Unit) -> Reason | None:
    """The kernel refuses the whole group while a host driver has one of its functions."""
    blocking = groups.blockers(unit.functions)
    if not blocking:
        return None
    used = next((blocker for blocker in blocking if classes.in_use(blocker)), None)
    chosen = used or blocking[0]  # the host cannot lose what it uses: the advice is about that
    advice = advise_bind(
        chosen, unit, " as well, or unbind it", "leave all of its IOMMU group out of the rules"
    )
    named = ", ".join(f"{blocker.address} ({blocker.driver})" for blocker in blocking)
    return Reason(
        ReasonCode.GROUP_NOT_VIABLE,
        f"IOMMU group {unit.number} is not viable: {named} has a host driver",
        f"{used.address} is {advice}" if used else advice,
    )


def _nodes(host_device: VfioDevice, unit: Unit, use: Use) -> Reason | None:
    """The device nodes that a container would get have to exist."""
    legacy = unit.group is not None and unit.group.node and CONTAINER_NODE in unit.nodes
    modern = host_device.cdev and IOMMUFD_NODE in unit.nodes
    enough = {Iommufd.NEVER: legacy, Iommufd.ONLY: modern, Iommufd.AUTO: legacy or modern}
    if enough[use.iommufd]:
        return None
    only = use.iommufd is Iommufd.ONLY
    if only and IOMMUFD_NODE not in unit.nodes:
        return _no_iommufd()
    if unit.group is not None and unit.group.stale and not only:
        return Reason(
            ReasonCode.NODE_MISSING,
            f"/dev/vfio/{unit.number} is not the group's: it has the number of another device",
            "remove that node, which the kernel has not made, and bind the device again: it makes its own",
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
        "look for udev or container mounts that hide /dev/vfio; bind the device again if the node stays away",
    )


def _no_iommufd() -> Reason:
    """The kernel has it from 6.2 on, if it was built so; Debian's up to 7.2 were not."""
    return Reason(
        ReasonCode.NODE_MISSING,
        f"this host has no iommufd ({IOMMUFD_NODE} does not exist), and its resource says iommufd: only",
        "load the module iommufd if the kernel has it (CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV), "
        "or say iommufd: auto or never for the resource",
    )


# Who has it, or another device of its group.


def _held(host_device: HostDevice, unit: Unit, use: Use) -> Reason | None:
    """A pod has the device under another resource, or another device of the group.

    The pod that is being admitted may take more of the group, but of no resource twice: the kubelet asks once
    for each container and resource, and VFIO lets one process open a group.
    """
    own_id = use.device_id(host_device)
    own = unit.holders.get(own_id)
    elsewhere = held_as_another(own, use)
    if elsewhere is not None or use.isolation is Isolation.NONE:
        return elsewhere
    for device_id, holder in unit.holders.items():
        if device_id == own_id or (own is not None and holder.is_with(own)):
            continue
        if own is not None:  # given before it could be known: only one of them can use the group
            return Reason(
                ReasonCode.GROUP_HELD,
                f"held by {own}, while {holder} has {device_id} of its IOMMU group: "
                "only one of them can use it",
                "it ends when one of the two ends; "
                "what comes in its place is given another group, if one is free",
            )
        if holder.allocated_id(device_id) not in unit.admitting or holder.resource == use.resource:
            return Reason(
                ReasonCode.GROUP_HELD, f"IOMMU group held by {holder}, which has {device_id}", WITH_ITS_POD
            )
    return None


def held_as_another(holder: Holder | None, use: Use) -> Reason | None:
    """The kubelet counts ids by resource: under this one it would give the device away a second time."""
    if holder is None or not (holder.came_with or use.resource not in ("", holder.resource)):
        return None
    of = f" with {holder.came_with}" if holder.came_with and not holder.came_with.isdecimal() else ""
    return Reason(
        ReasonCode.GROUP_HELD, f"held by {holder}, which got it as {holder.resource}{of}", WITH_ITS_POD
    )


def _held_through_vfs(function: PciFunction, unit: Unit) -> Reason | None:
    """Either a PF is open, or VFs of it are: vfio-pci refuses the PF while a VF token is in use.

    A PF that a pod has already stays as it is; its VFs are never given (``_token``).
    """
    if function.address in unit.holders:
        return None
    for vf in unit.vfs:
        if vf.physfn != function.address:
            continue
        if (holder := unit.vf_holders.get(vf.address)) is not None:
            return Reason(
                ReasonCode.GROUP_HELD,
                f"its VF {vf.address} is held by {holder}: either it is given, or its VFs are",
                WITH_ITS_POD,
            )
        if groups.is_open(vf) and not unit.complete:
            return _holder_unknown(f"its VF {vf.address}")
        if groups.is_open(vf):
            return Reason(
                ReasonCode.HELD_OUTSIDE,
                f"its VF {vf.address} is open, and no pod of this node has it: "
                "either it is given, or its VFs are",
                _FIND_OPENER,
            )
    return None


def _opened_outside(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Something is open in the group, and no pod of this node has it."""
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
    """True if a pod has the function; with one of a bundle it has all of it."""
    return member.address in unit.holders or use.device_id(member) in unit.holders


def _holder_unknown(opened: str) -> Reason:
    return Reason(
        ReasonCode.GROUP_HELD,
        f"{opened} is open, and the kubelet does not say yet who has it",
        "it is decided as soon as the kubelet's pod-resources socket answers",
    )
