# SPDX-License-Identifier: Apache-2.0
"""The questions of an Allocate: does it matter which pod asks, and has another pod a part of the groups?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import Allocations, Holder, Reservations
from nodeagent.model.desired import Desired, Discovery, PciRule, PciSelector
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Isolation
from nodeagent.policy.offer import allocating, turn
from nodeagent.policy.offer.turn import Decision
from tests.facts import names
from tests.policy.samples import GPU, function, holders, host, snapshot

A, B = "0000:65:00.0", "0000:66:00.0"


def first(*functions: Any, **options: Any) -> Decision:
    """The decision about these functions of one resource."""
    rule = PciRule(GPU, (PciSelector(vendors=("10de",)),), **options)
    return turn.first(snapshot(host(*functions), Desired(Discovery(enabled=False), rules=(rule,))))


OTHER = Holder("ns", "old", ResourceName(GPU))


def test_an_id_that_the_kubelet_lists_with_another_pod_is_refused_with_that_pod() -> None:
    decision = first(function(A))
    used = turn.following(decision, replace(decision.snapshot, allocations=Allocations.of({A: OTHER})))
    resource = used.resources[ResourceName(GPU)]
    with pytest.raises(Refused) as caught:
        allocating.check_unused(resource, [A], frozenset(), used)
    names(caught.value.what, A, "ns/old")
    allocating.check_unused(resource, [A], frozenset({(ResourceName(GPU), A)}), used)


def test_a_part_of_a_group_that_another_pod_has_is_refused_with_that_pod() -> None:
    decision = first(function(A), function(B))
    resource = decision.resources[ResourceName(GPU)]
    assert not allocating.is_part_in_use(resource, [A], decision)
    assert not allocating.is_contended(resource, [A, B], decision)
    for marks in (
        replace(decision.snapshot, allocations=Allocations.of({B: OTHER})),
        replace(decision.snapshot, reservations=Reservations(pending={B: OTHER})),
    ):
        used = turn.following(decision, marks)
        resource = used.resources[ResourceName(GPU)]
        with pytest.raises(Refused) as caught:
            allocating.check_unused(resource, [A], frozenset(), used)
        names(caught.value.what, A, B, "ns/old")
        allocating.check_unused(resource, [A], frozenset({(ResourceName(GPU), B)}), used)
        assert allocating.is_part_in_use(resource, [A], used)
        assert allocating.is_contended(resource, [A], used)


@pytest.mark.parametrize("isolation", list(Isolation))
def test_it_matters_who_asks_for_what_somebody_has_already(isolation: Isolation) -> None:
    decision = first(function(A), isolation=isolation)
    resource = decision.resources[ResourceName(GPU)]
    assert not allocating.is_contended(resource, [A], decision)
    held = turn.following(
        decision, snapshot(decision.snapshot.host, decision.snapshot.desired, holders=holders(A))
    )
    assert allocating.is_contended(held.resources[ResourceName(GPU)], [A], held)
