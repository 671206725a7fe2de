# SPDX-License-Identifier: Apache-2.0
"""A condition of the Node: what is read of it, and that a patch leaves all others alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.cluster import node_status
from nodeagent.cluster.node_status import Condition
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import NODES
from tests.cluster.following import served, session

READY = {"type": "Ready", "status": "True"}
OWN = "DevicesUsable"
BAD = Condition("False", "Broken", "it fell off")


def node(server: FakeApiServer) -> dict[str, Any]:
    found = server.store.get(NODES, "node1")
    assert found is not None
    return found


def listed(server: FakeApiServer) -> Any:
    return node(server)["status"]["conditions"]


async def test_a_condition_is_set_changed_and_removed_and_others_stay(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        server.store.put(NODES, {"metadata": {"name": "node1"}, "status": {"conditions": [READY]}})
        await node_status.write_condition(api, "node1", OWN, BAD, 0.0)
        first, own = listed(server)
        assert first == READY
        assert own == {
            "type": OWN,
            "status": "False",
            "reason": "Broken",
            "message": "it fell off",
            "lastHeartbeatTime": "1970-01-01T00:00:00Z",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
        written = node_status.read_condition(node(server), OWN)
        assert written == BAD._replace(since="1970-01-01T00:00:00Z")
        again = BAD._replace(message="and another", since=written.since)
        await node_status.write_condition(api, "node1", OWN, again, 60.0)
        assert node_status.read_condition(node(server), OWN) == again
        assert listed(server)[1]["lastHeartbeatTime"] == "1970-01-01T00:01:00Z"
        await node_status.remove_condition(api, "node1", OWN)
        assert listed(server) == [READY]


@pytest.mark.parametrize("odd", [None, 7, [], {}, {"conditions": 7}, {"conditions": [7, {"type": "Ready"}]}])
def test_a_node_without_it_has_none_whatever_else_it_has(odd: Any) -> None:
    assert node_status.find_condition({"status": odd}, OWN) is None
    assert node_status.read_condition({"status": odd}, OWN) is None


def test_fields_of_another_type_are_empty() -> None:
    node = {"status": {"conditions": [{"type": "X", "status": 7}]}}
    assert node_status.read_condition(node, "X") == Condition("", "", "", "")


def test_what_it_says_is_compared_without_its_time() -> None:
    assert BAD.equals(BAD._replace(since="then"))
    assert not BAD.equals(None)
    assert not BAD.equals(BAD._replace(message=""))
