# SPDX-License-Identifier: Apache-2.0
"""The devices behind device nodes: whether a container may use a device node, and its NUMA node. Pure.

If the PCI function behind a device node can be assigned to a VM, the device node is not allocated to a
container, even if a rule names it. If a USB rule offers a USB device, no container gets the device by its
device node either. The device node of an IOMMU group is allocated only together with devices of the group,
because nodeagent checks only the users of devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.model.allocation import UNNAMED
from nodeagent.model.host import NODES, Host, PciFunction, UsbDevice
from nodeagent.model.nodes import DevNode, of_groups
from nodeagent.model.resource import Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import UsbRule
from nodeagent.policy import groups, selectors
from nodeagent.policy.offer.health import WITH_ITS_POD
from nodeagent.policy.offer.units import find_announced_numa


def find_reason(nodes: Iterable[DevNode], snapshot: Snapshot) -> Reason | None:
    """Why a container cannot use one of the device nodes; None if it can use all of them."""
    for node in nodes:
        if of_groups(node.real):
            return _describe_group_node(node)
        for function in find_functions((node,), snapshot.host):
            if groups.is_assignable(function):
                return _describe_vfio_node(node, function)
        if (device := _find_offered_usb(node, snapshot)) is not None:
            return _describe_usb_node(node, *device)
        if (in_use := _find_allocated_usb(node, snapshot)) is not None:
            return in_use
        if node.vacant:
            return Reason(
                ReasonCode.NODE_MISSING,
                f"{node.path} exists, but no device has its number",
                "check the driver of the card: if it is vfio-pci, the card is for VMs, and the "
                "device node is a leftover",
            )
    return None


def _describe_group_node(node: DevNode) -> Reason:
    leads = f" links to {node.real}, a node or directory" if node.target else " is a device node or directory"
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{node.path}{leads} of IOMMU groups, which two containers cannot share",
        "offer the devices of the group by a rule with pci or mdev",
    )


def _find_offered_usb(node: DevNode, snapshot: Snapshot) -> tuple[UsbDevice, UsbRule] | None:
    """The USB device behind the device node (directly or through its driver), and the rule that offers it."""
    for device in find_usb_devices(node, snapshot.host):
        rules = (rule for rule in snapshot.spec.rules if isinstance(rule, UsbRule))
        rule = next((rule for rule in rules if selectors.is_matched_by_rule(rule, device)), None)
        if rule is not None:
            return device, rule
    return None


def find_usb_devices(node: DevNode, host: Host) -> Iterator[UsbDevice]:
    """The USB devices to which the device node belongs, directly or through a driver."""
    names = host.usb_names
    yield from (names[each] for each in (node.parent or "").split("/") if each in names)
    if node.covers(NODES) or node.real.startswith(f"{NODES}/"):
        yield from (device for device in names.values() if node.covers(device.node))


def _find_allocated_usb(node: DevNode, snapshot: Snapshot) -> Reason | None:
    """Why the device node is unavailable while a pod has its USB device, even if no rule offers that."""
    on_the_way = (node.parent or "").split("/")
    for head, loans in snapshot.loans.items():
        for loan in loans:
            if node.covers(loan.node) or (loan.name and loan.name in on_the_way):
                holder = snapshot.holder(head) or UNNAMED
                text = f"{node.path} belongs to the USB device {loan.id}, in use by {holder}"
                return Reason(ReasonCode.GROUP_HELD, text, WITH_ITS_POD)
    return None


def _describe_usb_node(node: DevNode, device: UsbDevice, rule: UsbRule) -> Reason:
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{node.path} belongs to the USB device {device.id}, which {rule.name} offers",
        "remove the node from this rule, or exclude the device from the usb selectors of the other rule",
    )


def _describe_vfio_node(node: DevNode, function: PciFunction) -> Reason:
    vgpu = groups.find_vgpu_type(function)
    how = f"bound to {function.driver}" if vgpu is None else f"a vGPU of type {vgpu}"
    return Reason(
        ReasonCode.DRIVER_CHANGED,
        f"{function.address}, the device behind {node.path}, is {how}: it is for VMs",
        "remove the node from the rule, or bind the device to a host driver once it is not in use",
    )


def find_numa(nodes: Iterable[DevNode], host: Host) -> int | None:
    """The NUMA node of the PCI functions behind the device nodes, if all have the same one."""
    found = {function.numa_node for function in find_functions(nodes, host) if function.numa_node is not None}
    return find_announced_numa(found.pop(), host.numa_nodes) if len(found) == 1 else None


def find_functions(nodes: Iterable[DevNode], host: Host) -> Iterator[PciFunction]:
    """The PCI functions behind the device nodes."""
    return (found for node in nodes for each in node.functions if (found := host.functions.get(each)))
