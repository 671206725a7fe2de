# SPDX-License-Identifier: Apache-2.0
"""What becomes of a request to bind or to release, group by group: Snapshot and Request → Judgements. Pure.

What is asked for is a wish beside the rules, so the plan of a group with it is the answer: refused for the
same reasons, made of the same steps. What would have to wait is refused as well, and forgotten: somebody
stands there and can ask again. A rule that wants what is to be released is not overruled: it would win again
at the next turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.base.errors import ConfigError, NodeagentError
from nodeagent.model.action import Step
from nodeagent.model.bootfile import AtBoot
from nodeagent.model.desired import PciSelector
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.ids import PciAddress, pci_address, pci_order
from nodeagent.model.ledger import Asked
from nodeagent.model.plan import Plan
from nodeagent.model.request import Asking, Became, Request, Result
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups, naming, selectors
from nodeagent.policy.change import bindings, guards
from nodeagent.policy.change.bindings import HAND

_ID = re.compile(r"([0-9a-f]{4}):([0-9a-f]{4})")
_PATTERN = re.compile(r"[0-9a-f:.*?]*[*?][0-9a-f:.*?]*")
_AS_IT_WAS = "give it back first as it was bound (driverctl unset-override, or in sysfs)"
_HINT = "give an address (3b:00.0), a pattern of addresses ('3b:*'), or vendor:device (10de:1eb8)"

Delta = Mapping[str, Asked | None]
"""What is asked of functions from now on; None: nothing."""


class Judgement(NamedTuple):
    """One group: what becomes of it, the steps to it, and what is ``asked`` of its functions for that.

    ``held``: the ids that somebody has, where that alone is in the way.
    """

    result: Result
    steps: tuple[Step, ...] = ()
    asked: Delta = MappingProxyType({})
    held: frozenset[str] = frozenset()

    @property
    def due(self) -> bool:
        """True if anything is to be done for it."""
        return self.result.became is Became.PLANNED


def selector(name: str) -> PciSelector:
    """What a person means by a name. :raises ConfigError: if that cannot be told."""
    text = name.strip().lower()
    if (address := pci_address(text)) is not None:
        return PciSelector(addresses=(address,))
    if (ids := _ID.fullmatch(text)) is not None:
        return PciSelector(vendors=(ids[1],), devices=(ids[2],))
    if _PATTERN.fullmatch(text):
        return PciSelector(addresses=(f"0000:{text}" if text.count(":") == 1 else text,))
    raise ConfigError(f'"{name}" names no functions', _HINT)


def picked(names: Sequence[str], host: Host) -> tuple[PciAddress, ...]:
    """The functions that are named; bridges only by their own address.

    :raises ConfigError: as ``selector``. :raises NodeagentError: if a name fits none.
    """
    found: set[PciAddress] = set()
    for name in names:
        wanted, exact = selector(name), pci_address(name) is not None
        some = [
            address
            for address, function in host.functions.items()
            if selectors.fits(wanted, function, selectors.NO_NAMES) and (exact or not guards.bridge(function))
        ]
        if not some:
            known = sorted(host.functions, key=pci_order)
            raise NodeagentError(f"no function of this host is {name}", naming.nearest(name, known))
        found.update(some)
    return tuple(sorted(found, key=pci_order))


def named(entry: AtBoot, wanted: PciSelector) -> bool:
    """True if the selector picks the function of such an entry, whether it is there or not."""
    function = PciFunction(PciAddress(entry.address), vendor=entry.vendor, device=entry.device)
    return selectors.fits(wanted, function, selectors.NO_NAMES)


def concerned(request: Request, snapshot: Snapshot) -> Sequence[PciFunction]:
    """All functions of the groups of which something is named. :raises NodeagentError: as ``picked``."""
    absent = _absent(request, snapshot)
    named = picked([each for each in request.names if pci_address(each) not in absent], snapshot.host)
    return [each for members in bindings.units(named, snapshot.host) for each in members]


def judged(request: Request, snapshot: Snapshot) -> tuple[Judgement, ...]:
    """One for each group of which something is named. :raises NodeagentError: as ``picked``."""
    absent = _absent(request, snapshot)
    named = frozenset(
        picked([each for each in request.names if pci_address(each) not in absent], snapshot.host)
    )
    judge = _JUDGES[request.asking]
    judgements = tuple(
        judge(members, [each for each in members if each.address in named], request, snapshot)
        for members in bindings.units(named, snapshot.host)
    )
    gone = (Judgement(Result((each,), Became.PLANNED, _KEPT[False]), asked={each: None}) for each in absent)
    return (*judgements, *gone)


def _absent(request: Request, snapshot: Snapshot) -> Sequence[PciAddress]:
    """What is to be released, and has left the host: it would be bound if it came back."""
    named = (pci_address(name) for name in request.names if request.asking is Asking.RELEASE)
    asked, there = snapshot.ledger.asked, snapshot.host.functions
    return [each for each in named if each is not None and each in asked and each not in there]


def now(judgement: Judgement, snapshot: Snapshot) -> Judgement:
    """The same group as it stands by now: nothing left to do, or what is in the way."""
    there = [each for each in map(PciAddress, judgement.result.functions) if each in snapshot.host.functions]
    if not there and judgement.steps:
        return _refused(judgement.result.functions, {"it is gone": "plug it in again"})
    if not there:
        return Judgement(judgement.result._replace(became=Became.NOTHING))
    (members, *_) = bindings.units(there, snapshot.host)
    return _of_plan(_plan(members, snapshot), members, {})


def asked_after(before: Mapping[str, Asked], judgements: Iterable[Judgement]) -> Mapping[str, Asked]:
    """What is asked by hand when the judgements are carried out."""
    after: dict[str, Asked | None] = dict(before)
    for judgement in judgements:
        after.update(judgement.asked)
    return {address: asked for address, asked in after.items() if asked is not None}


def taken_back(before: Mapping[str, Asked], judgement: Judgement) -> Judgement:
    """The judgement that asks again for what was asked ``before`` this one."""
    return judgement._replace(steps=(), asked={address: before.get(address) for address in judgement.asked})


def _bind(
    members: Sequence[PciFunction], named: Sequence[PciFunction], request: Request, snapshot: Snapshot
) -> Judgement:
    """What a rule wants needs no asking; what another hand has bound is asked for its group's sake."""
    driver = request.driver
    wanted, mine = bindings.wishes(snapshot), snapshot.ledger.drivers
    refusals: dict[str, str] = {}
    asked: dict[str, Asked] = {}
    foreign: set[str] = set()
    for each in named:
        wish = wanted.get(each.address)
        if wish is not None and wish.rule.place != HAND:
            if wish.picked and wish.driver != driver:
                what = f"{bindings.why(wish.rule)} on {wish.driver}"
                refusals[f"{each.address} is not bound to {driver}: {what}"] = "change that rule instead"
            continue
        asked[each.address] = Asked(driver, each.vendor, each.device)
        if groups.vfio_bound(each) and each.address not in mine:
            foreign.add(each.address)
            if each.driver != driver:
                what = f"{each.driver} has it, which nodeagent has not bound"
                refusals[f"{each.address} is not bound to {driver}: {what}"] = _AS_IT_WAS
    if refusals:
        return _refused(_addresses(named), refusals)
    plan = _plan(members, _asking(snapshot, asked))
    if not plan.steps:
        asked = {address: each for address, each in asked.items() if address not in foreign}
    return _of_plan(plan, named, _new(asked, snapshot))


