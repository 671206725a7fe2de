# SPDX-License-Identifier: Apache-2.0
"""Why a function may not be taken from its driver: what needs a person, and what only time. Pure.

Each refusal names its evidence and the way out; ``docs/host-preparation.md`` has a table of them. What could
not be seen refuses as well. What the host uses is looked at once more right before the write
(``kernel.apply.bind``), and what is open by ``agent.changing.step``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nodeagent.model.allocation import UNNAMED, Allocations, Knowledge
from nodeagent.model.change import Move
from nodeagent.model.host import Group, Host, PciFunction
from nodeagent.model.ids import VFIO_PCI, GroupNumber, PciAddress
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import classes, groups
from nodeagent.policy.groups import OpenState

_NVSWITCH = ("10de", "0680")  # with other vendors that class is whatever a chipset has
UNKNOWN = "who holds what is not known"


def bridge(function: PciFunction) -> bool:
    """True for bridges of all kinds (class 06), which are never bound; NVIDIA's NVSwitches are none."""
    code = function.pci_class or ""
    return code.startswith("06") and (function.vendor, code[:4]) != _NVSWITCH


def of_group(group: Group | None, drivers: Iterable[str], host: Host) -> Iterator[Problem]:
    """What keeps a whole group from being bound to these drivers."""
    if (missing := groups.not_isolated(group, host.no_iommu)) is not None:
        yield _not_bound(*missing)
    elif group is not None and groups.kept_by_firmware(group, host):
        what = f"firmware keeps memory of group {group.number} mapped (reserved_regions: direct)"
        yield _not_bound(what, "VFIO refuses such a group: leave it out, or ask for other firmware")
    if VFIO_PCI in drivers and host.no_vfio is not None:
        yield _not_bound(*host.no_vfio)


def of_bridges(members: Iterable[PciFunction]) -> Iterator[Problem]:
    """A bridge whose driver VFIO does not suffer keeps the whole group from being used, and stays."""
    for blocker in groups.blockers(each for each in members if bridge(each)):
        what = f"{blocker.address} of the same group is a bridge, and its driver {blocker.driver} needs it"
        yield _not_bound(what, "leave the group out: bridges are never bound")


def of_function(function: PciFunction, host: Host, forced: bool) -> Iterator[Problem]:
    """What keeps a function with its driver; ``forced``: an operator answers for what can be answered for."""
    if bridge(function):
        yield _not_bound("it is a bridge", "leave it out: bridges are never bound")
    if function.left_behind:
        yield _not_bound("its PF has left it behind", "reboot the node when it is drained")
    mdevs = sum(mdev.parent == function.address for mdev in host.mdevs.values())
    if parts := classes.carried(function, mdevs):
        yield _not_bound(f"it has {parts}", f"remove its {parts} first, once nobody uses them")
    if (vgpu_type := groups.vgpu_of(function)) is not None:
        yield _not_bound(f"it has the vGPU type {vgpu_type}", "clear the type first, once nobody uses it")
    yield from _of_uses(function, forced)


def _of_uses(function: PciFunction, forced: bool) -> Iterator[Problem]:
    if function.uses is not None:
        for refusal in classes.refusals(function.uses, function.address, forced):
            yield _not_bound(*refusal)


def _not_bound(what: str, hint: str) -> Problem:
    return wrong(ProblemCode.NOT_BOUND, "", what, hint)


def obstacle(members: Sequence[PciFunction], moves: Iterable[Move], snapshot: Snapshot) -> str | None:
    """What the moves of a group have to wait for, in words: whoever has a part of it; None if nothing."""
    texts = [_leaving(member, snapshot) or taken(member.address, snapshot) for member in members]
    texts += [_left(members[0].group, snapshot)]
    for move in moves:
        address = PciAddress(move.address)
        texts.append(taken_behind(address, snapshot) if move.now != move.to else None)
        texts.append(_unlooked(snapshot.host.functions[address]))
    allocations = snapshot.allocations
    if _is_doubtful(allocations) or (any(map(groups.ready, members)) and not allocations.complete):
        texts.append(UNKNOWN)
    return next((text for text in texts if text is not None), None)


