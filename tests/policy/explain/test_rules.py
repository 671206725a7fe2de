# SPDX-License-Identifier: Apache-2.0
"""What a rule takes and refuses: devices that are refused alike count together."""

from __future__ import annotations

from nodeagent.model.host import HostDevice
from nodeagent.model.spec import MdevRule, MdevSelector, NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.explain import rules
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.offer import turn
from tests.facts import each_names
from tests.policy.samples import UUID, function, host, mdev, snapshot

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
T4S = PciRule("x/t4", (PciSelector(devices=("1eb8",)),), place="config.yaml:3")


def told(place: str, wish: Spec, *devices: HostDevice) -> RuleExplanation | None:
    return rules.at(place, turn.decide_first(snapshot(host(*devices), wish)))


def test_devices_that_differ_in_the_same_key_count_together_and_bridges_do_not() -> None:
    others = (function(B, 2, device="1111"), function(C, 3, device="2222"))
    bridge = function("0000:00:01.0", 4, pci_class="060400")
    found = told("config.yaml:3", Spec(rules=(T4S,)), function(A), *others, bridge)
    assert found is not None
    assert (found.matches, [*found.rejects.values()]) == ((A,), [2])
    each_names(found.rejects, ("devices", "1eb8"))


def test_each_selector_has_its_say_and_a_rule_without_any_says_that() -> None:
    two = PciRule("x/two", (PciSelector(vendors=("8086",)), PciSelector(classes=("02",))), place="a.yaml:1")
    none = PciRule("x/none", place="a.yaml:2")
    wish = Spec(rules=(two, none))
    for place, why in (
        ("a.yaml:1", ("vendors", "8086", "classes", "02")),
        ("a.yaml:2", ("selectors",)),
    ):
        found = told(place, wish, function(A))
        assert found is not None
        each_names(found.rejects, why)


def test_who_was_asked_before_and_took_it_is_named() -> None:
    wish = Spec(rules=(T4S, PciRule("x/rest", (PciSelector(vendors=("10de",)),), place="config.yaml:9")))
    found = told("/etc/nodeagent/config.yaml:9", wish, function(A))
    assert found is not None
    assert [*found.rejects.values()] == [1]
    each_names(found.rejects, ("x/t4", "config.yaml:3"))


def test_a_rule_is_asked_for_devices_of_its_kind_alone() -> None:
    wish = Spec(rules=(MdevRule("x/m", (MdevSelector(types=("nvidia-222",)),), place="config.yaml:1"),))
    found = told("config.yaml:1", wish, function(A), mdev())
    assert found is not None
    assert (found.matches, found.rejects) == ((UUID,), {})


def test_a_rule_of_the_cr_says_why_it_leaves_alone_what_it_names() -> None:
    rule = PciRule(
        "x/t4", (PciSelector(vendors=("10de",), devices=("1eb8",)),), permitted=True, place="CR: 0"
    )
    wish = Spec(rules=(rule,), kubevirt_rules={"10de:1eb8": rule})
    found = told("CR: 0", wish, function(A, driver="nouveau"))
    assert found is not None
    assert [*found.rejects.values()] == [1]
    each_names(found.rejects, ("nouveau", "VFIO driver"))


def test_a_rule_of_a_node_has_its_path_and_where_no_rule_begins_there_is_none() -> None:
    wish = Spec(rules=(NodeRule("x/kvm", "/dev/kvm", 2, place="config.yaml:4"),))
    found = told("config.yaml:4", wish)
    assert found is not None
    assert found.matches == ("/dev/kvm",)
    assert told("config.yaml:5", wish) is None
