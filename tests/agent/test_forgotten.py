# SPDX-License-Identifier: Apache-2.0
"""What pods had counts for a while after the kubelet has forgotten them, with what came with it."""

from __future__ import annotations

from nodeagent.agent.forgotten import Forgotten
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.allocation import Allocations, Holder
from nodeagent.model.ids import GroupNumber, ResourceName
from tests.policy.samples import function

POD = Holder("ns", "pod", ResourceName("example.com/gpu"), None)
HELD, BROUGHT, OTHER = (function(f"0000:01:00.{number}", group=GroupNumber(7)) for number in range(3))
NOBODY = Allocations()


def test_what_a_pod_had_and_what_came_with_it_may_be_open_until_its_container_has_ended() -> None:
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    forgotten.note(NOBODY, NOBODY, 1.0 - Timeouts().forgotten_container_end)
    forgotten.note(Allocations({HELD.id: POD}, brought={BROUGHT.id: POD}), NOBODY, 1.0)
    forgotten.note(NOBODY, NOBODY, 2.0)
    assert [
        forgotten.has(each, 0.9 + Timeouts().forgotten_container_end) for each in (HELD, BROUGHT, OTHER)
    ] == [True, True, False]
    assert not forgotten.has(HELD, 1.0 + Timeouts().forgotten_container_end)


def test_what_is_held_still_was_not_forgotten() -> None:
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    forgotten.note(NOBODY, Allocations({HELD.id: POD}), 1.0 - Timeouts().forgotten_container_end)
    forgotten.note(Allocations({HELD.id: POD}), Allocations({HELD.id: POD}), 1.0)
    assert not forgotten.has(HELD, 1.0)


def test_a_node_that_a_pod_had_was_forgotten_though_another_has_such_an_id_yet() -> None:
    nic, node = Holder("ns", "other", ResourceName("vendor.example/nic")), ("/dev/x",)
    before = Allocations({"x": nic}, nodes={POD.resource: {"x": node}}, namesakes={POD.resource: {"x": POD}})
    still = Allocations({"x": POD}, nodes={POD.resource: {"x": node}})
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    forgotten.note(before, still, 1.0)
    assert not forgotten.lately(1.0)
    forgotten.note(before, Allocations({"x": nic}), 1.0)
    assert forgotten.lately(1.0) == {"x", "/dev/x"}


def test_what_a_pod_has_let_go_as_the_file_of_the_kubelet_says_was_forgotten() -> None:
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    forgotten.note(NOBODY, Allocations({HELD.id: POD}), 1.0 - Timeouts().forgotten_container_end)
    forgotten.gone({HELD.id}, 1.0)
    assert forgotten.has(HELD, 0.9 + Timeouts().forgotten_container_end)
    assert not forgotten.has(HELD, 1.0 + Timeouts().forgotten_container_end)


def test_a_pod_may_have_had_a_whole_group() -> None:
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    forgotten.note(NOBODY, NOBODY, 1.0 - Timeouts().forgotten_container_end)
    assert not forgotten.has(OTHER, 1.0)
    forgotten.note(Allocations({"7": POD}), NOBODY, 1.0)
    assert forgotten.has(OTHER, 1.0)


def test_for_a_while_anything_may_be_a_pod_s_that_was_forgotten_before() -> None:
    forgotten = Forgotten(Timeouts().forgotten_container_end)
    assert forgotten.has(OTHER, 1.0)
    for now in (1.0, 2.0):
        forgotten.note(NOBODY, NOBODY, now)
    assert forgotten.has(OTHER, 0.9 + Timeouts().forgotten_container_end)
    assert not forgotten.has(OTHER, 1.0 + Timeouts().forgotten_container_end)
