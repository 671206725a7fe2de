# SPDX-License-Identifier: Apache-2.0
"""A resource that moves from its device plugin to DRA, or back: each device is advertised by one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.agent import joining
from nodeagent.model.allocation import Holder
from nodeagent.model.claim import Claim, ClaimDevice, ClaimRef
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import ReasonCode, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, Spec
from nodeagent.policy.offer import handover, turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import GPU, RULE, function, holders, host, snapshot

A, B, C = "0000:65:00.0", "0000:66:00.0", "0000:67:00.0"
BY_DRA = Spec(Discovery(enabled=False), rules=(replace(RULE, via=Via.DRA),))
HERE = host(function(A), function(B, 2), function(C, 3))
NAME = ResourceName(GPU)


def claim(*device_ids: str, parts: tuple[str, ...] = ()) -> dict[str, Claim]:
    devices = (ClaimDevice("gpu", "pool", "name", NAME, each, parts or (each,)) for each in device_ids)
    return {"uid": Claim(ClaimRef("ns", "vm-gpu", "uid"), tuple(devices))}


def with_claims(now: Snapshot, claims: Mapping[str, Claim]) -> Snapshot:
    allocations = joining.add_claims(now.allocations, claims.values(), now.allocations)
    return replace(now, claims=claims, allocations=allocations)


def offered(decision: Decision) -> dict[str, ReasonCode | None]:
    """Device id → the code of its Reason, of all devices of the resource."""
    devices = decision.resource(NAME).devices
    return {each.id: each.reason and each.reason.code for each in devices}


def listed(decision: Decision) -> list[str]:
    """The devices that the device plugin lists."""
    found = handover.list_for_plugins(decision, {}).get(NAME)
    return [] if found is None else [each.id for each in found.devices]


def test_a_resource_by_dra_has_no_device_plugin() -> None:
    decision = turn.decide_first(snapshot(HERE, BY_DRA))
    assert decision.resource(NAME).via is Via.DRA
    assert offered(decision) == {A: None, B: None, C: None}
    assert NAME not in handover.list_for_plugins(decision, {})


def test_the_device_plugin_of_a_resource_that_moved_to_dra_lists_the_devices_of_its_pods() -> None:
    before = turn.decide_first(snapshot(HERE, holders=holders(A)))
    assert listed(before) == [A, B, C]
    moved = turn.decide_next(before, snapshot(HERE, BY_DRA, holders=holders(A)))
    assert listed(moved) == [A]
    device = moved.resource(NAME).device(A)
    assert device is not None and device.reason is not None
    assert device.reason.code is ReasonCode.OTHER_API
    names(device.reason.message, "ns/vm", "device plugin")
    released = turn.decide_next(moved, snapshot(HERE, BY_DRA))
    assert listed(released) == []
    assert offered(released) == {A: None, B: None, C: None}


def test_a_device_of_a_claim_is_unhealthy_for_the_device_plugin_and_healthy_for_dra() -> None:
    by_dra = turn.decide_first(with_claims(snapshot(HERE, BY_DRA), claim(A)))
    assert offered(by_dra) == {A: None, B: None, C: None}
    assert listed(by_dra) == []
    moved = turn.decide_next(by_dra, with_claims(snapshot(HERE), claim(A)))
    assert offered(moved) == {A: ReasonCode.OTHER_API, B: None, C: None}
    assert listed(moved) == [A, B, C]
    reason = moved.resource(NAME).devices[0].reason
    assert reason is not None
    names(reason.message, "claim ns/vm-gpu", "DRA")
    assert offered(turn.decide_next(moved, snapshot(HERE))) == {A: None, B: None, C: None}


def test_a_claim_makes_the_other_devices_of_the_group_unavailable() -> None:
    board = host(function(A), function("0000:65:00.1"), function(B, 2))
    decision = turn.decide_first(with_claims(snapshot(board, BY_DRA), claim(A)))
    assert offered(decision) == {A: None, "0000:65:00.1": ReasonCode.GROUP_HELD, B: None}


def test_all_functions_of_a_board_in_a_claim_are_in_use() -> None:
    now = with_claims(snapshot(HERE, BY_DRA), claim(A, parts=(A, B)))
    assert str(now.holder(A)) == str(now.holder(B)) == "claim ns/vm-gpu"
    assert offered(turn.decide_first(now)) == {A: None, B: ReasonCode.GROUP_HELD, C: None}


def test_a_device_is_unhealthy_for_the_device_plugin_while_a_slice_contains_it() -> None:
    before = turn.decide_first(replace(snapshot(HERE, BY_DRA), in_slices=frozenset({A, B})))
    assert offered(before) == {A: None, B: None, C: None}
    moved = turn.decide_next(before, replace(snapshot(HERE), in_slices=frozenset({A})))
    assert offered(moved) == {A: ReasonCode.OTHER_API, B: None, C: None}
    assert offered(turn.decide_next(moved, snapshot(HERE))) == {A: None, B: None, C: None}


def test_a_device_of_a_claim_stays_by_dra_without_its_rule() -> None:
    nothing = Spec(Discovery(enabled=False))
    decision = turn.decide_first(with_claims(snapshot(HERE, nothing), claim(A)))
    assert offered(decision) == {A: ReasonCode.EXCLUDED}
    assert listed(decision) == []


def test_a_pod_and_a_claim_with_one_device_are_both_known() -> None:
    """A pod that the kubelet lists with the device of a claim is the one that is shown."""
    now = with_claims(snapshot(HERE, BY_DRA, holders=holders(A)), claim(A, B))
    assert str(now.holder(A)) == "ns/vm"
    assert now.holder(B) == Holder("ns", "vm-gpu", NAME, claim=True)
    assert listed(turn.decide_first(now)) == [A]
