# SPDX-License-Identifier: Apache-2.0
"""Devices in use that left the host or their rule: listed until released, their groups in use."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.allocation import Holder
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import not_offered, turn
from tests.facts import names
from tests.policy.samples import GPU, UUID, function, holders, host, mdev, snapshot

A, B = "0000:65:00.0", "0000:65:00.1"
WHOLE, REST = host(function(A), function(B)), host(function(B))
HELD = {A: frozenset({GroupNumber(1)})}


def answered(now: Snapshot) -> Snapshot:
    """The answer to the Allocate of A had the node of group 1."""
    return replace(now, allocations=replace(now.allocations, groups=HELD))


def code_of_rest(decision: turn.Decision) -> ReasonCode | None:
    device = decision.resources[ResourceName(GPU)].device(B)
    assert device is not None
    return None if device.reason is None else device.reason.code


def test_a_device_in_use_that_left_the_host_is_listed_as_gone() -> None:
    holder = Holder("ns", "vm", ResourceName(GPU), numa=1)
    device = not_offered.build_device(A, holder, snapshot(host()))
    assert device.reason is not None
    assert (device.reason.code, device.numa) == (ReasonCode.GONE, 1)
    names(device.reason.message, "ns/vm")


def test_a_device_in_use_that_no_rule_matches_is_excluded_or_has_a_worse_reason() -> None:
    held = holders(A)
    (holder,) = held.values()
    fine = not_offered.build_device(A, holder, snapshot(host(function(A)), holders=held))
    assert fine.reason is not None
    assert fine.reason.code is ReasonCode.EXCLUDED
    changed = function(driver="nvidia")
    worse = not_offered.build_device(A, holder, snapshot(host(changed), holders=held))
    assert worse.reason is not None
    assert worse.reason.code is ReasonCode.DRIVER_CHANGED


def test_a_share_of_a_node_that_no_rule_names_is_excluded() -> None:
    device = not_offered.build_device("kvm-0", Holder("ns", "vm", ResourceName("a.b/kvm")), snapshot(host()))
    assert device.reason is not None
    assert device.reason.code is ReasonCode.EXCLUDED


def test_a_group_stays_in_use_until_its_unplugged_device_is_released() -> None:
    decision = turn.decide_first(snapshot(WHOLE, holders=holders(A)))
    decision = turn.decide_next(decision, snapshot(REST, holders=holders(A)))
    assert decision.snapshot.unplugged == {(A, 1)}
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD
    other = {**holders(A), "x": Holder("ns", "q", ResourceName("a.b/c"))}
    decision = turn.decide_next(decision, snapshot(REST, holders=other))
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD
    decision = turn.decide_next(decision, snapshot(REST))
    assert code_of_rest(decision) is None


def test_a_device_that_came_back_is_not_unplugged() -> None:
    decision = turn.decide_first(snapshot(WHOLE, holders=holders(A)))
    for here in (REST, WHOLE):
        decision = turn.decide_next(decision, snapshot(here, holders=holders(A)))
    assert decision.snapshot.unplugged == frozenset()
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD


def test_a_free_device_that_was_unplugged_keeps_nothing_in_use() -> None:
    decision = turn.decide_next(turn.decide_first(snapshot(WHOLE)), snapshot(REST))
    assert decision.snapshot.unplugged == frozenset()
    assert code_of_rest(decision) is None


def test_the_reason_names_the_pod_as_the_kubelet_names_it_now() -> None:
    decision = turn.decide_first(snapshot(WHOLE, holders=holders(A)))
    decision = turn.decide_next(decision, snapshot(REST, holders=holders(A)))
    for pod in ("q", "r"):
        held = {A: Holder("ns", pod, ResourceName(GPU))}
        decision = turn.decide_next(decision, snapshot(REST, holders=held))
        device = decision.resources[ResourceName(GPU)].device(B)
        assert device is not None
        assert device.reason is not None
        assert device.reason.code is ReasonCode.GROUP_HELD
        names(device.reason.message, f"ns/{pod}", A)


def test_the_group_of_a_device_that_left_before_the_daemon_started_is_in_the_answer() -> None:
    held = answered(snapshot(REST, holders=holders(A)))
    late = turn.decide_next(turn.decide_first(snapshot(REST, holders=holders(A))), held)
    early = turn.decide_next(turn.decide_first(answered(snapshot(host(), holders=holders(A)))), held)
    for decision in (turn.decide_first(held), late, early):
        assert decision.snapshot.unplugged == {(A, 1)}
        assert code_of_rest(decision) is ReasonCode.GROUP_HELD
        assert code_of_rest(turn.decide_next(decision, snapshot(REST))) is None


def test_a_new_group_with_the_number_is_not_in_use() -> None:
    """The daemon has seen it go; what it has not seen may be the same."""
    decision = turn.decide_first(answered(snapshot(WHOLE, holders=holders(A))))
    elsewhere = host(function("0000:3b:00.0", 2))
    for here in (elsewhere, REST):
        decision = turn.decide_next(decision, answered(snapshot(here, holders=holders(A))))
    assert decision.snapshot.unplugged == frozenset()
    assert code_of_rest(decision) is None


@pytest.mark.parametrize(
    ("gone", "here", "held"),
    [
        (A, (function(B),), True),
        (A, (function("0000:66:00.0"), function("0000:64:00.0", pci_class="060400", driver=None)), True),
        (A, (function("0000:66:00.0"),), False),
        (A, (mdev(group=1),), False),
        (UUID, (function(B),), False),
        (UUID, (mdev(uuid="0f9c6f4e-3f4c-4b13-9d63-0e5a1cf2b9b7", group=1),), False),
        ("somebody's", (function(B),), True),
    ],
    ids=["bus", "bridge", "other bus", "an mdev's", "was an mdev's", "both mdevs", "another plugin's id"],
)
def test_only_a_group_that_can_have_had_the_device_is_in_use(
    gone: str, here: tuple[HostDevice, ...], held: bool
) -> None:
    now = snapshot(host(*here), holders=holders(gone))
    groups = {gone: frozenset({GroupNumber(1)})}
    decision = turn.decide_first(replace(now, allocations=replace(now.allocations, groups=groups)))
    assert decision.snapshot.unplugged == ({(gone, 1)} if held else frozenset())
