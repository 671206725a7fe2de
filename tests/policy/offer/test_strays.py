# SPDX-License-Identifier: Apache-2.0
"""What left the host while a pod held it keeps its group for that pod."""

from __future__ import annotations

from nodeagent.model.allocation import Holder
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.resource import ReasonCode
from nodeagent.policy.offer import turn
from tests.policy.samples import GPU, function, holders, host, snapshot

A, B = "0000:65:00.0", "0000:65:00.1"
WHOLE, REST = host(function(A), function(B)), host(function(B))


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
        assert f"held by ns/{pod}" in device.reason.what
