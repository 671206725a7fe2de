# SPDX-License-Identifier: Apache-2.0
"""What left the host while a pod held it keeps its group for that pod."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.model.allocation import Holder
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.resource import ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import turn
from tests.facts import names
from tests.policy.samples import GPU, UUID, function, holders, host, mdev, snapshot

A, B = "0000:65:00.0", "0000:65:00.1"
WHOLE, REST = host(function(A), function(B)), host(function(B))
HELD = {A: frozenset({GroupNumber(1)})}


def told(now: Snapshot) -> Snapshot:
    """The answer to the Allocate of A had the node of group 1."""
    return replace(now, allocations=replace(now.allocations, groups=HELD))


def code_of_rest(decision: turn.Decision) -> ReasonCode | None:
    device = decision.resources[ResourceName(GPU)].device(B)
    assert device is not None
    return None if device.reason is None else device.reason.code


def test_the_rest_of_the_group_waits_until_the_pod_lets_go_of_what_has_left() -> None:
    decision = turn.first(snapshot(WHOLE, holders=holders(A)))
    decision = turn.following(decision, snapshot(REST, holders=holders(A)))
    assert decision.snapshot.strays == {GroupNumber(1): frozenset({A})}
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD
    other = {**holders(A), "x": Holder("ns", "q", ResourceName("a.b/c"))}
    decision = turn.following(decision, snapshot(REST, holders=other))
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD
    decision = turn.following(decision, snapshot(REST))
    assert decision.snapshot.strays == {}
    assert code_of_rest(decision) is None


def test_what_has_come_back_is_no_stray() -> None:
    decision = turn.first(snapshot(WHOLE, holders=holders(A)))
    for here in (REST, WHOLE):
        decision = turn.following(decision, snapshot(here, holders=holders(A)))
    assert decision.snapshot.strays == {}
    assert code_of_rest(decision) is ReasonCode.GROUP_HELD


def test_what_nobody_held_leaves_nothing_behind() -> None:
    decision = turn.following(turn.first(snapshot(WHOLE)), snapshot(REST))
    assert decision.snapshot.strays == {}
    assert code_of_rest(decision) is None


def test_another_name_of_whoever_had_what_has_left_is_told() -> None:
    decision = turn.first(snapshot(WHOLE, holders=holders(A)))
    decision = turn.following(decision, snapshot(REST, holders=holders(A)))
    for pod in ("q", "r"):
        held = {A: Holder("ns", pod, ResourceName(GPU))}
        decision = turn.following(decision, snapshot(REST, holders=held))
        device = decision.resources[ResourceName(GPU)].device(B)
        assert device is not None
        assert device.reason is not None
        assert device.reason.code is ReasonCode.GROUP_HELD
        names(device.reason.what, f"ns/{pod}", A)


def test_what_left_before_there_was_a_daemon_is_known_by_what_its_pod_was_given() -> None:
    held = told(snapshot(REST, holders=holders(A)))
    late = turn.following(turn.first(snapshot(REST, holders=holders(A))), held)
    early = turn.following(turn.first(told(snapshot(host(), holders=holders(A)))), held)
    for decision in (turn.first(held), late, early):
        assert decision.snapshot.strays == {GroupNumber(1): frozenset({A})}
        assert code_of_rest(decision) is ReasonCode.GROUP_HELD
        assert code_of_rest(turn.following(decision, snapshot(REST))) is None


def test_a_group_whose_number_comes_again_is_not_the_one_that_was_given() -> None:
    """The daemon has seen it go; what it has not seen may be the same."""
    decision = turn.first(told(snapshot(WHOLE, holders=holders(A))))
    elsewhere = host(function("0000:3b:00.0", 2))
    for here in (elsewhere, REST):
        decision = turn.following(decision, told(snapshot(here, holders=holders(A))))
    assert decision.snapshot.strays == {}
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
def test_of_a_group_that_no_daemon_has_seen_before_only_what_can_be_of_one_counts(
    gone: str, here: tuple[HostDevice, ...], held: bool
) -> None:
    now = snapshot(host(*here), holders=holders(gone))
    groups = {gone: frozenset({GroupNumber(1)})}
    decision = turn.first(replace(now, allocations=replace(now.allocations, groups=groups)))
    assert decision.snapshot.strays == ({GroupNumber(1): frozenset({gone})} if held else {})
