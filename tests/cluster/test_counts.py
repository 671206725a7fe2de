# SPDX-License-Identifier: Apache-2.0
"""Counts of a Node: what is read of them, and that nothing but a 0 of this Node is ever taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import node_status
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import NODES
from tests.cluster.following import served, session

OLD, OTHER = "example.com/old", "example.com/other"
COUNTS = {"cpu": "4", OLD: "0", OTHER: "0"}


def put(server: FakeApiServer, capacity: dict[str, str], allocatable: dict[str, str]) -> Any:
    status = {"capacity": dict(capacity), "allocatable": dict(allocatable), "phase": "x"}
    return server.store.put(NODES, {"metadata": {"name": "node1"}, "status": status})


def test_only_the_counts_of_these_names_are_kept() -> None:
    node = {"status": {"capacity": COUNTS, "allocatable": COUNTS | {OLD: "1"}, "images": []}}
    assert node_status.counts(node, (OLD,)) == {"capacity": {OLD: "0"}, "allocatable": {OLD: "1"}}
    assert node_status.counts(node, ("example.com/never",)) == {}


@pytest.mark.parametrize("odd", [{}, {"status": 7}, {"status": {"capacity": [OLD], "allocatable": None}}])
def test_a_node_that_makes_no_sense_has_no_counts(odd: dict[str, Any]) -> None:
    assert node_status.counts(odd, (OLD,)) == {}
    assert node_status.zero_counts(odd, (OLD,)) == ()


@pytest.mark.parametrize(
    ("capacity", "allocatable", "empty"),
    [("0", "0", True), ("1", "0", False), ("0", "1", False), (None, "0", False), ("0", None, False)],
)
def test_empty_is_what_counts_0_twice(capacity: str | None, allocatable: str | None, empty: bool) -> None:
    counts = {"capacity": capacity, "allocatable": allocatable}
    node = {"status": {key: {OLD: text} for key, text in counts.items() if text is not None}}
    assert node_status.zero_counts(node, (OLD, OTHER)) == ((OLD,) if empty else ())


async def test_a_name_is_taken_from_both_counts_and_nothing_else_is(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as made:
        node = put(server, COUNTS, COUNTS)
        await node_status.remove_counts(made, node, OLD)
        now = server.store.get(NODES, "node1")
        assert now is not None
        left = {"cpu": "4", OTHER: "0"}
        assert now["status"] == {"capacity": left, "allocatable": left, "phase": "x"}


@pytest.mark.parametrize("what", ["capacity", "allocatable", "gone", "other node"])
async def test_what_is_not_so_any_more_is_left_alone(tmp_path: Path, what: str) -> None:
    async with served() as server, session(server, tmp_path) as made:
        node = put(server, COUNTS, COUNTS)
        more, none = COUNTS | {OLD: "1"}, {OTHER: "0"}
        if what == "other node":
            server.store.delete(NODES, "node1")
            put(server, COUNTS, COUNTS)
        elif what == "gone":
            put(server, none, none)
        else:
            put(server, more if what == "capacity" else COUNTS, more if what == "allocatable" else COUNTS)
        before = server.store.get(NODES, "node1")
        with pytest.raises(ClusterUnavailable) as caught:
            await node_status.remove_counts(made, node, OLD)
        assert caught.value.status == 422
        assert server.store.get(NODES, "node1") == before
