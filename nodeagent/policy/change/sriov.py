# SPDX-License-Identifier: Apache-2.0
"""How many VFs a physical function is to have, and what may be done about it now. Pure.

The kernel knows 0 → n and n → 0 only (EBUSY between two counts above 0, drivers/pci/iov.c). So another count
means to remove all VFs first, and that waits until none of them is used by anybody. What the kernel would
refuse afterwards (ERANGE) is not begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.model.action import SetNumVfs, Step
from nodeagent.model.desired import SriovRule
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.plan import Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups, selectors
from nodeagent.policy.change.cards import order

_SHOWN = 4  # VFs that one line names
_LOST = "reboot the node when it is drained: to write sriov_numvfs can crash the kernel, so nobody does"


def plan(snapshot: Snapshot) -> Plan:
    """The plan for all physical functions in address order; the first rule that picks one holds."""
    steps: list[Step] = []
    waiting: list[Step] = []
    remedies: dict[str, str] = {}
    lost = _left_behind(snapshot.host)
    functions = snapshot.host.functions
    for address in sorted(functions, key=order):
        function = functions[address]
        rule = _rule(function, snapshot.desired.sriov)
        if rule is None or len(function.vfs) == rule.num_vfs:
            continue
        if address in lost:
            remedies[f"{address}: its VFs {_some(lost[address])} were left behind when it was removed"] = (
                _LOST
            )
            continue
        action = SetNumVfs(address, 0 if function.vfs else rule.num_vfs, function.vfs, function.vfio)
        obstacle = _impossible(rule, function) or _obstacle(action, function, snapshot)
        if obstacle is None:
            steps.append(Step(action, f"it is to have {rule.num_vfs} VFs"))
        else:
            why = f"it is to have {rule.num_vfs} VFs, and has {len(function.vfs)}; {obstacle}"
            waiting.append(Step(action, why))
    return Plan(tuple(steps), tuple(waiting), problems=tuple(remedies), remedies=remedies)


def _left_behind(host: Host) -> Mapping[str, Sequence[str]]:
    """PF → the VFs that name it and that it does not know.

    To write ``sriov_numvfs`` there ends in a BUG of drivers/pci/iov.c (Linux 6.1, 6.12) or an oops (7.2).
    """
    lost: dict[str, list[str]] = {}
    for function in host.functions.values():
        if function.left_behind and function.physfn is not None:
            lost.setdefault(function.physfn, []).append(function.address)
    return lost


def _some(addresses: Sequence[str]) -> str:
    more = len(addresses) - _SHOWN
    return ", ".join(addresses[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _rule(function: PciFunction, rules: Sequence[SriovRule]) -> SriovRule | None:
    if not function.sriov_capable or function.physfn is not None:
        return None
    return next((rule for rule in rules if _picks(rule, function)), None)


def _picks(rule: SriovRule, function: PciFunction) -> bool:
    return any(selectors.mismatch(each, function, {}) is None for each in rule.selectors)


def _impossible(rule: SriovRule, function: PciFunction) -> str | None:
    most = function.total_vfs
    return None if most is None or rule.num_vfs <= most else f"it can have {most} at most"


def _obstacle(action: SetNumVfs, function: PciFunction, snapshot: Snapshot) -> str | None:
    refused = snapshot.failures.get(action.attempt)
    if refused is not None:
        return f"{refused}; it is tried again later"
    if function.driver is None:
        return "it has no driver, which would make them"
    if action.takes and not snapshot.allocations.complete:
        return "who holds what is not known"
    used = (_taken(function.address, snapshot), *(_used(each, snapshot) for each in function.vfs))
    return next((text for text in used if text is not None), None)


def _taken(address: PciAddress, snapshot: Snapshot) -> str | None:
    """Who has a function, in words: a pod, or whoever has it open."""
    function = snapshot.host.functions.get(address)
    holder = groups.holder_of(snapshot.allocations, address, None if function is None else function.group)
    if holder is not None:
        return f"{address} is held by {holder}"
    if address in snapshot.reservations.given:
        return f"{address} was given to a pod a moment ago"
    if address in snapshot.open or function is None or groups.in_use(function):
        return f"something on this host has {address} open"
    return None


def _used(address: PciAddress, snapshot: Snapshot) -> str | None:
    """What a VF is used for, in words; None if it may go."""
    host = snapshot.host
    function, taken = host.functions.get(address), _taken(address, snapshot)
    if taken is not None or function is None:
        return taken
    if any(mdev.parent == address for mdev in host.mdevs.values()):
        return f"{address} has mdevs"
    if function.vgpu_type is not None:
        return f"{address} has the vGPU type {function.vgpu_type}"
    if function.driver is not None and not function.vfio:
        return f"{address} is bound to {function.driver}"
    return None
