# SPDX-License-Identifier: Apache-2.0
"""Why a function must not be unbound from its driver: refusals, and uses for which a change waits. Pure.

Each refusal names its evidence and the fix; ``docs/host-preparation.md`` has a table of the refusals. A
function whose state is unknown is not unbound either. The host's use of a function is read again right before
the write (``kernel.apply.bind``), and open files are read again by ``agent.changing.step``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.model.allocation import UNNAMED, Allocations, Knowledge
from nodeagent.model.change import Move
from nodeagent.model.host import Group, Host, PciFunction, UseKind
from nodeagent.model.ids import VFIO_PCI, GroupNumber, PciAddress
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import classes, groups, naming
from nodeagent.policy.groups import OpenState

_NVSWITCH = ("10de", "0680")  # other vendors use that class for parts of chipsets
UNKNOWN = "the devices in use are not known"


def is_bridge(function: PciFunction) -> bool:
    """True for bridges (class 06), which are never bound; NVIDIA's NVSwitches do not count as bridges."""
    code = function.pci_class or ""
    return code.startswith("06") and (function.vendor, code[:4]) != _NVSWITCH


def find_group_refusals(group: Group | None, drivers: Iterable[str], host: Host) -> Iterator[Problem]:
    """The reasons why a whole IOMMU group cannot be bound to these drivers."""
    missing = groups.find_missing_isolation(group, host.no_iommu) or host.no_iommu
    if missing is not None:
        yield _not_bound(*missing)
    elif group is not None and groups.is_kept_by_firmware(group, host):
        text = f"firmware keeps memory of group {group.number} mapped (reserved_regions: direct)"
        yield _not_bound(
            text, "VFIO refuses this IOMMU group: remove it from the rule, or update the firmware"
        )
    if VFIO_PCI in drivers and host.no_vfio is not None:
        yield _not_bound(*host.no_vfio)


def find_bridge_refusals(members: Iterable[PciFunction]) -> Iterator[Problem]:
    """The refusals for bridges whose driver VFIO does not allow in the group; nodeagent never binds bridges
    to VFIO.
    """
    for blocker in groups.find_blockers(each for each in members if is_bridge(each)):
        text = f"{blocker.address} of the same group is a bridge that is bound to the driver {blocker.driver}"
        yield _not_bound(text, "remove the IOMMU group from the rule: bridges are never bound")


def find_function_refusals(function: PciFunction, snapshot: Snapshot, forced: bool) -> Iterator[Problem]:
    """The refusals for one function; ``forced``: the operator accepts that the host loses a network interface
    or display.
    """
    if is_bridge(function):
        yield _not_bound("it is a bridge", "remove the bridge from the rule: bridges are never bound")
    if function.denylisted:  # there is no variant driver for these ids
        yield _not_bound(
            classes.describe_denylist(function),
            "remove the PCI function from the rule: a VM could harm the host",
        )
    if function.left_behind:
        yield _not_bound("its PF was removed, but the VF remained", "drain and reboot the node")
    mdevs = [mdev.uuid for mdev in snapshot.host.mdevs.values() if mdev.parent == function.address]
    if parts := classes.describe_children(function, len(mdevs)):
        users = _list_users((*function.vfs, *mdevs), snapshot)
        yield _not_bound(f"it has {parts}", f"remove its {parts} first, once they are not in use: {users}")
    if (vgpu_type := groups.find_vgpu_type(function)) is not None:
        yield _not_bound(
            f"it has the vGPU type {vgpu_type}", "clear the vGPU type first, when the vGPU is not in use"
        )
    yield from _find_use_refusals(function, forced)


def _list_users(ids: Iterable[str], snapshot: Snapshot) -> str:
    """A short list of the VFs and mdevs with the pods that use them, as a text; VFs and mdevs in use come
    first.
    """
    found = {each: snapshot.host.device(each) for each in ids}
    holders = {
        each: groups.find_holder(snapshot.allocations, each, None if device is None else device.group)
        for each, device in found.items()
    }
    used = [f"{each} is in use by {holder}" for each, holder in holders.items() if holder is not None]
    return naming.shorten([*used, *(each for each, holder in holders.items() if holder is None)])


def _find_use_refusals(function: PciFunction, forced: bool) -> Iterator[Problem]:
    if function.uses is not None:
        for refusal in classes.find_refusals(function.uses, function.address, forced):
            yield _not_bound(*refusal)


def find_ending_uses(problems: Iterable[Problem], host: Host) -> frozenset[PciAddress]:
    """The functions that are not bound to VFIO because of a use by the host that may end, so any use except a
    display.
    """
    refused = (
        host.functions.get(PciAddress(each.subject))
        for each in problems
        if each.code == ProblemCode.NOT_BOUND
    )
    return frozenset(
        function.address
        for function in refused
        if function is not None
        and function.uses is not None
        and any(use.kind is not UseKind.DISPLAY for use in function.uses.found)
    )


