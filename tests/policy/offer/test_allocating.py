# SPDX-License-Identifier: Apache-2.0
"""The questions of an Allocate: does it matter which pod asks, and has another pod a part of the groups?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import Allocations, Holder, Reservations
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Isolation
from nodeagent.model.spec import Discovery, PciRule, PciSelector, Spec
from nodeagent.policy.offer import allocating, turn
from nodeagent.policy.offer.allocating import Request
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import GPU, function, holders, host, snapshot

A, B = "0000:65:00.0", "0000:66:00.0"


def first(*functions: Any, **options: Any) -> Decision:
    """The decision about these functions of one resource."""
    rule = PciRule(GPU, (PciSelector(vendors=("10de",)),), **options)
    return turn.decide_first(snapshot(host(*functions), Spec(Discovery(enabled=False), rules=(rule,))))


def request(decision: Decision, *device_ids: str) -> Request:
    """The request for these devices."""
    return Request(decision.resources[ResourceName(GPU)], device_ids, decision)


OTHER = Holder("ns", "old", ResourceName(GPU))


def test_an_id_that_the_kubelet_lists_with_another_pod_is_refused_with_that_pod() -> None:
    decision = first(function(A))
    used = turn.decide_next(decision, replace(decision.snapshot, allocations=Allocations.of({A: OTHER})))
    with pytest.raises(AllocationRefused) as caught:
        allocating.check_unused(request(used, A), frozenset(), None)
    names(caught.value.what, A, "ns/old")
    allocating.check_unused(request(used, A), frozenset({(ResourceName(GPU), A)}), None)


def test_a_part_of_a_group_that_another_pod_has_is_refused_with_that_pod() -> None:
    decision = first(function(A), function(B))
    assert not allocating.is_part_in_use(request(decision, A))
    assert not allocating.is_contended(request(decision, A, B))
    for marks in (
        replace(decision.snapshot, allocations=Allocations.of({B: OTHER})),
        replace(decision.snapshot, reservations=Reservations(pending={B: OTHER})),
    ):
        used = turn.decide_next(decision, marks)
        with pytest.raises(AllocationRefused) as caught:
            allocating.check_unused(request(used, A), frozenset(), None)
        names(caught.value.what, A, B, "ns/old")
        allocating.check_unused(request(used, A), frozenset({(ResourceName(GPU), B)}), None)
        assert allocating.is_part_in_use(request(used, A))
        assert allocating.is_contended(request(used, A))


@pytest.mark.parametrize("isolation", list(Isolation))
def test_it_matters_who_asks_for_what_somebody_has_already(isolation: Isolation) -> None:
    decision = first(function(A), isolation=isolation)
    assert not allocating.is_contended(request(decision, A))
    held = turn.decide_next(
        decision, snapshot(decision.snapshot.host, decision.snapshot.spec, holders=holders(A))
    )
    assert allocating.is_contended(request(held, A))