def _is_doubtful(allocations: Allocations) -> bool:
    """True if there is a kubelet, and PodResources or the checkpoint does not tell."""
    return allocations.knowledge in (Knowledge.NO_ANSWER, Knowledge.PARTIAL)


def _left(number: GroupNumber | None, snapshot: Snapshot) -> str | None:
    """Who has what has left the group: that pod may have the group still open, as its answer had the node."""
    if number is None:
        return None
    host, allocations = snapshot.host, snapshot.allocations
    for device_id, numbers in allocations.groups.items():
        holder = allocations.holders.get(device_id)
        away = number in numbers and host.device(device_id) is None
        if away and holder is not None and groups.may_have_had(device_id, number, host):
            return f"{device_id} of the same group, which has left the host, is held by {holder}"
    return None


def _leaving(function: PciFunction, snapshot: Snapshot) -> str | None:
    """In words. Of what we took from a driver of the host, the lowest count since is what that has left."""
    if function.unreadable is not None:
        return f"{function.address} is {function.unreadable}"
    if snapshot.ledger.drivers.get(function.address) and not groups.is_waited_for(function):
        return None
    group = None if function.group is None else snapshot.host.groups.get(function.group)
    return f"{function.address} is going away, still in use" if groups.going_away(function, group) else None


def _unlooked(function: PciFunction) -> str | None:
    if function.usable and function.driver is not None and function.uses is None:
        return f"what the host uses of {function.address} has not been seen yet"
    return None


def taken(address: PciAddress, snapshot: Snapshot) -> str | None:
    """Who has a function, in words: a pod, or whoever has it open."""
    function = snapshot.host.functions.get(address)
    held = _held(address, function, snapshot)
    if held is not None:
        return held
    if address in snapshot.reservations.pending:
        return f"{address} was given to a pod a moment ago"
    state = OpenState.OPEN if function is None or address in snapshot.open else groups.open_state(function)
    if state is OpenState.UNKNOWN:
        return f"whether something on this host has {address} open cannot be seen"
    return f"something on this host has {address} open" if state is OpenState.OPEN else None


def _held(address: PciAddress, function: PciFunction | None, snapshot: Snapshot) -> str | None:
    holder = groups.holder_of(snapshot.allocations, address, None if function is None else function.group)
    return None if holder is None else f"{address} is held by {holder}"


def taken_behind(address: PciAddress, snapshot: Snapshot) -> str | None:
    """What a pod has that is behind a function on a driver of the host, in words; None if nothing.

    A USB device behind its controller, a node of what its driver makes: the pod loses that when the function
    gets another driver.
    """
    if address in snapshot.recently_allocated:
        return f"what is behind {address} was given to a pod a moment ago"
    if not snapshot.allocated_nodes_scanned:
        return "what is behind the nodes that pods have is not known yet"
    if (used := snapshot.functions_in_use.get(address)) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which is behind {address}"
    return _unknown_behind(snapshot)


def _unknown_behind(snapshot: Snapshot) -> str | None:
    """What a pod has that may be behind any function, in words; None if all is known.

    A node that is not there now may have been of any driver: all changes of host drivers wait for its pod.
    """
    if snapshot.unidentified_device is not None:
        name, each = snapshot.unidentified_device
        holder = snapshot.allocations.holder_of(name, each) or UNNAMED
        return f"what {holder} has as {each} of {name} is not known yet"
    if (used := snapshot.unknown_cdi_device) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which is in no CDI file"
    if (used := snapshot.unknown_node) is not None:
        return f"{used.holder or UNNAMED} has {used.name}, which is not there: its driver is not known"
    return None
