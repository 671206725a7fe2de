# SPDX-License-Identifier: Apache-2.0
"""A watch on a server that fails: asked ever less often, nothing forgotten, and all right afterwards.

Time is virtual: an hour of each fault. What the requests cost is bounded per minute, the first minute of a
fault and the later ones apart.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.base import log
from nodeagent.cluster.watch import Watch
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal, RequestRecord
from nodeagent.sim.apiserver.store import KUBEVIRTS
from tests import virtual
from tests.cluster.following import cr, followed, served, until, until_gates
from tests.conftest import Said

HOUR = 3000.0  # seconds: the rest of the virtual hour is for what comes before and after
FIRST, LATER = 16, 8  # requests in the first minute of a fault, and in each later one
LARGE = {"padding": "x" * (5 * 2**20)}


def per_minute(requests: list[RequestRecord], since: float) -> list[int]:
    """How many there were in each minute since then."""
    minutes = Counter(int((seen.when - since) // 60) for seen in requests if seen.when >= since)
    return [minutes[minute] for minute in range(max(minutes, default=0) + 1)]


def assert_few(server: FakeApiServer, since: float) -> None:
    first, *later = per_minute(server.statistics.requests, since)
    assert first <= FIRST
    assert max(later, default=0) <= LATER


async def suffer(server: FakeApiServer, watch: Watch, fault: str, setting: Any = True) -> float:
    """An hour of a fault, from its first failure on; when it began."""
    await server.stop()
    server.faults.set(fault, setting)
    await server.start()
    await until(watch.state, lambda known: known.answers is False, within=400.0)
    began = anyio.current_time()
    await anyio.sleep(HOUR)
    return began


FAULTS = [
    pytest.param("status", Refusal(401), id="401"),
    pytest.param("status", Refusal(403), id="403"),
    pytest.param("status", Refusal(404), id="404"),
    pytest.param("status", Refusal(410), id="410"),
    pytest.param("status", Refusal(429), id="429"),
    pytest.param("status", Refusal(500), id="500"),
    *(pytest.param(name, True, id=name) for name in ("garbage", "drop", "eof", "half-line", "expired")),
    pytest.param("slow", 20.0, id="slow"),
]


@virtual.TIME
@pytest.mark.parametrize(("fault", "setting"), FAULTS)
async def test_an_hour_of_a_fault_is_survived_with_few_requests(
    fault: str, setting: Any, tmp_path: Path, said: Said
) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        began = await suffer(server, watch, fault, setting)
        assert_few(server, began)
        known = watch.state.get()
        assert (known.answers, known.objects is not None) == (False, True)
        assert known.error
        server.store.put(KUBEVIRTS, cr(2))
        server.faults.clear(fault)
        await until_gates(watch, 2, within=301.0)
        await until(watch.state, lambda known: known.answers is True, within=10.0)
        assert server.statistics.streams == 1
    assert len(said(log.CLUSTER_WATCH_FAILED)) <= 2
    assert len(said(log.CLUSTER_WATCH_RECOVERED)) == 1


@virtual.TIME
async def test_a_server_that_is_away_for_an_hour_is_followed_again_when_it_is_back(
    tmp_path: Path, said: Said
) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        await anyio.sleep(10.0)
        await server.stop()
        lost = await until(watch.state, lambda known: known.answers is False)
        assert lost.at == pytest.approx(anyio.current_time(), abs=1.0)
        await anyio.sleep(HOUR)
        assert watch.state.get().objects is not None
        server.store.put(KUBEVIRTS, cr(2))
        server.store.compact()  # as etcd does every five minutes
        await server.start()
        await until_gates(watch, 2, within=31.0)
        server.store.put(KUBEVIRTS, cr(3))
        await until_gates(watch, 3, within=1.0)
        await until(watch.state, lambda known: known.answers is True, within=6.0)
    assert (len(said(log.CLUSTER_WATCH_FAILED)), len(said(log.CLUSTER_WATCH_RECOVERED))) == (1, 1)


@virtual.TIME
async def test_a_server_that_is_away_at_first_is_followed_when_it_comes(tmp_path: Path) -> None:
    async with served() as server:
        await server.stop()
        async with followed(server, tmp_path) as watch:
            known = await until(watch.state, lambda known: known.answers is False)
            assert known.objects is None
            await anyio.sleep(600.0)
            await server.start()
            await until_gates(watch, 1, within=31.0)


@virtual.TIME
async def test_a_stream_that_hangs_is_found_after_its_time(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        began = anyio.current_time()
        server.faults.set("hang")
        server.store.put(KUBEVIRTS, cr(2))
        await until(watch.state, lambda known: known.answers is False, within=400.0)
        assert 300.0 < anyio.current_time() - began < 400.0
        await anyio.sleep(1800.0)
        assert_few(server, began)
        server.faults.clear("hang")
        await until_gates(watch, 2, within=320.0)


@virtual.TIME
async def test_a_version_that_is_too_old_is_no_failure(tmp_path: Path, said: Said) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        await anyio.sleep(10.0)
        server.faults.set("expired")
        await server.stop()
        await server.start()
        await server.until(lambda: len(server.statistics.requests) >= 3)
        server.faults.clear("expired")
        server.store.put(KUBEVIRTS, cr(2))
        await until_gates(watch, 2, within=2.0)
    assert len(said(log.CLUSTER_WATCH_FAILED)) == 1  # of the connection that broke


@virtual.TIME
async def test_a_server_that_asks_for_a_pause_gets_it(tmp_path: Path) -> None:
    async with served() as server:
        server.faults.set("status", Refusal(429, times=1, after=120))
        async with followed(server, tmp_path) as watch:
            began = anyio.current_time()
            await until_gates(watch, 1, within=200.0)
            assert 120.0 <= anyio.current_time() - began < 160.0


@virtual.TIME
async def test_who_may_not_look_asks_rarely_and_says_once_what_to_do(tmp_path: Path, said: Said) -> None:
    async with served() as server:
        server.faults.set("status", Refusal(403))
        async with followed(server, tmp_path) as watch:
            await anyio.sleep(HOUR)
            assert len(server.statistics.requests) <= 14
            (line,) = said(log.CLUSTER_WATCH_FAILED)
            assert "403 Forbidden" in str(line["error"])
            assert "ClusterRole" in str(line["hint"])
            server.faults.clear("status")
            await until_gates(watch, 1, within=301.0)


@virtual.TIME
async def test_an_object_that_is_too_large_is_refused_and_said_once(tmp_path: Path, said: Said) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        await anyio.sleep(10.0)
        began = anyio.current_time()
        server.store.put(KUBEVIRTS, cr(2, **LARGE))
        await anyio.sleep(HOUR)
        assert watch.state.get().objects is not None
        await until_gates(watch, 1)
        assert len([seen for seen in server.statistics.requests if seen.when > began]) <= 14
        server.store.put(KUBEVIRTS, cr(3))
        server.store.compact()
        await until_gates(watch, 3, within=301.0)
    (line,) = said(log.CLUSTER_WATCH_FAILED)
    assert "larger than 4 MiB" in str(line["error"])


@virtual.TIME
async def test_a_list_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with served(edit=None) as server:
        server.store.put(KUBEVIRTS, cr(1, **LARGE))
        async with followed(server, tmp_path) as watch:
            known = await until(watch.state, lambda known: known.answers is False)
            assert (known.objects, "larger than" in known.error) == (None, True)


@virtual.TIME
async def test_after_a_stream_that_has_lasted_the_first_pause_is_short_again(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        await suffer(server, watch, "eof")
        server.faults.clear("eof")
        await until(watch.state, lambda known: known.answers is True, within=40.0)
        await server.stop()
        await until(watch.state, lambda known: known.answers is False)
        server.store.put(KUBEVIRTS, cr(2))
        await server.start()
        await until_gates(watch, 2, within=1.0)


@virtual.TIME
async def test_all_faults_in_a_row_leave_no_stream_behind(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        number = 1
        for fault in ("drop", "garbage", "eof", "half-line", "expired") * 3:
            number += 1
            server.faults.set(fault)
            await server.stop()
            await server.start()
            await anyio.sleep(20.0)
            server.store.put(KUBEVIRTS, cr(number))
            server.faults.clear(fault)
            await until_gates(watch, number, within=31.0)
            await anyio.sleep(10.0)
            assert server.statistics.streams == 1
