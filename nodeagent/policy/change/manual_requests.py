# SPDX-License-Identifier: Apache-2.0
"""Plans a manual request to bind or to release, by group: Snapshot and Request → GroupPlans. Pure.

A manual request counts as a rule, so the answer is the plan of the IOMMU group as if the request were
recorded, with the same refusals and steps as for a rule. A request whose plan has to wait is refused and not
recorded: the user can repeat the command. A release does not override a rule, because the rule would apply
again at once. ``agent.changing.requests`` uses this module; the commands and ``at_boot`` parse the names of
functions with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.model.change import Asked, AtBoot, BindAction, Outcome, Plan, Request, Result
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, pci_address, pci_order
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PciSelector
from nodeagent.policy import groups, naming, selectors
from nodeagent.policy.change import bindings, guards
from nodeagent.policy.change.bindings import MANUAL

_ID = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4})")
_PATTERN = re.compile(r"[0-9a-f:.*?]*[*?][0-9a-f:.*?]*")
_AS_IT_WAS = "unbind it first with the tool that bound it (driverctl unset-override, or in sysfs)"
_HINT = "use an address (3b:00.0), a pattern of addresses ('3b:*'), or vendor:device (10de:1eb8)"


class GroupPlan(NamedTuple):
    """The plan of one IOMMU group with the recorded request; ``functions``: the PCI functions that the answer
    lists.

    ``asked``: the changes to the recorded manual requests; the value None removes a request.
    """

    functions: tuple[str, ...]
    plan: Plan
    asked: Mapping[str, Asked | None] = MappingProxyType({})

    @property
    def due(self) -> bool:
        """True if the plan has a step that can be carried out now."""
        return not (self.plan.problems or self.plan.waiting) and bool(self.plan.steps or self.asked)

    @property
    def waits_for(self) -> frozenset[str]:
        """The ids of the devices whose release would let the plan proceed; empty if the plan is refused for
        other reasons.
        """
        if self.plan.problems or not self.plan.waiting:
            return frozenset()
        return self.plan.waiting[0].action.takes


def parse_name(name: str) -> PciSelector:
    """The selector for a name in a command. :raises ConfigError: if the name is invalid."""
    text = name.strip().lower()
    if (address := pci_address(text)) is not None:
        return PciSelector(addresses=(address,))
    if (ids := _ID.fullmatch(text)) is not None:
        return PciSelector(vendors=(ids[1],), devices=(ids[2],))
    if _PATTERN.fullmatch(text):
        return PciSelector(addresses=(f"0000:{text}" if text.count(":") == 1 else text,))
    raise ConfigError(f'"{name}" is neither a PCI address nor a pattern nor vendor:device', _HINT)


def find_functions(names: Sequence[str], host: Host) -> tuple[PciAddress, ...]:
    """The PCI functions with these names; a bridge is included only if its own address is one of the names.

    :raises ConfigError: as ``parse_name``. :raises NodeagentError: if a name matches none.
    """
    found: set[PciAddress] = set()
    for name in names:
        wanted, exact = parse_name(name), pci_address(name) is not None
        some = [
            address
            for address, function in host.functions.items()
            if selectors.is_match(wanted, function, selectors.NO_NAMES)
            and (exact or not guards.is_bridge(function))
        ]
        if not some:
            known = sorted(host.functions, key=pci_order)
            raise NodeagentError(f"no function of this host matches {name}", naming.suggest(name, known))
        found.update(some)
    return tuple(sorted(found, key=pci_order))


def is_entry_selected(entry: AtBoot, wanted: PciSelector) -> bool:
    """True if the selector matches the function of the recorded entry, whether or not the function is on the
    host.
    """
    function = PciFunction(PciAddress(entry.address), vendor=entry.vendor, device=entry.device)
    return selectors.is_match(wanted, function, selectors.NO_NAMES)


def find_members(request: Request, snapshot: Snapshot) -> Sequence[PciFunction]:
    """All functions of the named groups. :raises NodeagentError: as ``find_functions``."""
    units = bindings.find_groups(_find_named(request, snapshot), snapshot.host)
    return [each for members in units for each in members]


def plan(request: Request, snapshot: Snapshot) -> tuple[GroupPlan, ...]:
    """One plan for each group of a named function. :raises NodeagentError: as ``find_functions``."""
    named = _find_named(request, snapshot)
    plan_group = _plan_bind if request.asking is BindAction.BIND else _plan_release
    planned = tuple(
        plan_group(members, [each for each in members if each.address in named], request, snapshot)
        for members in bindings.find_groups(named, snapshot.host)
    )
    absent = (GroupPlan((each,), Plan(), {each: None}) for each in _find_absent(request, snapshot))
    return (*planned, *absent)


def plan_now(group: GroupPlan, snapshot: Snapshot) -> Plan:
    """The present plan of the group with its recorded request: empty if the request is carried out, else the
    obstacles.
    """
    there = [each for each in map(PciAddress, group.functions) if each in snapshot.host.functions]
    if there:
        (members, *_) = bindings.find_groups(there, snapshot.host)
        return _plan_members(members, snapshot)
    if not group.plan.steps:
        return Plan()
    return Plan(problems=(_refuse(group.functions[0], "no longer on the host", "re-plug it"),))


def find_refusals(plan: Plan) -> tuple[Problem, ...]:
    """The problems because of which a plan cannot be carried out now."""
    return tuple(dict.fromkeys(plan.problems)) or tuple(
        _refuse(
            step.action.card,
            f"{step.action.text}: {step.why}",
            "repeat the command when the obstacle is gone",
        )
        for step in plan.waiting[:1]
    )


def build_result(group: GroupPlan, host: Host) -> Result:
    """The plan of one IOMMU group as the answer to the manual request."""
    if why := find_refusals(group.plan):
        return Result(group.functions, Outcome.REFUSED, refusals=why)
    if not group.due:
        drivers = dict.fromkeys(host.functions[PciAddress(each)].driver for each in group.functions)
        on = ", ".join(driver or "no driver" for driver in drivers)
        return Result(group.functions, Outcome.NOTHING, f"on {on}")
    kept = "stays bound" if all(group.asked.values()) else "its request is removed"
    words = "; ".join(step.action.text for step in group.plan.steps) or kept
    return Result(group.functions, Outcome.PLANNED, words)


def with_requests(before: Mapping[str, Asked], changes: Mapping[str, Asked | None]) -> Mapping[str, Asked]:
    """The manual requests on record after these changes."""
    after = {**before, **changes}
    return {address: asked for address, asked in after.items() if asked is not None}


def _find_named(request: Request, snapshot: Snapshot) -> frozenset[PciAddress]:
    absent = _find_absent(request, snapshot)
    return frozenset(
        find_functions([each for each in request.names if pci_address(each) not in absent], snapshot.host)
    )


def _find_absent(request: Request, snapshot: Snapshot) -> Sequence[PciAddress]:
    """The functions to release that have left the host; without a release, they would be bound to VFIO when
    plugged in again.
    """
    named = (pci_address(name) for name in request.names if request.asking is BindAction.RELEASE)
    asked, there = snapshot.ledger.asked, snapshot.host.functions
    return [each for each in named if each is not None and each in asked and each not in there]


def _plan_bind(
    members: Sequence[PciFunction], named: Sequence[PciFunction], request: Request, snapshot: Snapshot
) -> GroupPlan:
    """The plan to bind the named functions of a group.

    A function that a rule matches needs no request. A function that another tool has bound to VFIO is only
    requested together with other functions of its group.
    """
    driver = request.driver
    targets, ours = bindings.find_desired_drivers(snapshot), snapshot.ledger.drivers
    refusals: list[Problem] = []
    asked: dict[str, Asked | None] = {}
    foreign: set[str] = set()
    for each in named:
        target = targets.get(each.address)
        if target is not None and target.rule.place != MANUAL:
            if target.picked and target.driver != driver:
                text = f"{target.driver} is {bindings.describe_origin(target.rule)}"
                text = f"{each.address} is not bound to {driver}: {text}"
                refusals.append(_refuse(each.address, text, "change that rule instead"))
            continue
        asked[each.address] = Asked(driver, each.vendor, each.device)
        if groups.is_vfio_bound(each) and each.address not in ours:
            foreign.add(each.address)
            if each.driver != driver:
                text = f"{each.address} is not bound to {driver}: another tool has bound it to {each.driver}"
                refusals.append(_refuse(each.address, text, _AS_IT_WAS))
    if refusals:
        return GroupPlan(_list_addresses(named), Plan(problems=tuple(refusals)))
    plan = _plan_members(members, _with_changes(snapshot, asked))
    if not plan.steps:
        asked = {address: each for address, each in asked.items() if address not in foreign}
    return _build_group_plan(plan, named, asked, snapshot)


def _plan_release(
    members: Sequence[PciFunction], named: Sequence[PciFunction], request: Request, snapshot: Snapshot
) -> GroupPlan:
    """The plan to release a whole IOMMU group, because VFIO cannot use a part of a group."""
    forgotten: dict[str, Asked | None] = {each.address: None for each in members}
    without = _with_changes(snapshot, forgotten)
    targets, ledger = bindings.find_desired_drivers(without), snapshot.ledger
    ours = {*ledger.drivers, *ledger.asked, *request.at_boot}
    refusals: list[Problem] = []
    for each in named:
        if each.address in targets and not guards.is_bridge(each):
            origin = bindings.describe_origin(targets[each.address].rule)
            text = f"{each.address} is not released: its driver is {origin}"
            hint = "remove it from that rule; its own driver is then restored"
            refusals.append(_refuse(each.address, text, hint))
        elif groups.is_vfio_bound(each) and each.address not in ours:
            text = f"{each.address} is not released: nodeagent did not bind it to {each.driver}"
            refusals.append(_refuse(each.address, text, _AS_IT_WAS))
    if refusals:
        return GroupPlan(_list_addresses(named), Plan(problems=tuple(refusals)))
    return _build_group_plan(_plan_members(members, without), named, forgotten, snapshot)


def _build_group_plan(
    plan: Plan, named: Sequence[PciFunction], asked: Mapping[str, Asked | None], snapshot: Snapshot
) -> GroupPlan:
    """The plan of a group; its functions are the named ones and, if the plan has steps, those that the steps
    change.
    """
    before = snapshot.ledger.asked
    new = {address: each for address, each in asked.items() if before.get(address) != each}
    group = GroupPlan(_list_addresses(named), plan, new)
    moved = {*group.functions, *(each for step in plan.steps for each in step.action.targets)}
    return group._replace(functions=tuple(sorted(moved, key=pci_order))) if group.due else group


def _plan_members(members: Sequence[PciFunction], snapshot: Snapshot) -> Plan:
    return bindings.plan_group(members, bindings.find_desired_drivers(snapshot), snapshot)


def _with_changes(snapshot: Snapshot, changes: Mapping[str, Asked | None]) -> Snapshot:
    """The Snapshot with these changes to the recorded manual requests."""
    ledger = snapshot.ledger
    return replace(snapshot, ledger=ledger._replace(asked=with_requests(ledger.asked, changes)))


def _refuse(address: str, text: str, hint: str) -> Problem:
    return wrong(ProblemCode.NOT_BOUND, address, text, hint)


def _list_addresses(some: Sequence[PciFunction]) -> tuple[str, ...]:
    return tuple(each.address for each in some)
