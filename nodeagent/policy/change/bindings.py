# SPDX-License-Identifier: Apache-2.0
"""Plans driver changes of PCI functions, to a VFIO driver or from VFIO to their former driver, with one step
for each IOMMU group. Pure.

VFIO assigns whole groups, so a group is bound as a whole or not at all. The Ledger records the former drivers
of functions that nodeagent has bound; functions that an operator has bound in sysfs are never unbound. A
manual request (``nodeagent bind``) counts as a rule. A rule is matched with a function as if the function had
its former driver: otherwise a rule with ``drivers`` would no longer match the functions that it has bound. If
only some functions of a group are bound and the rest cannot be, the bound ones get their former drivers. A
group is bound in part if the daemon was killed halfway, or if one of its functions was re-plugged and is in
use. Functions 1 to 7 of a card are bound before function 0 and restored after function 0, because the kernel
links them to function 0 (drivers/pci/quirks.c, quirk_gpu_hda and others).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nodeagent.model.change import ActionKind, Ledger, Move, Plan, Step, bind_drivers, moved, restore_drivers
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import VFIO_PCI, GroupNumber, PciAddress, pci_address, vfio_driver
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import GroupScope, PassthroughRule, PciSelector
from nodeagent.policy import groups, naming, selectors
from nodeagent.policy.change import future_vfs, guards
from nodeagent.policy.change.cards import address_key


class DesiredDriver(NamedTuple):
    """The desired VFIO driver of a function, and the rule; ``picked``: the rule matches the function itself,
    not only another function of its group.
    """

    driver: str
    rule: PassthroughRule
    picked: bool


_GroupKey = tuple[GroupNumber | None, PciAddress]
"""A group by its number and first function; a function without a group by itself."""
DesiredDrivers = Mapping[PciAddress, DesiredDriver]

MANUAL = "nodeagent bind"
"""The place of a rule that is a manual request."""


def plan(snapshot: Snapshot) -> Plan:
    """The plan for all groups in the order of their first functions."""
    spec, ledger = snapshot.spec, snapshot.ledger
    ruled = spec.passthrough or any(rule.driver is not None for rule in spec.sriov)
    if not ruled and not ledger.drivers and not ledger.asked:
        return Plan()
    targets = find_desired_drivers(snapshot)
    touched = {*targets, *map(PciAddress, ledger.drivers)} & snapshot.host.functions.keys()
    parts = [plan_group(members, targets, snapshot) for members in find_groups(touched, snapshot.host)]
    return Plan(
        tuple(step for part in parts for step in part.steps),
        tuple(step for part in parts for step in part.waiting),
        problems=tuple(problem for part in parts for problem in part.problems),
    )


def find_members(plan: Plan, host: Host) -> Sequence[PciAddress]:
    """The functions of all groups that the plan binds or refuses to bind."""
    named = {PciAddress(each) for step in plan.steps for each in moved(step.action)}
    named |= {PciAddress(each.subject) for each in plan.problems if each.code == ProblemCode.NOT_BOUND}
    return [each.address for members in find_groups(named & host.functions.keys(), host) for each in members]


def find_groups(addresses: Iterable[PciAddress], host: Host) -> Sequence[Sequence[PciFunction]]:
    """The members of the IOMMU group of each of these functions; a function without a group counts as a group
    of its own.
    """
    found = {_find_group(address, host) for address in addresses}
    return [_list_members(unit, host) for unit in sorted(found, key=lambda unit: address_key(unit[1]))]


def plan_group(members: Sequence[PciFunction], targets: DesiredDrivers, snapshot: Snapshot) -> Plan:
    """The plan for one group."""
    steps: list[Step] = []
    waiting: list[Step] = []
    problems: list[Problem] = []
    restoring = _plan_restore(members, targets, snapshot)
    binding = _plan_bind(members, targets, snapshot, problems)
    for step in restoring, binding, _plan_rebind(members, binding, snapshot):
        if step is not None:
            obstacle = _find_obstacle(step, members, snapshot)
            if obstacle is None:
                steps.append(step)
            else:
                waiting.append(Step(step.action, f"{step.why}; {obstacle}"))
    return Plan(tuple(steps), tuple(waiting), problems=tuple(problems))


def find_desired_drivers(snapshot: Snapshot) -> DesiredDrivers:
    """The desired driver of each function; with ``group: whole`` the rule also applies to the other functions
    in the groups of matched functions.

    A rule takes precedence over a manual request, because it is visible in a file.
    """
    host, ledger = snapshot.host, snapshot.ledger
    targets: dict[PciAddress, DesiredDriver] = {}
    for address in sorted(host.functions, key=address_key):
        function = host.functions[address]
        rule = (
            _find_rule(_with_own_driver(function, ledger), snapshot.spec.passthrough)
            or _find_vf_rule(function, snapshot)
            or _find_request(function, ledger)
        )
        if rule is not None:
            targets[address] = DesiredDriver(rule.driver, rule, picked=True)
    for address, target in tuple(targets.items()):
        if target.rule.group is GroupScope.WHOLE and not guards.is_bridge(host.functions[address]):
            for member in host.members(host.functions[address].group):
                targets.setdefault(member.address, _follow_group(host.functions[address], member, target))
    return targets


def _with_own_driver(function: PciFunction, ledger: Ledger) -> PciFunction:
    """The function as if it were still bound to the driver that it had before nodeagent bound it to VFIO."""
    return function._replace(driver=_find_own_driver(function, ledger))


def _find_own_driver(function: PciFunction, ledger: Ledger) -> str | None:
    """The driver that the function had before nodeagent bound it to VFIO; a present host driver is newer than
    the record.
    """
    recorded = ledger.drivers.get(function.address)
    hosts = function.driver is not None and not vfio_driver(function.driver)
    return function.driver if recorded is None or hosts else recorded or None


def _find_rule(function: PciFunction, rules: Iterable[PassthroughRule]) -> PassthroughRule | None:
    return next((rule for rule in rules if _is_matched(rule, function)), None)


def _find_vf_rule(function: PciFunction, snapshot: Snapshot) -> PassthroughRule | None:
    """The rule that binds a VF to a VFIO driver because the ``sriov`` rule that created the VF has a driver;
    else None.
    """
    physical = None if function.physfn is None else snapshot.host.functions.get(function.physfn)
    return None if physical is None else future_vfs.find_driver_rule(physical, snapshot.spec)


def _find_request(function: PciFunction, ledger: Ledger) -> PassthroughRule | None:
    request = ledger.asked.get(function.address)
    if request is None or (request.vendor, request.device) != (function.vendor, function.device):
        return None
    return PassthroughRule((PciSelector(addresses=(function.address,)),), request.driver, place=MANUAL)


def _is_matched(rule: PassthroughRule, function: PciFunction) -> bool:
    return any(selectors.is_match(each, function, selectors.NO_NAMES) for each in rule.selectors)


def _follow_group(picked: PciFunction, member: PciFunction, target: DesiredDriver) -> DesiredDriver:
    """The desired driver of another group member: the driver of the picked function if both have the same
    ids, else vfio-pci.
    """
    alike = (picked.vendor, picked.device) == (member.vendor, member.device)
    return DesiredDriver(target.driver if alike else VFIO_PCI, target.rule, picked=False)


def _find_group(address: PciAddress, host: Host) -> _GroupKey:
    number = host.functions[address].group
    members = host.members(number)
    return (number, min((each.address for each in members), key=address_key)) if members else (None, address)


def _list_members(unit: _GroupKey, host: Host) -> Sequence[PciFunction]:
    return host.members(unit[0]) or (host.functions[unit[1]],)


def _plan_bind(
    members: Sequence[PciFunction], targets: DesiredDrivers, snapshot: Snapshot, problems: list[Problem]
) -> Step | None:
    """The step that binds the functions of a group; None if all have their desired drivers.

    If there are refusals, they are added to ``problems``, and the step restores the former drivers of
    functions that are bound already.
    """
    due = [(member, targets[member.address]) for member in members if member.address in targets]
    due = [(member, target) for member, target in due if _is_to_be_bound(member, target, snapshot.ledger)]
    if not due:
        return None
    refusals = _find_refusals(due, members, snapshot)
    if refusals:
        problems += refusals
        ours = [each for each in members if each.address in targets]
        return _build_restore(
            members, ours, snapshot, "the other PCI functions of its IOMMU group cannot be bound"
        )
    moves = tuple(
        _move_to_vfio(each, targets[each.address], snapshot.ledger)
        for each in reversed(members)
        if (each, targets.get(each.address)) in due or _is_bound_by_us(each, targets, snapshot.ledger)
    )
    forced = [member for member, target in due if member.address in target.rule.force]
    lost = [f"{use.what} ({use.how})" for each in forced if each.uses for use in each.uses.found]
    rule = due[0][1].rule
    addresses = [each.address for each in forced]
    action = bind_drivers(_first_address(members), moves, _find_allocatable(members), addresses, lost)
    return Step(action, describe_origin(rule))


def describe_origin(rule: PassthroughRule) -> str:
    """The rule or manual request that requires a driver change, as a text."""
    if rule.place == MANUAL:
        return f"requested manually ({MANUAL})"
    return f"required by a rule{f' ({rule.place})' if rule.place else ''}"


def _is_to_be_bound(function: PciFunction, target: DesiredDriver, ledger: Ledger) -> bool:
    """True if the function needs a bind; False for a function on VFIO, unless nodeagent bound it to another
    VFIO driver.
    """
    if groups.is_vfio_bound(function):
        return function.address in ledger.drivers and function.driver != target.driver
    beside = guards.is_bridge(function) or function.driver in groups.FRIENDLY_DRIVERS
    return target.picked or not beside


def _is_bound_by_us(function: PciFunction, targets: DesiredDrivers, ledger: Ledger) -> bool:
    """True if nodeagent has bound the function, so that it gets its former driver if the rest of its group
    cannot be bound.
    """
    return (
        function.address in targets and function.address in ledger.drivers and groups.is_vfio_bound(function)
    )


def _find_refusals(
    due: Sequence[tuple[PciFunction, DesiredDriver]], members: Sequence[PciFunction], snapshot: Snapshot
) -> list[Problem]:
    """The reasons for not binding the group."""
    head, host = due[0][0], snapshot.host
    group = None if head.group is None else host.groups.get(head.group)
    named = [
        (head, each) for each in guards.find_group_refusals(group, {target.driver for _, target in due}, host)
    ]
    if any(target.rule.group is GroupScope.WHOLE for _, target in due):
        named += [(head, each) for each in guards.find_bridge_refusals(members)]
    for member, target in due:
        forced = member.address in target.rule.force
        named += [(member, each) for each in guards.find_function_refusals(member, snapshot, forced)]
        named += [(member, each) for each in refuse_vf_parent(member, snapshot)]
    requested = [member.address for member, target in due if target.picked]
    return [
        wrong(
            ProblemCode.NOT_BOUND,
            each.address,
            f"{each.address} is not bound: {refusal.message}{_describe_group(each, requested, len(due))}",
            refusal.hint,
        )
        for each, refusal in named
    ]


def _describe_group(blocker: PciFunction, requested: Sequence[str], due: int) -> str:
    """The end of a refusal, which names the requested functions that are not bound because of another group
    member.
    """
    if due == 1:
        return ""
    others = naming.shorten([address for address in requested if address != blocker.address])
    group = f"group {blocker.group}"
    return f", so {f'{others} ({group})' if others else group} is unchanged"


def refuse_vf_parent(function: PciFunction, snapshot: Snapshot) -> Iterator[Problem]:
    """Refuse a PF of an ``sriov`` rule: unbinding its driver may leave VFs behind, and crash the kernel."""
    rule = future_vfs.find_rule(function, snapshot.spec.sriov)
    if rule is not None and rule.num_vfs:
        hint = "remove the PF from one of the two rules; its VFs can be bound by a passthrough rule"
        yield wrong(ProblemCode.NOT_BOUND, function.address, "an sriov rule creates VFs of this PF", hint)


def _move_to_vfio(function: PciFunction, target: DesiredDriver, ledger: Ledger) -> Move:
    return Move(function.address, function.driver, target.driver, _find_own_driver(function, ledger))


def _plan_restore(members: Sequence[PciFunction], targets: DesiredDrivers, snapshot: Snapshot) -> Step | None:
    """The step that restores the former drivers of functions that no rule or manual request requires on VFIO
    any more.
    """
    unwanted = [
        each
        for each in members
        if each.address not in targets and not _may_be_of_hidden_interface(each, snapshot)
    ]
    return _build_restore(members, unwanted, snapshot, "no rule matches it any more")


def _may_be_of_hidden_interface(function: PciFunction, snapshot: Snapshot) -> bool:
    """True for a VF that a rule might match by a network interface of its PF, if that interface is not
    visible now.

    An interface is not in sysfs here while it is in another network namespace, or while its driver creates it
    again after a reset.
    """
    selectors = [each for rule in snapshot.spec.passthrough for each in rule.selectors]
    by_interface = any(pci_address(pf.partition("#")[0]) is None for each in selectors for pf in each.pfs)
    return by_interface and function.physfn is not None and not function.pf_interfaces


def _plan_rebind(members: Sequence[PciFunction], binding: Step | None, snapshot: Snapshot) -> Step | None:
    """The step that restores the drivers of functions that lost their driver although a pod depends on that
    driver.

    This happens if the former driver did not bind the function when a failed change was undone. A function on
    which a pod depends is not bound to VFIO until the pod ends.
    """
    if binding is None or binding.action.kind is not ActionKind.BIND_DRIVERS:
        return None
    without = (
        each
        for each in members
        if each.driver is None and _find_own_driver(each, snapshot.ledger) is not None
    )
    settled = (each for each in without if each.address not in snapshot.recently_allocated)
    missed = [each for each in settled if guards.describe_indirect_user(each.address, snapshot) is not None]
    return _build_restore(members, missed, snapshot, "a pod may use a device of the host driver")


def _build_restore(
    members: Sequence[PciFunction], some: Iterable[PciFunction], snapshot: Snapshot, why: str
) -> Step | None:
    """The step that restores the former drivers of ``some`` members; None if nodeagent bound none."""
    ledger = snapshot.ledger
    moves = tuple(
        Move(each.address, each.driver, _find_own_driver(each, ledger), each.driver)
        for each in some
        if each.address in ledger.drivers
    )
    return (
        Step(restore_drivers(_first_address(members), moves, _find_allocatable(members)), why)
        if moves
        else None
    )


def _find_obstacle(step: Step, members: Sequence[PciFunction], snapshot: Snapshot) -> str | None:
    action = step.action
    refused = snapshot.failures.get(action.attempt)
    if refused is not None:
        return f"{refused}; it is retried later"
    moves = action.moves if action.kind is ActionKind.BIND_DRIVERS else ()
    return guards.find_obstacle(members, moves, snapshot)


def _first_address(members: Iterable[PciFunction]) -> str:
    return min((each.address for each in members), key=address_key)


def _find_allocatable(members: Iterable[PciFunction]) -> tuple[str, ...]:
    return tuple(each.address for each in members if groups.is_assignable(each))
