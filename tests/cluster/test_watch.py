# SPDX-License-Identifier: Apache-2.0
"""A watch on a server that works: it lists once, follows, publishes what differs, and costs next to nothing.

What it does on a server that does not is in ``test_watching_faults``.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from nodeagent.cluster.watch import Resource
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from tests import virtual
from tests.cluster.following import NAMESPACE, RESOURCE, cr, followed, served, until, until_gates

EDITS = 500


async def test_an_edit_is_known_within_a_second(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        for number in range(2, 12):
            server.store.put(KUBEVIRTS, cr(number))
            await until_gates(watch, number, within=1.0)


async def test_many_edits_in_a_row_end_in_the_last_ones_state(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        for number in range(EDITS):
            server.store.put(KUBEVIRTS, cr(number))
        await until_gates(watch, EDITS - 1)
        assert len(server.statistics.requests) == 2


async def test_an_object_that_goes_and_comes_again_is_followed(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        server.store.delete(KUBEVIRTS, "kubevirt", NAMESPACE)
        assert (await until_gates(watch, None, within=1.0)).objects == {}
        server.store.put(KUBEVIRTS, cr(7))
        await until_gates(watch, 7, within=1.0)


async def test_a_selector_is_sent_and_only_its_object_comes(tmp_path: Path) -> None:
    own = Resource("/api/v1/nodes", "nodes", selector="metadata.name=node1")
    async with served() as server:
        for name in ("node1", "node2"):
            server.store.put(NODES, {"metadata": {"name": name, "labels": {}}})
        async with followed(server, tmp_path, own) as watch:
            await until(watch.state, lambda known: known.objects is not None)
            for name in ("node2", "node1"):
                server.store.put(NODES, {"metadata": {"name": name, "labels": {"zone": name}}})
            known = await until(watch.state, lambda known: "zone" in str(known.objects))
            assert list(known.objects or {}) == ["node1"]
        assert {
            "fieldSelector=metadata.name%3Dnode1" in seen.query for seen in server.statistics.requests
        } == {True}


async def test_what_nobody_keeps_wakes_nobody(tmp_path: Path) -> None:
    spec_alone = RESOURCE._replace(trim=lambda given: {"spec": given["spec"]})
    async with served() as server, followed(server, tmp_path, spec_alone) as watch:
        await until_gates(watch, 1)
        version = watch.state.version
        for _ in range(3):
            server.store.put(KUBEVIRTS, cr(1) | {"status": {"phase": "Deployed"}})
        server.store.put(KUBEVIRTS, cr(2))
        await until_gates(watch, 2)
        assert watch.state.version == version + 1


@virtual.TIME
async def test_a_server_that_answers_is_told_so_with_the_times_since_when(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        assert watch.state.get().answers is None
        known = await until_gates(watch, 1)
        assert known.at == pytest.approx(1000.0)
        first = await until(watch.state, lambda known: known.answers is True)
        assert first.error == ""
        await anyio.sleep(1800.0)
        assert watch.state.get() == first


@virtual.TIME
async def test_at_rest_an_hour_costs_a_dozen_streams_and_no_list(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path) as watch:
        await until_gates(watch, 1)
        await anyio.sleep(3590.0)
        lists = [seen for seen in server.statistics.requests if not seen.watches]
        assert len(lists) == 1
        assert len(server.statistics.requests) - 1 == 12
        server.store.put(KUBEVIRTS, cr(2))
        await until_gates(watch, 2, within=1.0)


@virtual.TIME
async def test_the_first_requests_of_many_nodes_are_spread(tmp_path: Path) -> None:
    async with served() as server, followed(server, tmp_path, spread=60.0, jitter=0.5) as watch:
        began = anyio.current_time()
        await until_gates(watch, 1, within=60.0)
        assert anyio.current_time() - began == pytest.approx(30.0, abs=0.1)