def _not_bound(text: str, hint: str) -> Problem:
    return wrong(ProblemCode.NOT_BOUND, "", text, hint)


def find_obstacle(members: Sequence[PciFunction], moves: Iterable[Move], snapshot: Snapshot) -> str | None:
    """The use of an IOMMU group that has to end before drivers of the group are changed, as a text; None if
    there is none.
    """
    texts = [
        _describe_removal(member, snapshot) or describe_user(member.address, snapshot) for member in members
    ]
    texts += [_describe_unplugged(members[0].group, snapshot)]
    for move in moves:
        address = PciAddress(move.address)
        texts.append(describe_indirect_user(address, snapshot) if move.now != move.to else None)
        texts.append(_describe_unread_uses(snapshot.host.functions[address]))
    allocations = snapshot.allocations
    if _is_doubtful(allocations) or (any(map(groups.is_assignable, members)) and not allocations.complete):
        texts.append(UNKNOWN)
    return next((text for text in texts if text is not None), None)


def _is_doubtful(allocations: Allocations) -> bool:
    """True if there is a kubelet, and its PodResources or its checkpoint cannot be read."""
    return allocations.knowledge in (Knowledge.NO_ANSWER, Knowledge.PARTIAL)


def _describe_unplugged(number: GroupNumber | None, snapshot: Snapshot) -> str | None:
    """The unplugged device of the IOMMU group that a pod uses, as a text; the pod may still have the group
    open.
    """
    if number is None:
        return None
    host, allocations = snapshot.host, snapshot.allocations
    for device_id, numbers in allocations.groups.items():
        holder = allocations.holders.get(device_id)
        away = number in numbers and host.device(device_id) is None
        if away and holder is not None and groups.may_be_former_group(device_id, number, host):
            return f"{device_id} of the same group, no longer on the host, is in use by {holder}"
    return None


def _describe_removal(function: PciFunction, snapshot: Snapshot) -> str | None:
    """The text for a function that is being unbound or cannot be read; None for any other function.

    A function that nodeagent has bound to VFIO is not in use while its open count is not above the lowest
    count under VFIO: the former host driver may have left this count.
    """
    if function.unreadable is not None:
        return f"{function.address} is {function.unreadable}"
    if snapshot.ledger.drivers.get(function.address) and not groups.is_open_without_driver(function):
        return None
    group = None if function.group is None else snapshot.host.groups.get(function.group)
    going = groups.is_going_away(function, group)
    return f"{function.address} is being removed but still in use" if going else None


def _describe_unread_uses(function: PciFunction) -> str | None:
    if function.usable and function.driver is not None and function.uses is None:
        return f"the use of {function.address} by the host has not been read yet"
    return None


def describe_user(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The user of a function, as a text: a pod, or a process that has it open; None if not in use."""
    function = snapshot.host.functions.get(address)
    held = _describe_holder(address, function, snapshot)
    if held is not None:
        return held
    if address in snapshot.reservations.pending:
        return f"{address} was allocated to a pod a moment ago"
    state = (
        OpenState.OPEN if function is None or address in snapshot.open else groups.find_open_state(function)
    )
    if state is OpenState.UNKNOWN:
        return f"open files of {address} on this host cannot be read"
    return f"a process on this host has {address} open" if state is OpenState.OPEN else None


def _describe_holder(address: PciAddress, function: PciFunction | None, snapshot: Snapshot) -> str | None:
    holder = groups.find_holder(snapshot.allocations, address, None if function is None else function.group)
    return None if holder is None else f"{address} is in use by {holder}"


def describe_indirect_user(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The pod that uses a function on a host driver through a device node or USB device, as a text; None if
    none.

    The pod uses, for example, a USB device at the controller, or a device node of the host driver, and loses
    it when the function gets another driver.
    """
    if address in snapshot.recently_allocated:
        return f"a device node or USB device of {address} was allocated to a pod a moment ago"
    if not snapshot.allocated_nodes_scanned:
        return "it is not known yet to which PCI functions the device nodes in pods belong"
    if (used := snapshot.functions_in_use.get(address)) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which belongs to {address}"
    return _describe_unknown_user(snapshot)


def _describe_unknown_user(snapshot: Snapshot) -> str | None:
    """A device node or device that a pod uses and whose PCI function is unknown, as a text; None if all PCI
    functions are known.

    A missing device node may belong to any driver, so all changes of host drivers wait until the pod that
    uses it ends.
    """
    if snapshot.unidentified_device is not None:
        name, each = snapshot.unidentified_device
        holder = snapshot.allocations.holder_of(name, each) or UNNAMED
        return f"the device nodes that {holder} got with {each} of {name} are not known yet"
    if (used := snapshot.unknown_cdi_device) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which is in no CDI file"
    if (used := snapshot.unknown_node) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which no longer exists, so its driver is not known"
    return None
