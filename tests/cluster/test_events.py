# SPDX-License-Identifier: Apache-2.0
"""Events are made once, counted after that, found again by another daemon, and hold no sign that harms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import events
from nodeagent.cluster.events import MAX_MESSAGE, Event, Involved, Occurrences
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import EVENTS, Object
from tests.cluster.following import served, session

NODE = Event(Involved("node1", "uid-of-node"), "DeviceUnhealthy", "it fell off", True)
POD = Event(Involved("vm", "uid-of-pod", "ns"), "DeviceHealthy", "it is back", False)


def methods(server: FakeApiServer) -> list[str]:
    return [each.method for each in server.statistics.requests]


def only(server: FakeApiServer) -> Object:
    (found,) = server.store.all(EVENTS)
    return found


async def test_an_event_on_a_node_is_one_of_the_namespace_default(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        assert await events.write(api, "node1", NODE, Occurrences(1, 0.0, 86399.9)) == 1
        found = only(server)
        metadata = found.pop("metadata")
        assert (metadata["namespace"], metadata["name"]) == ("default", NODE.name)
        assert found == {
            "apiVersion": "v1",
            "kind": "Event",
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": "uid-of-node"},
            "reason": "DeviceUnhealthy",
            "message": "it fell off",
            "type": "Warning",
            "count": 1,
            "firstTimestamp": "1970-01-01T00:00:00Z",
            "lastTimestamp": "1970-01-01T23:59:59Z",
            "source": {"component": "nodeagent", "host": "node1"},
            "reportingComponent": "nodeagent",
            "reportingInstance": "node1",
        }


async def test_an_event_on_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        await events.write(api, "node1", POD, Occurrences(1, 0.0, 0.0))
        found = only(server)
        assert found["metadata"]["namespace"] == found["involvedObject"]["namespace"] == "ns"
        assert (found["type"], found["involvedObject"]["uid"]) == ("Normal", "uid-of-pod")


async def test_what_was_told_is_counted_with_one_request(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        told = await events.write(api, "node1", NODE, Occurrences(1, 0.0, 0.0))
        assert await events.write(api, "node1", NODE, Occurrences(2, 5.0, 9.0), told) == 3
        assert methods(server) == ["POST", "PATCH"]
        found = only(server)
        assert (found["count"], found["firstTimestamp"], found["lastTimestamp"]) == (
            3,
            "1970-01-01T00:00:00Z",
            "1970-01-01T00:00:09Z",
        )


async def test_what_has_expired_is_made_anew(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        await events.write(api, "node1", NODE, Occurrences(1, 0.0, 0.0))
        server.store.delete(EVENTS, NODE.name, "default")
        assert await events.write(api, "node1", NODE, Occurrences(1, 9.0, 9.0), 1) == 1
        assert only(server)["firstTimestamp"] == "1970-01-01T00:00:09Z"


async def test_a_daemon_that_was_started_anew_counts_on_what_was_told_before(tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        for number in (1, 2, 3):
            assert await events.write(api, "node1", NODE, Occurrences(1, 0.0, float(number))) == number
        assert only(server)["count"] == 3


REFUSALS = [("POST", 0, code) for code in (400, 401, 403, 404, 422, 429, 500)]
REFUSALS += [("PATCH", 1, code) for code in (400, 401, 403, 409, 422, 429, 500)]


@pytest.mark.parametrize(("method", "known", "code"), REFUSALS)
async def test_a_refusal_is_told_to_the_caller(method: str, known: int, code: int, tmp_path: Path) -> None:
    async with served() as server, session(server, tmp_path) as api:
        if known:
            await events.write(api, "node1", NODE, Occurrences(1, 0.0, 0.0))
        server.faults.set("status:events", Refusal(code, times=1, method=method))
        with pytest.raises(ClusterUnavailable) as caught:
            await events.write(api, "node1", NODE, Occurrences(1, 0.0, 0.0), known)
        assert caught.value.status == code
        server.faults.clear("status:events")
        assert await events.write(api, "node1", NODE, Occurrences(1, 0.0, 0.0), known) == 1 + known


def test_names_tell_apart_what_differs_and_fit_kubernetes() -> None:
    long = NODE._replace(involved=Involved("x" * 253))
    others = [NODE, POD, long, NODE._replace(message="x"), NODE._replace(involved=Involved("node1", "other"))]
    assert len({each.name for each in others}) == len(others)
    assert len(long.name) == 253
    assert NODE.name == NODE._replace().name


@given(st.text())
def test_a_message_is_one_line_of_signs_that_can_be_printed(text: str) -> None:
    line = events.on_one_line(text)
    assert line.isprintable()
    assert len(line.encode()) <= MAX_MESSAGE


def test_a_long_message_is_cut_at_a_sign() -> None:
    line = events.on_one_line("ä" * 2000)
    assert line == "ä" * 510 + "…"
    assert events.on_one_line("a\x1b[31m\nb\tc\u202e") == "a[31m b c"
