# SPDX-License-Identifier: Apache-2.0
"""Two Decisions side by side: what comes, goes, changes name or health, and whose it is."""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.resource import ReasonCode
from nodeagent.model.spec import NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.offer import comparison, turn
from nodeagent.policy.offer.comparison import Comparison, Counted
from tests.policy.samples import GPU, WISH, function, holders, host, snapshot

A, B = "0000:65:00.0", "0000:66:00.0"
OTHER = "a.b/other"
RENAMED = Spec(rules=(PciRule(OTHER, (PciSelector(vendors=("10de",)),)),))


def compared(spec: Spec, *, before: Spec = WISH, held: bool = False) -> Comparison:
    here = host(function(A), function(B, group=2, driver="nvidia"))
    old = turn.decide_first(snapshot(here, before, holders=holders(A) if held else None))
    return comparison.compare(old, turn.decide_next(old, replace(old.snapshot, spec=spec)))


def test_equal_wishes_differ_in_nothing() -> None:
    assert compared(WISH) == Comparison((), ())


def test_a_device_that_changes_its_name_is_one_change() -> None:
    found = compared(RENAMED)
    (change,) = (each for each in found.devices if each.id == A)
    assert change.before is not None
    assert change.after is not None
    assert (change.before.resource, change.after.resource, change.after.reason) == (GPU, OTHER, None)
    numbers = {str(each.name): each.after for each in found.resources}
    assert numbers[GPU] is None
    assert numbers[OTHER] is not None


def test_a_held_device_is_listed_under_both_names_and_its_pod_is_touched() -> None:
    found = compared(RENAMED, held=True)
    assert found.pods == {"ns/vm": (A,)}
    after = [each.after for each in found.devices if each.id == A and each.after]
    codes = {str(each.resource): each.reason and each.reason.code for each in after}
    assert codes[GPU] is ReasonCode.EXCLUDED
    assert codes[OTHER] is not None


def test_shares_of_one_node_under_two_names_are_told_apart() -> None:
    one = NodeRule("a.b/kvm", "/dev/kvm", 2)
    both = Spec(rules=(one, NodeRule("c.d/kvm", "/dev/kvm", 1)))
    found = compared(both, before=Spec(rules=(one,)))
    assert [(each.name, each.before, each.after) for each in found.resources] == [
        ("c.d/kvm", None, Counted(1, 0))
    ]
    assert [(each.id, each.before, each.after and each.after.resource) for each in found.devices] == [
        ("kvm-0", None, "c.d/kvm")
    ]
