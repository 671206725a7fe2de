# SPDX-License-Identifier: Apache-2.0
"""Turns, one after the other: what is remembered on purpose, what ends by itself, what is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

from nodeagent.model.allocation import Allocations, Knowledge, Reservations
from nodeagent.model.host import Host, Kind
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName
from nodeagent.model.resource import Isolation, ReasonCode, Resource
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.policy.offer import turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import (
    GPU,
    NODES,
    RULE,
    WISH,
    function,
    holders,
    host,
    ids,
    reserved,
    snapshot,
    vgpu,
)

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
ALL = Spec()  # discovery alone
T4 = "pci-10de.nodeagent/1eb8"
KVM = NodeRule("devices.example.com/kvm", "/dev/kvm", count=2)


def listed(decision: Decision, name: str = GPU) -> dict[str, ReasonCode | None]:
    """Device id → code of its reason."""
    devices = decision.resources[ResourceName(name)].devices
    return {device.id: device.reason.code if device.reason else None for device in devices}


def turns(*hosts: Host, wish: Spec = WISH) -> Decision:
    decision = turn.decide_first(snapshot(hosts[0], wish))
    for each in hosts[1:]:
        decision = turn.decide_next(decision, snapshot(each, wish))
    return decision


def test_a_rule_that_finds_nothing_is_a_resource_with_an_empty_list() -> None:
    found = turn.decide_first(snapshot(host())).resources
    assert dict(found) == {ResourceName(GPU): Resource(ResourceName(GPU), Kind.PCI)}


def test_an_entry_of_the_cr_that_finds_nothing_here_is_no_resource_of_this_node() -> None:
    """The CR is for all nodes: what others have is not shown on this one."""
    rule = PciRule(GPU, (PciSelector(("10de",), ("1eb8",)),), permitted=True)
    wish = Spec(rules=(rule,), kubevirt_rules={"10de:1eb8": rule})
    assert turns(host(), wish=wish).resources == {}
    assert listed(turns(host(), host(function(A)), wish=wish)) == {A: None}
    assert listed(turns(host(function(A)), host(), wish=wish)) == {}


def test_two_ids_with_one_name_are_one_resource() -> None:
    wish = Spec(aliases=((T4, GPU), ("pci-10de.nodeagent/20f1", GPU)))
    found = turns(host(function(A, 1), function(B, 2, device="20f1")), wish=wish)
    assert listed(found) == {A: None, B: None}
    assert list(found.resources) == [GPU]


def test_a_device_that_comes_is_listed_and_one_that_goes_is_dropped() -> None:
    assert listed(turns(host(), host(function(A)))) == {A: None}
    assert listed(turns(host(function(A)), host())) == {}


def test_a_device_that_goes_while_a_pod_holds_it_stays_until_its_release() -> None:
    decision = turn.decide_first(snapshot(host(function(A)), holders=holders(A)))
    decision = turn.decide_next(decision, snapshot(host(), holders=holders(A)))
    assert listed(decision) == {A: ReasonCode.GONE}
    assert listed(turn.decide_next(decision, snapshot(host()))) == {}


def test_a_device_that_goes_before_the_kubelet_has_named_its_pod_stays_as_well() -> None:
    given = reserved([A])
    decision = turn.decide_first(replace(snapshot(host(function(A))), reservations=given))
    decision = turn.decide_next(decision, replace(snapshot(host()), reservations=given))
    assert listed(decision) == {A: ReasonCode.GONE}
    (told,) = decision.resources[ResourceName(GPU)].devices
    assert told.reason is not None
    names(told.reason.hint, "pod")
    decision = turn.decide_next(decision, snapshot(host(), holders=holders(A)))
    assert listed(decision) == {A: ReasonCode.GONE}
    assert listed(turn.decide_next(decision, snapshot(host()))) == {}


def test_a_resource_whose_rule_goes_right_after_an_allocate_keeps_what_was_given() -> None:
    given = reserved([A])
    decision = turn.decide_first(replace(snapshot(host(function(A))), reservations=given))
    other = snapshot(host(function(A)), Spec(Discovery(enabled=False)))
    decision = turn.decide_next(decision, replace(other, reservations=given))
    assert listed(decision) == {A: ReasonCode.EXCLUDED}


def test_a_held_device_that_its_group_lets_go_of_first_is_told_as_gone_when_it_is() -> None:
    """Linux takes a function out of its group before it removes it."""
    held = holders(A)
    there, unbound = host(function(A)), host(function(A, driver=None))
    alone = replace(
        unbound, groups={number: group._replace(members=()) for number, group in unbound.groups.items()}
    )
    decision = turn.decide_first(snapshot(there, holders=held))
    for each in (alone, host()):
        decision = turn.decide_next(decision, snapshot(each, holders=held))
    assert listed(decision) == {A: ReasonCode.GONE}


def test_a_discovered_device_that_changes_its_driver_stays_listed_with_the_reason() -> None:
    ready, taken = host(function(A)), host(function(A, driver="nvidia"))
    decision = turns(ready, taken, wish=ALL)
    assert listed(decision, T4) == {A: ReasonCode.DRIVER_CHANGED}
    assert listed(turns(ready, taken, ready, wish=ALL), T4) == {A: None}
    assert dict(turns(taken, wish=ALL).resources) == {}


def test_another_device_at_the_same_address_is_not_taken_for_the_old_one() -> None:
    nic = function(A, driver="e1000e", pci_class="020000", vendor="8086", inode=2)
    assert listed(turns(host(function(A)), host(nic), wish=ALL), T4) == {}


def test_a_resource_that_was_served_stays_with_an_empty_list() -> None:
    decision = turns(host(function(A)), host(), host(function(B, 2, device="20f1")), wish=ALL)
    assert listed(decision, T4) == {}


def test_names_that_are_learnt_later_make_nobody_forget_what_was_offered() -> None:
    taken = host(function(A, driver="nvidia"))
    decision = turns(host(function(A)), taken, wish=ALL)
    names = {"10de": "NVIDIA Corporation", "10de:20f1": "GA100 [A100]"}
    more = replace(taken, functions={**taken.functions, **host(function(B, 2, device="20f1")).functions})
    after = turn.decide_next(decision, snapshot(more, ALL, names=names))
    assert listed(after, T4) == {A: ReasonCode.DRIVER_CHANGED}
    assert "nvidia.com/GA100_A100" in after.resources


def test_new_names_keep_a_resource_that_is_empty_and_end_what_was_released() -> None:
    decision = turn.decide_first(snapshot(host(function(A)), ALL, holders=holders(A, resource=T4)))
    decision = turn.decide_next(decision, snapshot(host(), ALL, holders=holders(A, resource=T4)))
    assert listed(decision, T4) == {A: ReasonCode.GONE}
    assert listed(turn.decide_next(decision, snapshot(host(), ALL, names={"1": "x"})), T4) == {}


def test_a_resource_whose_rule_is_gone_goes_and_takes_its_memories_along() -> None:
    decision = turn.decide_first(snapshot(host(function(A))))
    assert dict(turn.decide_next(decision, snapshot(host(function(A)), Spec())).resources).keys() == {T4}


def test_a_resource_whose_rule_is_gone_waits_for_the_pod_that_holds_of_it() -> None:
    here, rest = host(function(A, 1), function(B, 2)), Spec(Discovery(enabled=False))
    decision = turn.decide_first(snapshot(here, holders=holders(A)))
    decision = turn.decide_next(decision, snapshot(here, rest, holders=holders(A)))
    assert listed(decision) == {A: ReasonCode.EXCLUDED}
    assert dict(turn.decide_next(decision, snapshot(here, rest)).resources) == {}


def test_a_device_that_moves_to_another_resource_is_given_there_only_after_its_release() -> None:
    here, name = host(function(A)), "example.com/new"
    moved = Spec(rules=(PciRule(name, RULE.selectors),))
    decision = turn.decide_first(snapshot(here, holders=holders(A)))
    decision = turn.decide_next(decision, snapshot(here, moved, holders=holders(A)))
    assert listed(decision) == {A: ReasonCode.EXCLUDED}
    assert listed(decision, name) == {A: ReasonCode.GROUP_HELD}
    decision = turn.decide_next(decision, snapshot(here, moved))
    assert listed(decision, name) == {A: None}
    assert list(decision.resources) == [name]


def test_a_held_function_that_disappears_into_a_bundle_stays_listed() -> None:
    here = host(function(A), function(B))
    bundle = Spec(WISH.discovery, rules=(replace(RULE, isolation=Isolation.BUNDLE),))
    decision = turn.decide_first(snapshot(here, holders=holders(B)))
    decision = turn.decide_next(decision, snapshot(here, bundle, holders=holders(B)))
    assert listed(decision) == {A: ReasonCode.GROUP_HELD, B: ReasonCode.EXCLUDED}


def test_a_function_that_moves_to_another_group_is_remembered_there() -> None:
    moved = [host(function(A, number, driver="nvidia")) for number in (5, 1, 9)]
    decision = turns(host(function(A, 3)), *moved, wish=ALL)
    assert listed(decision, T4) == {A: ReasonCode.DRIVER_CHANGED}
    assert list(decision.offers) == [9]


def test_a_change_touches_only_its_own_group_and_resource() -> None:
    rules = (RULE, PciRule("example.com/nic", (PciSelector(vendors=("8086",)),)), KVM)
    wish = Spec(WISH.discovery, rules=rules)
    one, two, nic = function(A, 1), function(B, 2), function(C, 3, vendor="8086")
    here = host(one, two, nic)
    before = turn.decide_first(snapshot(here, wish))
    held = replace(here, functions={**here.functions, two.address: two._replace(enable=1)})
    after = turn.decide_next(before, snapshot(held, wish, holders=before.snapshot.allocations.holders))
    assert listed(after) == {A: None, B: ReasonCode.HELD_OUTSIDE}
    for name in ("example.com/nic", KVM.name):
        assert after.resources[ResourceName(name)] is before.resources[ResourceName(name)]
    for group in (1, 3):
        unit = GroupNumber(group)
        assert after.offers[unit] is before.offers[unit]


def test_what_changes_nothing_for_the_kubelet_changes_no_object() -> None:
    here = host(function(A))
    before = turn.decide_first(snapshot(here))
    awake = host(function(A, power_state="D0"))
    after = turn.decide_next(before, snapshot(awake))
    assert after.resources[ResourceName(GPU)] is before.resources[ResourceName(GPU)]


def test_a_holder_is_felt_by_the_whole_group_and_nowhere_else() -> None:
    here = host(function(A, 1), function(B, 1), function(C, 2))
    before = turn.decide_first(snapshot(here))
    after = turn.decide_next(before, snapshot(here, holders=holders(A)))
    assert listed(after) == {A: None, B: ReasonCode.GROUP_HELD, C: None}
    by_number = turn.decide_next(before, snapshot(here, holders=holders("2", resource="kubevirt/other")))
    assert listed(by_number) == {A: None, B: None, C: ReasonCode.GROUP_HELD}


def test_each_device_of_a_bundle_keeps_its_own_vgpu_type_when_only_health_is_updated() -> None:
    rule = PciRule(GPU, (PciSelector(vgpu_types=("1147", "1148")),), Isolation.BUNDLE)
    wish = Spec(Discovery(enabled=False), rules=(rule,))
    one, two = vgpu("0000:65:00.4"), vgpu("0000:65:00.5", vgpu_type="1148")
    decision = turn.decide_first(snapshot(host(one, two), wish))
    before = decision.snapshot
    assert listed(decision) == {"0000:65:00.4": None}
    admitting = replace(before, reservations=Reservations(frozenset({"0000:65:00.5"})))
    decision = turn.decide_next(turn.decide_next(decision, admitting), before)
    assert listed(decision) == {"0000:65:00.4": None}


def test_the_pod_that_is_being_admitted_may_take_more_of_a_group_but_of_no_resource_twice() -> None:
    here = host(function(A), function(B))
    free = turn.decide_first(snapshot(here))
    other = turn.decide_next(free, snapshot(here, reservations=reserved([A], "example.com/usb")))
    assert listed(other) == {A: ReasonCode.GROUP_HELD, B: None}, "as another resource"
    same = turn.decide_next(other, snapshot(here, reservations=reserved([A])))
    assert listed(same) == {A: None, B: ReasonCode.GROUP_HELD}
    settled = turn.decide_next(
        free, snapshot(here, reservations=reserved([A], "example.com/usb", admitting=False))
    )
    assert listed(settled) == {A: ReasonCode.GROUP_HELD, B: ReasonCode.GROUP_HELD}


def test_a_node_comes_and_goes_with_its_path() -> None:
    wish = Spec(rules=(KVM,))
    absent, present = host(), host(nodes=NODES | {KVM.path})
    gone = turns(present, absent, wish=wish)
    assert set(listed(gone, KVM.name).values()) == {ReasonCode.NODE_MISSING}
    assert set(listed(turns(present, absent, present, wish=wish), KVM.name).values()) == {None}


def test_new_numbers_for_a_node_are_heard_while_a_pod_holds_a_share() -> None:
    held = holders("kvm-1", resource=KVM.name)
    before = turn.decide_first(snapshot(host(), Spec(rules=(KVM,)), holders=held))
    more = turn.decide_next(before, snapshot(host(), Spec(rules=(replace(KVM, count=3),)), holders=held))
    assert list(listed(more, KVM.name)) == ["kvm-0", "kvm-1", "kvm-2"]
    fewer = turn.decide_next(before, snapshot(host(), Spec(rules=(replace(KVM, count=1),)), holders=held))
    assert listed(fewer, KVM.name) == {"kvm-0": ReasonCode.NODE_MISSING, "kvm-1": ReasonCode.EXCLUDED}


def test_a_node_whose_rule_is_gone_offers_no_share_but_the_one_that_is_held() -> None:
    here = host(nodes=NODES | {KVM.path})
    held = holders("kvm-1", resource=KVM.name)
    before = turn.decide_first(snapshot(here, Spec(rules=(KVM,)), holders=held))
    after = turn.decide_next(before, snapshot(here, Spec(), holders=held))
    assert listed(after, KVM.name) == {"kvm-1": ReasonCode.EXCLUDED}
    assert after.resources[ResourceName(KVM.name)].kind is Kind.NODE
    assert dict(turn.decide_next(after, snapshot(here, Spec())).resources) == {}


def test_options_of_a_rule_reach_the_resource() -> None:
    rule = replace(RULE, isolation=Isolation.NONE, cdi=True)
    found = turns(host(), wish=Spec(WISH.discovery, rules=(rule,))).resources[ResourceName(GPU)]
    assert (found.isolation, found.cdi, found.devices) == (Isolation.NONE, True, ())


def test_an_offer_is_found_by_the_id_of_its_device_only() -> None:
    bundle = Spec(WISH.discovery, rules=(replace(RULE, isolation=Isolation.BUNDLE),))
    decision = turns(host(function(A), function(B)), wish=bundle)
    found = decision.offer_of(A)
    assert found is not None
    assert found.host_devices == (PciAddress(A), PciAddress(B))
    assert decision.offer_of(B) is None
    assert decision.offer_of("kvm-0") is None
    assert ids(decision.resources[ResourceName(GPU)].devices) == [A]


def test_a_resource_that_comes_lists_what_a_pod_holds_of_it_already() -> None:
    """After a restart of the daemon, say: the pod's device has gone, and another one of its name comes."""
    held = holders(B, resource=T4)
    before = turn.decide_first(snapshot(host(), ALL, holders=held))
    assert before.resources == {}
    after = turn.decide_next(before, snapshot(host(function(A)), ALL, holders=held))
    assert listed(after, T4) == {A: None, B: ReasonCode.GONE}


