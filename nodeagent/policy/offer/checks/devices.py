# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with a function or an mdev itself. Pure."""

from __future__ import annotations

from nodeagent.model.host import HostDevice, Mdev, PciFunction, Recovery
from nodeagent.model.ids import pci_order
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.policy import classes, groups
from nodeagent.policy.offer import discovery
from nodeagent.policy.offer.checks.inputs import Unit, Use

WAITS_HINT = "stop the virtual machine that has it; the removal then completes"


def unreadable(host_device: HostDevice, _: Unit, __: Use) -> Reason | None:
    """Nothing is known of a device whose attributes cannot be read."""
    if host_device.unreadable is None:
        return None
    return Reason(
        ReasonCode.UNREADABLE,
        host_device.unreadable,
        "a removal may be waiting for the device; it is looked at again when the read returns",
    )


def left_behind(function: PciFunction, _: Unit, __: Use) -> Reason | None:
    """What its PF does not know any more does not answer: its configuration space reads all ones."""
    if not function.left_behind:
        return None
    return Reason(
        ReasonCode.GONE,
        f"its physical function {function.physfn} was removed and left it behind: nothing answers there",
        lost_hint(function),
    )


def lost_hint(function: PciFunction) -> str:
    """What to do for such a VF, and what never to do."""
    return (
        f"reboot the node when it is drained, and write no number of VFs to {function.physfn} before: "
        "that can crash the kernel"
    )


def going_away(function: PciFunction, unit: Unit, _: Use) -> Reason | None:
    """The driver has let go of the function, but somebody still has it open."""
    return _waits_for_holder() if groups.going_away(function, unit.group) else None


def leaving(mdev: Mdev, _: Unit, __: Use) -> Reason | None:
    """Linux takes a removed mdev off its bus at once; its group stays until the holder closes it."""
    return _waits_for_holder() if mdev.leaving else None


def _waits_for_holder() -> Reason:
    return Reason(
        ReasonCode.GOING_AWAY,
        "going away, still in use: an unbind or removal waits for its holder",
        WAITS_HINT,
    )


def domain(function: PciFunction, _: Unit, __: Use) -> Reason | None:
    """virt-launcher reads PCI addresses with a domain of four digits only."""
    if len(function.address) == len("0000:00:00.0"):
        return None
    return Reason(
        ReasonCode.EXCLUDED,
        "its PCI domain has more than four digits, which virt-launcher cannot read",
        "switch Intel VMD off for this device in the firmware",
    )


def token(function: PciFunction, _: Unit, __: Use) -> Reason | None:
    """vfio-pci has made the VF: whoever opens that has to show that its PF belongs to him as well."""
    if not groups.needs_token(function):
        return None
    return Reason(
        ReasonCode.NEEDS_TOKEN,
        f"its PF {function.physfn} is on vfio-pci: so it opens with a VF token, which libvirt does not send",
        token_hint(function),
    )


def token_hint(function: PciFunction) -> str:
    """What to do for such a VF, or for its PF."""
    return (
        f"give the PF {function.physfn} to virtual machines as a whole; or, when nobody uses it or its VFs, "
        "set their number to 0, bind it to the driver of its vendor, and let that make the VFs"
    )


def driver(function: PciFunction, unit: Unit, use: Use) -> Reason | None:
    """Only a VFIO driver, or the vendor driver with a vGPU type set, can give the function to a VM."""
    if groups.ready(function):
        return None
    if groups.takes_vgpu(function):
        return _no_vgpu(function, use)
    if groups.unfinished(function):
        return _no_types(function)
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        discovery.describe_driver(function),
        classes.bind(function, mdevs=unit.mdevs.get(function.address, 0)),
    )


def withdrawn(_: PciFunction, unit: Unit, __: Use) -> Reason | None:
    """What is refused of a change makes all of the group go back: nobody gets a part of it before the end."""
    if not unit.withdrawn:
        return None
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{min(unit.withdrawn, key=pci_order)} is getting another driver, or is being removed",
        "it is decided when that is done: nodeagent status shows what is under way",
    )


def _no_vgpu(function: PciFunction, use: Use) -> Reason:
    before = f", it was {use.type_id}" if use.type_id else ""
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"no vGPU type is set on it (nvidia/current_vgpu_type is 0{before})",
        f"on the host, write a type to /sys/bus/pci/devices/{function.address}/nvidia/current_vgpu_type",
    )


def _no_types(function: PciFunction) -> Reason:
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        "it is a VF on NVIDIA's driver, and no vGPU by itself: it has no nvidia/current_vgpu_type to read",
        "that comes a moment after the driver has taken the VF; if it does not, the driver may be the wrong "
        f"one: only the build for KVM hosts makes vGPUs, and {function.address} as it is goes to no VM",
    )


def dead(mdev: Mdev, _: Unit, __: Use) -> Reason | None:
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


def mdev_type_changed(mdev: Mdev, _: Unit, use: Use) -> Reason | None:
    """The mdev has another type than the one under which it was taken."""
    return _type_changed(mdev.type_id, use.type_id)


def vgpu_type_changed(function: PciFunction, _: Unit, use: Use) -> Reason | None:
    """The VF has another vGPU type than the one under which it was taken."""
    return _type_changed(groups.vgpu_of(function), use.type_id)


def unnamed(function: PciFunction, _: Unit, use: Use) -> Reason | None:
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


def _type_changed(now: str | None, before: str | None) -> Reason | None:
    if before is None or now == before:
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type was {before} and is {now or 'none'} now",
        f"give it the type {before} again, or let a resource offer {now or 'what it has'}",
    )


def fallen(function: PciFunction, _: Unit, __: Use) -> Reason | None:
    """The function does not answer on the bus any more."""
    if function.answers is not False and function.recovery is not Recovery.FALLEN:
        return None
    return Reason(
        ReasonCode.GONE,
        "fallen off the bus: its configuration space reads all ones",
        "look at the kernel log and at the card's slot and power; it is Healthy again when it answers",
    )


def recovery(function: PciFunction, _: Unit, __: Use) -> Reason | None:
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
