# SPDX-License-Identifier: Apache-2.0
"""Events on pods: whose uid is known, and which may not be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent.cluster.events import Events, find_uid
from nodeagent.kubelet.checkpoint import Entry
from nodeagent.model.ids import ResourceName
from nodeagent.sim.apiserver.server import Refusal
from nodeagent.sim.apiserver.store import EVENTS
from tests.agent.cluster.statuses import GPU, GPU_AT, OTHER_AT, bad, good, status
from tests.agent.cluster.telling import Telling, telling
from tests.facts import names

HELD = {GPU_AT: "ns/vm"}
ENDS = "events is forbidden: unable to create new content in namespace ns because it is being terminated"


def entry(uid: str, resource: str = GPU, device_id: str = GPU_AT) -> Entry:
    return Entry(uid, ResourceName(resource), device_id, None)


@pytest.mark.parametrize(
    ("entries", "uid"),
    [
        ([], ""),
        ([entry("a")], "a"),
        ([entry("a"), entry("a", device_id=OTHER_AT)], "a"),
        ([entry("a"), entry("b")], ""),
        ([entry("a", "example.com/other")], ""),
        ([entry("a"), entry("b", device_id="0000:99:00.0")], "a"),
    ],
)
def test_the_uid_of_a_pod_is_that_of_its_devices_if_it_is_one(entries: list[Entry], uid: str) -> None:
    assert find_uid(entries, {(GPU, GPU_AT), (GPU, OTHER_AT)}) == uid


async def begun(it: Telling) -> None:
    """The devices are known, and one is held."""
    it.now(status(good(), good(OTHER_AT), held=HELD))


def on_pods(it: Telling) -> list[dict[str, object]]:
    return list(it.server.store.all(EVENTS, "ns"))


async def test_a_pod_whose_uid_is_not_known_is_told_without(tmp_path: Path) -> None:
    async with telling(tmp_path, Events) as it:
        await begun(it)
        it.now(status(bad(), good(OTHER_AT), held=HELD))
        await it.server.until(lambda: bool(on_pods(it)))
        (event,) = on_pods(it)
        assert event["involvedObject"] == {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "vm",
        }


async def test_a_namespace_that_ends_is_no_matter_of_rights(tmp_path: Path) -> None:
    async with telling(tmp_path, Events) as it:
        await begun(it)
        it.server.faults.set("status:events", Refusal(403, message=ENDS, times=1))
        it.now(status(bad(), good(OTHER_AT), held=HELD))
        await it.server.until(lambda: bool(on_pods(it)))  # the one before it was refused
        assert it.status.write_errors == ()
        assert it.status.events_dropped == 1


async def test_without_a_right_on_pods_the_node_is_told_all_the_same(tmp_path: Path) -> None:
    async with telling(tmp_path, Events) as it:
        await begun(it)
        it.server.faults.set("status:events", Refusal(403, namespace="ns"))
        it.now(status(bad(), good(OTHER_AT), held=HELD))
        await it.server.until(lambda: len(it.written) == 1)
        it.now(status(good(), good(OTHER_AT), held=HELD))
        await it.server.until(lambda: len(it.written) == 2)
        (line,) = it.status.write_errors
        names(line, "pods", "POST /api/v1/namespaces/ns/events", 403)
        assert [each.path for each in it.server.statistics.requests if "/ns/" in each.path] == [
            "/api/v1/namespaces/ns/events"
        ]


async def test_a_namespace_whose_events_fail_holds_up_no_others(tmp_path: Path) -> None:
    """As where a webhook for it does not answer: 500, again and again."""
    async with telling(tmp_path, Events) as it:
        await begun(it)
        it.server.faults.set("status:events", Refusal(500, namespace="ns"))
        it.now(status(bad(), good(OTHER_AT), held=HELD))
        await it.server.until(lambda: len(it.written) == 1)
        await it.server.until(lambda: "/ns/" in it.server.statistics.requests[-1].path)
        it.now(status(bad(), bad(OTHER_AT), held=HELD))
        await it.until_written(2)
        assert on_pods(it) == []
        it.server.faults.clear("status:events")
        await it.server.until(lambda: bool(on_pods(it)))
