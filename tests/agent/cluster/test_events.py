# SPDX-License-Identifier: Apache-2.0
"""Events reach the API server as soon as it takes them, and what it does not take harms nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.cluster.events import BURST, Events
from nodeagent.agent.core import Core
from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.model.status import Status
from nodeagent.sim.apiserver.server import Refusal
from nodeagent.sim.apiserver.store import EVENTS, NODES
from tests import virtual
from tests.agent.cluster.statuses import OTHER_AT, bad, good, status
from tests.agent.cluster.telling import NAME, Telling, put_node, telling
from tests.conftest import Said
from tests.facts import names

pytestmark = virtual.TIME

WELL, BROKEN = status(good(), good(OTHER_AT)), status(bad(), good(OTHER_AT))
BOTH = status(bad(), bad(OTHER_AT))


def made(core: Core, now: Callable[[], Status]) -> Events:
    """Without jitter."""
    return Events(core, now, lambda: 0.0)


async def shown(made: Telling) -> None:
    """The devices are known, and whole."""
    made.now(WELL)
    await anyio.sleep(1.0)


async def test_what_breaks_is_told_within_a_second_and_again_when_it_is_whole(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.now(BROKEN)
        await it.until_written(1, within=1.0)
        it.now(WELL)
        await it.until_written(2, within=1.0)
        assert sorted(each["reason"] for each in it.written) == ["DeviceHealthy", "DeviceUnhealthy"]
        node = it.server.store.get(NODES, NAME)
        assert node is not None
        assert {each["involvedObject"]["uid"] for each in it.written} == {node["metadata"]["uid"]}


async def test_the_same_once_more_is_counted(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        for number in (1, 2, 3):
            it.now(BROKEN)
            await anyio.sleep(1.0)
            it.now(WELL)
            await anyio.sleep(1.0)
            assert [each["count"] for each in it.written] == [number, number]
        assert it.requests == ["POST", "POST"] + ["PATCH"] * 4


async def test_a_device_that_comes_and_goes_for_ever_costs_one_request_in_five_minutes(
    tmp_path: Path, said: Said
) -> None:
    async with telling(tmp_path, made) as it:
        for _ in range(300):
            it.now(BROKEN)
            await anyio.sleep(1.0)
            it.now(WELL)
            await anyio.sleep(1.0)
        assert BURST <= len(it.requests) <= BURST + 600 / Timeouts().event_refill + 1
        assert it.status.events_dropped > 500
        assert 1 <= len(said(log.CLUSTER_EVENTS_DROPPED)) <= 600 / Timeouts().event_refill + 1


async def test_what_stood_at_the_start_is_told_after_a_moment_and_once(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.configure(events=False)
        it.now(BROKEN)
        await anyio.sleep(5.0)
        it.configure(events=True)
        await anyio.sleep(Timeouts().event_settle - 2.0)
        assert it.written == []
        await it.until_written(1, within=4.0)
        await anyio.sleep(100.0)
        assert it.requests == ["POST"]


async def test_what_reaches_all_nodes_at_once_waits_for_a_time_of_its_own(tmp_path: Path) -> None:
    async with telling(tmp_path, lambda core, now: Events(core, now, lambda: 0.5)) as it:
        it.now(status(refused=(wrong(ProblemCode.CONFIGURATION, "", "KubeVirt CR: entry x"),)))
        await anyio.sleep(Timeouts().event_spread / 2 - 1.0)
        assert it.written == []
        await it.until_written(1, within=2.0)


async def test_what_is_fresh_is_told_when_the_server_is_back_and_what_is_old_is_not(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        await it.server.stop()
        it.now(BROKEN)
        await anyio.sleep(Timeouts().event_age - 60.0)
        it.now(BOTH)
        await anyio.sleep(120.0)
        await it.server.start()
        await it.until_written(1, within=35.0)
        assert OTHER_AT in it.written[0]["message"]
        assert it.status.events_dropped == 1
        await anyio.sleep(100.0)
        assert len(it.written) == 1


@pytest.mark.parametrize("code", [401, 409, 429, 500, 503])
async def test_a_server_that_fails_is_asked_ever_less_often_until_it_takes_it(
    code: int, tmp_path: Path
) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.server.faults.set("status:events", Refusal(code))
        it.now(BROKEN)
        await anyio.sleep(120.0)
        assert 3 <= len(it.requests) <= 24
        it.server.faults.clear("status:events")
        await it.until_written(1, within=35.0)


@pytest.mark.parametrize("code", [400, 404, 422])
async def test_what_the_server_will_never_take_is_dropped(code: int, tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.server.faults.set("status:events", Refusal(code))
        it.now(BROKEN)
        await anyio.sleep(120.0)
        assert it.requests == ["POST"]
        assert it.status.events_dropped == 1
        it.server.faults.clear("status:events")
        it.now(BOTH)
        await it.until_written(1, within=1.0)


async def test_a_right_that_is_missing_is_said_once_and_tried_seldom(tmp_path: Path, said: Said) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.server.faults.set("status:events", Refusal(403, message="you cannot create events"))
        for number in range(20):
            it.now(BROKEN if number % 2 else BOTH)
            await anyio.sleep(30.0)
        assert it.requests == ["POST"]
        (line,) = it.status.write_errors
        names(line, "POST /api/v1/namespaces/default/events", "you cannot create events", "ClusterRole")
        assert len(said(log.CLUSTER_WRITE_REFUSED)) == 1
        it.server.faults.clear("status:events")
        await anyio.sleep(Timeouts().missing_right_retry)
        it.now(WELL)
        await it.until_written(1, within=2.0)
        await anyio.sleep(1.0)
        assert it.status.write_errors == ()
        assert len(said(log.CLUSTER_WRITE_RECOVERED)) == 1


async def test_a_node_that_the_cluster_does_not_have_is_told_of_nothing(tmp_path: Path) -> None:
    async with telling(tmp_path, made) as it:
        await shown(it)
        it.server.store.delete(NODES, NAME)
        await anyio.sleep(1.0)
        it.now(BROKEN)
        await anyio.sleep(5.0)
        assert it.requests == []
        put_node(it.server)
        await anyio.sleep(1.0)
        it.now(BOTH)
        await it.until_written(1, within=1.0)


async def test_events_that_are_switched_off_are_not_written(tmp_path: Path) -> None:
    async with telling(tmp_path, made, events=False) as it:
        it.now(BROKEN)
        await anyio.sleep(100.0)
        assert list(it.server.store.all(EVENTS)) == []
        it.configure(events=True)
        await anyio.sleep(1.0)
        it.now(BOTH)
        await it.until_written(1, within=1.0)
