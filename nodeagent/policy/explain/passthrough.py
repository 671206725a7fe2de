# SPDX-License-Identifier: Apache-2.0
"""Explains passthrough rules: the functions that a rule binds, and the obstacles. Pure.

The explanation is the plan for the function's IOMMU group (``policy.change.bindings``), as the daemon makes
it. A manual request (``nodeagent bind``) counts as such a rule, too.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from nodeagent.model.change import Plan
from nodeagent.model.host import Kind, PciFunction
from nodeagent.model.ids import PciAddress
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import PassthroughRule
from nodeagent.policy.change import bindings
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.why import RuleVerdict, label

_SECTION = "passthrough"


class Binding(NamedTuple):
    """The rule that requires a VFIO ``driver`` for a function, and the plan of the function's group."""

    rule: PassthroughRule
    driver: str
    plan: Plan

    @property
    def obstacles(self) -> str:
        """Return why the function cannot be bound now; "" if it is bound or can be."""
        texts = [problem.message for problem in self.plan.problems]
        return "; ".join(texts + [f"waiting: {step.why}" for step in self.plan.waiting])

    @property
    def verdict(self) -> RuleVerdict:
        """Return the passthrough rule, and its effect on the function."""
        rule = self.rule.place if self.rule.place == bindings.MANUAL else label(_SECTION, self.rule.place)
        if self.obstacles:
            return RuleVerdict(rule, f"requires the driver {self.driver}; {self.obstacles}")
        return RuleVerdict(rule, f"{'binds' if self.plan.steps else 'keeps'} it on {self.driver}")

    @property
    def to_do(self) -> str | None:
        """Return how to get the function bound; "" if only time is needed, None if it is bound already."""
        if self.plan.problems:
            return "; ".join(dict.fromkeys(each.hint for each in self.plan.problems if each.hint))
        if self.plan.waiting:
            return ""
        return "nothing: the daemon binds it (nodeagent plan)" if self.plan.steps else None


def find_binding(function: PciFunction, snapshot: Snapshot) -> Binding | None:
    """Return the binding of a function; None if no rule requires a VFIO driver for it."""
    wishes = bindings.find_desired_drivers(snapshot)
    wish = wishes.get(function.address)
    if wish is None:
        return None
    (members,) = bindings.find_groups([function.address], snapshot.host)
    return Binding(wish.rule, wish.driver, bindings.plan_group(members, wishes, snapshot))


def find_rule(place: str, snapshot: Snapshot) -> PassthroughRule | None:
    """Return the rule at a place such as "config.yaml:12", with or without its folder, or None."""
    places = (place, place.rpartition("/")[2])
    return next((each for each in snapshot.spec.passthrough if each.place in places), None)


def selected(rule: PassthroughRule, snapshot: Snapshot) -> list[PciAddress]:
    """Return the functions for which this rule is the first that matches."""
    wishes = bindings.find_desired_drivers(snapshot)
    return [address for address, wish in wishes.items() if wish.picked and wish.rule is rule]


def explain_rule(rule: PassthroughRule, snapshot: Snapshot) -> RuleExplanation:
    """Return the functions that the rule binds, and why it does not bind other functions that it matches."""
    found = {each: find_binding(snapshot.host.functions[each], snapshot) for each in selected(rule, snapshot)}
    obstacles = {address: binding.obstacles for address, binding in found.items() if binding is not None}
    takes = tuple(address for address, text in obstacles.items() if not text)
    refuses = Counter(text for text in obstacles.values() if text)
    return RuleExplanation(_SECTION, Kind.PCI, rule.place, takes, dict(refuses.most_common()))
