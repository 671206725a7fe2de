# SPDX-License-Identifier: Apache-2.0
"""Plans the number of VFs of physical functions. Pure.

The kernel allows a change of the number of VFs only from 0 and to 0 (else EBUSY, drivers/pci/iov.c). To
change a number above 0, nodeagent first removes all VFs of the PF, when no VF is in use. The VFs are not
removed if the kernel would refuse the new number (ERANGE). NVIDIA's driver accepts no number of VFs: NVIDIA's
tool creates all VFs or none, and resets the configuration of the card, so nodeagent runs the tool only on
cards without vGPUs. If all VFs of a PF are for VFIO, nodeagent turns ``sriov_drivers_autoprobe`` off, so that
no host driver binds the VFs first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nodeagent.model.change import Action, Plan, Step, restore_autoprobe, run_sriov_manage, set_num_vfs
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.problem import Problem, ProblemCode, note, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec, SriovRule
from nodeagent.policy import groups, naming
from nodeagent.policy.change import future_vfs, guards
from nodeagent.policy.change.cards import address_key

_SHOWN = 4  # VFs that one line names
_BY_HAND = (
    "run sriov-manage {flag} {address} on the node while the GPU is not in use; "
    "that resets its configuration for MIG or for vGPUs of several sizes"
)
_SWITCH_ON = (
    "switch SR-IOV on in the firmware's setup and in the card's setup, or keep the rule if it is for "
    "other Nodes"
)
_FEWER = "set numVFs to {most}, or raise the number in the card's firmware (Mellanox: NUM_OF_VFS)"
_REBOOT = "drain and reboot the node: writing sriov_numvfs can crash the kernel, so nodeagent does not do it"


def plan(snapshot: Snapshot) -> Plan:
    """The plan for all physical functions in address order; the first rule that matches one counts."""
    steps: list[Step] = []
    waiting: list[Step] = []
    problems: list[Problem] = []
    lost = _find_left_behind(snapshot.host)
    functions = snapshot.host.functions
    for address in sorted(functions, key=address_key):
        function = functions[address]
        rule = future_vfs.find_rule(function, snapshot.spec.sriov)
        if address in snapshot.ledger.unprobed and not _is_unprobed(rule, function, snapshot.spec):
            _restore(function, snapshot, steps, waiting)
        if rule is None or len(function.vfs) == rule.num_vfs:
            continue
        refused = _find_refusal(rule, function, lost.get(address, ()), snapshot.host)
        if refused is not None:
            text, hint = refused
            problems.append(wrong(ProblemCode.CHANGE, address, f"{address}: {text}", hint))
            continue
        action = _build_action(rule, function, snapshot.spec)
        obstacle = _find_obstacle(action, function, snapshot)
        if obstacle is None:
            steps.append(Step(action, f"{rule.num_vfs} VFs are configured"))
        else:
            why = f"{rule.num_vfs} VFs are configured, and it has {len(function.vfs)}; {obstacle}"
            waiting.append(Step(action, why))
    notes = tuple(_find_rules_without_sriov(snapshot))
    return Plan(tuple(steps), tuple(waiting), problems=tuple(problems), notes=notes)


def _find_rules_without_sriov(snapshot: Snapshot) -> Iterator[Problem]:
    """Notes on rules that match functions of this node, none of which supports SR-IOV.

    A rule that matches no function with SR-IOV may be for other Nodes. The kernel shows ``sriov_totalvfs``
    only for a function with the SR-IOV capability, which firmware may hide.
    """
    for rule in snapshot.spec.sriov:
        found = [each for each in snapshot.host.functions.values() if future_vfs.is_matched(rule, each)]
        if rule.num_vfs and found and not any(each.sriov_capable or each.physfn for each in found):
            shown = naming.shorten([each.address for each in found], _SHOWN)
            text = (
                f"{shown}: {rule.num_vfs} VFs are configured, but the PCI functions do not support "
                "SR-IOV (no sriov_totalvfs)"
            )
            yield note(ProblemCode.IDLE_RULE, text, _SWITCH_ON, rule.place)


def _is_by_tool(function: PciFunction) -> bool:
    """True for a GPU on NVIDIA's driver, which has no sriov_configure, so that a write to sriov_numvfs fails
    with ENOENT.
    """
    return function.vendor == "10de" and function.driver == groups.VENDOR_DRIVER


def _build_action(rule: SriovRule, function: PciFunction, spec: Spec) -> Action:
    count = 0 if function.vfs else rule.num_vfs
    if _is_by_tool(function):
        return run_sriov_manage(function.address, count, function.vfs)
    unprobed = count > 0 and function.autoprobe is not None and _is_unprobed(rule, function, spec)
    return set_num_vfs(function.address, count, function.vfs, allocatable=function.vfio, unprobed=unprobed)


def _is_unprobed(rule: SriovRule | None, function: PciFunction, spec: Spec) -> bool:
    """True if no host driver may bind the VFs; not supported with NVIDIA's tool."""
    if rule is None or _is_by_tool(function):
        return False
    return future_vfs.is_for_vfio(function, rule, spec.passthrough)