class Unwalkable(dict[Any, Any]):
    """A table that can be asked for one thing, but not be walked."""

    def _walked(self, *_: object) -> NoReturn:
        raise AssertionError("all of it is walked")

    __iter__ = keys = items = values = __or__ = _walked


def test_a_turn_after_an_allocate_walks_neither_holders_nor_resources() -> None:
    here = host(*(function(f"0000:{bus}:00.0", bus) for bus in range(60, 70)))
    held = holders("0000:60:00.0", "0000:61:00.0", "0000:62:00.0")
    before = turn.decide_first(snapshot(here, holders=held))
    allocations = Allocations({ResourceName(GPU): Unwalkable(held)}, Knowledge.COMPLETE)
    vars(allocations)["holders"] = Unwalkable(held)  # which was found for the turn before
    before = replace(
        before,
        snapshot=replace(before.snapshot, allocations=allocations),
        offers=Unwalkable(before.offers),
        by_resource=Unwalkable(before.by_resource),
        matched=Unwalkable(before.matched),
        resources=Unwalkable(before.resources),
    )
    given = replace(before.snapshot, reservations=Reservations(frozenset({"0000:65:00.0", "0000:60:00.0"})))
    after = turn.decide_next(before, given)
    assert after.resources is before.resources
    assert after.offers is before.offers
    assert after.by_resource is before.by_resource
    assert after.matched is before.matched
