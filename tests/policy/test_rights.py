# SPDX-License-Identifier: Apache-2.0
"""Rights are needed as the settings ask for them, and no more."""

from __future__ import annotations

import pytest

from nodeagent.model.access import Uses
from nodeagent.policy import rights
from tests.facts import names

FOLLOW = ["list kubevirts.kubevirt.io", "watch kubevirts.kubevirt.io", "list nodes", "watch nodes"]


def needed(uses: Uses) -> list[str]:
    return [f"{need.verb} {need.object}" for need in rights.needed(uses) if need.required]


@pytest.mark.parametrize(
    ("uses", "more"),
    [
        (Uses("n", follow=True), []),
        (Uses("n", follow=True, events=True), ["create events", "patch events"]),
        (Uses("n", follow=True, remove_stale=True), ["patch nodes/status"]),
        (Uses("n", follow=True, condition=True, remove_stale=True), ["patch nodes/status"]),
    ],
)
def test_each_use_needs_its_rights_and_no_others(uses: Uses, more: list[str]) -> None:
    assert needed(uses) == [*FOLLOW, *more]


def test_who_follows_nobody_needs_nothing() -> None:
    assert needed(Uses("n", events=True, condition=True, remove_stale=True)) == []


def test_a_right_says_what_it_is_for() -> None:
    (patch,) = (each for each in rights.needed(Uses("n", True, False, True, True)) if each.subresource)
    names(patch.purpose, "cluster.condition", "cluster.staleResources: remove")


def test_the_node_is_asked_for_by_its_name() -> None:
    found = rights.needed(Uses("node1", follow=True, remove_stale=True))
    assert {need.name for need in found if need.resource == "nodes"} == {"node1"}