def _restore(function: PciFunction, snapshot: Snapshot, steps: list[Step], waiting: list[Step]) -> None:
    """The step that turns ``sriov_drivers_autoprobe`` on again; this does not bind existing VFs without a
    driver.
    """
    action = restore_autoprobe(function.address)
    refused = snapshot.failures.get(action.attempt)
    why = "no rule requires VFIO drivers for its VFs any more"
    if refused is None:
        steps.append(Step(action, why))
    else:
        waiting.append(Step(action, f"{why}; {refused}; it is retried later"))


def _find_refusal(
    rule: SriovRule, function: PciFunction, lost: Sequence[str], host: Host
) -> tuple[str, str] | None:
    """Why a rule is not carried out at all, and the fix; None if it can be."""
    if lost:
        return f"its VFs {naming.shorten(lost, _SHOWN)} remained when the PF was removed", _REBOOT
    if not _is_by_tool(function):
        return _explain_too_many(rule, function)
    if rule.num_vfs not in (0, function.total_vfs):
        most = "?" if function.total_vfs is None else function.total_vfs
        return (
            f"{rule.num_vfs} VFs are configured, but NVIDIA's driver creates all {most} or none",
            f"set numVFs to {most} or 0; mdevs.types configures the vGPUs on them",
        )
    if not host.sriov_manage:
        text = "its driver does not support sriov_numvfs, and nodeagent cannot find NVIDIA's sriov-manage"
        return text, _BY_HAND.format(flag="-e" if rule.num_vfs else "-d", address=function.address)
    return None


def _find_left_behind(host: Host) -> Mapping[str, Sequence[str]]:
    """PF → the VFs that link to this PF although the PF does not list them.

    If a VF links to a PF that does not list it, writing ``sriov_numvfs`` ends in a BUG of drivers/pci/iov.c
    (Linux 6.1, 6.12) or an oops (7.2).
    """
    lost: dict[str, list[str]] = {}
    for function in host.functions.values():
        if function.left_behind and function.physfn is not None:
            lost.setdefault(function.physfn, []).append(function.address)
    return lost


def _explain_too_many(rule: SriovRule, function: PciFunction) -> tuple[str, str] | None:
    most = function.total_vfs
    if most is None or rule.num_vfs <= most:
        return None
    text = f"{rule.num_vfs} VFs are configured, and it has {len(function.vfs)}; it supports {most} at most"
    return text, _FEWER.format(most=most)


def _find_obstacle(action: Action, function: PciFunction, snapshot: Snapshot) -> str | None:
    refused = snapshot.failures.get(action.attempt)
    if refused is not None:
        return f"{refused}; it is retried later"
    if function.driver is None:
        return "the PF has no driver, and only a driver can create VFs"
    if action.takes and not snapshot.allocations.complete:
        return guards.UNKNOWN
    used = (
        guards.describe_user(function.address, snapshot),
        *(_describe_use(each, snapshot) for each in function.vfs),
    )
    if _is_by_tool(function):
        used = (*used, _describe_mdevs(function.address, snapshot.host))
    return next((text for text in used if text is not None), None)


def _describe_use(address: PciAddress, snapshot: Snapshot) -> str | None:
    """The use of a VF, as a text; None if it may be removed."""
    function = snapshot.host.functions.get(address)
    user = guards.describe_user(address, snapshot) or guards.describe_indirect_user(address, snapshot)
    user = user or _describe_mdevs(address, snapshot.host)
    if user is not None or function is None:
        return user
    if function.vgpu_type is not None:
        return f"{address} has the vGPU type {function.vgpu_type}"
    if function.driver is not None and not function.vfio and not _is_by_tool(function):
        return f"{address} is bound to {function.driver}"
    return None


def _describe_mdevs(address: str, host: Host) -> str | None:
    return f"{address} has mdevs" if any(mdev.parent == address for mdev in host.mdevs.values()) else None