def _release(
    members: Sequence[PciFunction], named: Sequence[PciFunction], request: Request, snapshot: Snapshot
) -> Judgement:
    """A group is given back as one, as it was bound: nothing of it is of use without the rest."""
    forgotten: Delta = {each.address: None for each in members}
    without = _asking(snapshot, forgotten)
    wanted, mine = (
        bindings.wishes(without),
        {*snapshot.ledger.drivers, *snapshot.ledger.asked, *request.at_boot},
    )
    refusals: dict[str, str] = {}
    for each in named:
        if each.address in wanted and not guards.bridge(each):
            what = f"{each.address} is not released: {bindings.why(wanted[each.address].rule)}"
            refusals[what] = "take it out of that rule: then it gets its own driver back by itself"
        elif groups.vfio_bound(each) and each.address not in mine:
            what = f"{each.address} is not released: nodeagent has not bound it to {each.driver}"
            refusals[what] = _AS_IT_WAS
    if refusals:
        return _refused(_addresses(named), refusals)
    return _of_plan(_plan(members, without), named, _new(forgotten, snapshot))


_JUDGES: Mapping[
    Asking, Callable[[Sequence[PciFunction], Sequence[PciFunction], Request, Snapshot], Judgement]
] = {Asking.BIND: _bind, Asking.RELEASE: _release}


def _plan(members: Sequence[PciFunction], snapshot: Snapshot) -> Plan:
    return bindings.of_members(members, bindings.wishes(snapshot), snapshot)


def _asking(snapshot: Snapshot, asked: Delta) -> Snapshot:
    """The Snapshot in which this is asked for as well."""
    ledger = snapshot.ledger
    after = asked_after(ledger.asked, [Judgement(Result((), Became.PLANNED), asked=asked)])
    return replace(snapshot, ledger=ledger._replace(asked=after))


def _new(asked: Delta, snapshot: Snapshot) -> Delta:
    """What of it is not so already."""
    before = snapshot.ledger.asked
    return {address: each for address, each in asked.items() if before.get(address) != each}


def _of_plan(plan: Plan, named: Sequence[PciFunction], asked: Delta) -> Judgement:
    """What a plan for one group says to who asks."""
    functions = _addresses(named)
    if plan.problems:
        return _refused(functions, {problem.what: problem.hint for problem in plan.problems})
    if plan.waiting:
        (step, *_) = plan.waiting
        refusals = {f"{step.action.text}: {step.why}": "ask again when that is over"}
        return _refused(functions, refusals)._replace(held=step.action.takes)
    if not plan.steps and not asked:
        return Judgement(Result(functions, Became.NOTHING, _standing(named)))
    moved = {*functions, *(each for step in plan.steps for each in step.action.targets)}
    words = "; ".join(step.action.text for step in plan.steps) or _KEPT[all(asked.values())]
    result = Result(tuple(sorted(moved, key=pci_order)), Became.PLANNED, words)
    return Judgement(result, plan.steps, asked)


_KEPT = {True: "stays bound", False: "nothing is asked of it any more"}


def _refused(functions: tuple[str, ...], refusals: Mapping[str, str]) -> Judgement:
    return Judgement(Result(functions, Became.REFUSED, refusals=refusals))


def _addresses(some: Sequence[PciFunction]) -> tuple[str, ...]:
    return tuple(each.address for each in some)


def _standing(some: Sequence[PciFunction]) -> str:
    drivers = dict.fromkeys(each.driver or "no driver" for each in some)
    return f"on {', '.join(drivers)}"
