# SPDX-License-Identifier: Apache-2.0
"""A condition of the Node: what is read of it, and that a patch leaves all others alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster import conditions
from nodeagent.cluster.conditions import Condition
from nodeagent.sim.apiserver.standin import ApiServer
from nodeagent.sim.apiserver.store import NODES
from tests.cluster.following import served, session

READY = {"type": "Ready", "status": "True"}
BAD = Condition("False", "Broken", "it fell off")


def listed(server: ApiServer) -> Any:
    found = server.store.get(NODES, "node1")
    assert found is not None
    return found["status"]["conditions"]


async def test_a_condition_is_set_changed_and_removed_and_others_stay(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.store.put(NODES, {"metadata": {"name": "node1"}, "status": {"conditions": [READY]}})
        await conditions.write(api, "node1", "DevicesUsable", BAD, 0.0)
        first, own = listed(server)
        assert first == READY
        assert own == {
            "type": "DevicesUsable",
            "status": "False",
            "reason": "Broken",
            "message": "it fell off",
            "lastHeartbeatTime": "1970-01-01T00:00:00Z",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
        told = conditions.read(own)
        assert told == BAD._replace(since="1970-01-01T00:00:00Z")
        again = BAD._replace(message="and another", since=told.since)
        await conditions.write(api, "node1", "DevicesUsable", again, 60.0)
        assert conditions.read(listed(server)[1]) == again
        assert listed(server)[1]["lastHeartbeatTime"] == "1970-01-01T00:01:00Z"
        await conditions.remove(api, "node1", "DevicesUsable")
        assert listed(server) == [READY]


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"conditions": 7}, {"conditions": [7, {"type": "Ready"}]}])
def test_a_node_without_it_has_none_whatever_else_it_has(odd: Any) -> None:
    assert conditions.of_node({"status": odd}, "DevicesUsable") is None
    assert conditions.read(None) is None


def test_fields_of_another_type_are_empty() -> None:
    found = conditions.of_node({"status": {"conditions": [{"type": "X", "status": 7}]}}, "X")
    assert conditions.read(found) == Condition("", "", "", "")


def test_what_it_says_is_compared_without_its_time() -> None:
    assert BAD.says(BAD._replace(since="then"))
    assert not BAD.says(None)
    assert not BAD.says(BAD._replace(message=""))
