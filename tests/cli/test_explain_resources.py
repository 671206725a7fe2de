# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain RESOURCE`` as text and as data."""

from __future__ import annotations

from nodeagent.cli import explain
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.explain import resources as policy
from nodeagent.policy.explain.resources import ResourceExplanation
from nodeagent.policy.explain.suggestions import Suggestion
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, WISH, function, holders, host, snapshot

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"


def told(name: str = GPU, wish: Spec = WISH, registered: bool | None = None) -> ResourceExplanation:
    here = host(function(A), function(B, 2), function(C, 3, driver=None))
    found = policy.explain(name, turn.decide_first(snapshot(here, wish, holders=holders(A))))
    assert found is not None
    error = None if registered in (None, True) else "the name is taken"
    return found._replace(registered=registered, registration_error=error)


def test_the_numbers_come_first_and_then_who_has_what_and_what_is_wrong() -> None:
    text = explain.resource_text(told(registered=False))
    head, held, unhealthy, free, rule = (each.splitlines() for each in text.split("\n\n"))
    assert head[0] == f"{GPU}  capacity 3, allocatable 2, free 1"
    names(head[1], "kubelet", "the name is taken")
    names(held[0], "1")
    names(held[1], "ns/vm", A)
    names(unhealthy[0], "1")
    names(unhealthy[1], f"{C}: ")
    names(unhealthy[2], C, "vfio-pci")
    assert [line.split()[-1] for line in free] == [B]
    names(rule[0], GPU)
    names(rule[1], f"3: {A}, {B}, {C}")


def test_shares_of_a_node_are_counted_and_not_all_named() -> None:
    kvm = Spec(Discovery(enabled=False), rules=(NodeRule("x/kvm", "/dev/kvm", 100),))
    text = explain.resource_text(told("x/kvm", kvm))
    names(text, "kvm-0, kvm-1, kvm-2, kvm-3 and 96 more: /dev/kvm ")
    assert "kvm-4" not in text
    names(text.splitlines()[-1], "/dev/kvm", "100")


def test_a_resource_of_no_device_says_whether_anything_could_be_one() -> None:
    none = PciRule("x/none", (PciSelector(vendors=("8086",)),))
    found = told("x/none", Spec(Discovery(enabled=False), rules=(none,)))
    impossible = explain.resource_text(found)
    possible = explain.resource_text(found._replace(possibilities=(Suggestion("an alias", "see aliases"),)))
    assert "an alias: see aliases" in possible
    assert impossible.count("\n") == possible.count("\n") - 1
