# SPDX-License-Identifier: Apache-2.0
"""ResourceSlices are watched, written and deleted by version; a claim is read when the server is back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import slices
from nodeagent.cluster.api import CONFLICT, FORBIDDEN, INVALID, NOT_FOUND
from nodeagent.model.claim import ClaimRef
from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.slices import COUNTERS, TAINTS
from nodeagent.sim.apiserver.store import NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.cluster.following import followed, session, until

DRIVER, NODE = "vfio.example.com", "node1"
CLAIM = ClaimRef("ns", "gpu", "uid-of-claim")
LONG = 60.0


def slice_of(name: str, *devices: dict[str, Any], node: str = NODE, driver: str = DRIVER) -> dict[str, Any]:
    """A slice with these devices."""
    pool = {"name": f"{driver}/{node}", "generation": 0, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": name}, "spec": spec}


def tainted(name: str) -> dict[str, Any]:
    return {"name": name, "taints": [{"key": f"{DRIVER}/unusable", "effect": "NoSchedule"}]}


async def test_only_slices_of_this_driver_and_node_are_watched(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        server.store.put(RESOURCE_SLICES, slice_of("ours"))
        server.store.put(RESOURCE_SLICES, slice_of("of-another-node", node="node2"))
        server.store.put(RESOURCE_SLICES, slice_of("of-another-driver", driver="gpu.example.com"))
        async with followed(server, tmp_path, slices.own_slices(DRIVER, NODE)) as watch:
            await until(watch.state, lambda known: [*(known.objects or ())] == ["ours"])
            server.store.put(RESOURCE_SLICES, slice_of("second"))
            server.store.delete(RESOURCE_SLICES, "ours")
            await until(watch.state, lambda known: [*(known.objects or ())] == ["second"])


async def test_the_answer_to_a_write_is_the_stored_slice(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        created = await slices.create_slice(api, slice_of("ours", tainted("a")))
        assert "timeAdded" in created["spec"]["devices"][0]["taints"][0]
        updated = await slices.update_slice(api, created | {"spec": slice_of("ours", {"name": "b"})["spec"]})
        assert updated["spec"]["devices"] == [{"name": "b"}]
        assert updated == server.store.get(RESOURCE_SLICES, "ours")


async def test_fields_of_disabled_gates_are_missing_in_the_answer(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        server.faults.set("gates", {TAINTS, COUNTERS})
        device = tainted("a") | {"consumesCounters": [{"counterSet": "groups-0", "counters": {}}]}
        created = await slices.create_slice(api, slice_of("ours", device))
        assert created["spec"]["devices"] == [{"name": "a"}]


async def test_a_slice_that_has_changed_meanwhile_is_neither_replaced_nor_deleted(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        created = await slices.create_slice(api, slice_of("ours"))
        server.store.put(RESOURCE_SLICES, slice_of("ours", {"name": "foreign"}))
        with pytest.raises(ClusterUnavailable) as caught:
            await slices.update_slice(api, created)
        assert caught.value.status == CONFLICT
        with pytest.raises(ClusterUnavailable) as caught:
            await slices.delete_slice(api, "ours", created["metadata"]["resourceVersion"])
        assert caught.value.status == CONFLICT
        assert server.store.get(RESOURCE_SLICES, "ours") is not None


async def test_a_slice_that_is_gone_counts_as_deleted(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        created = await slices.create_slice(api, slice_of("ours"))
        for _ in range(2):
            await slices.delete_slice(api, "ours", created["metadata"]["resourceVersion"])
        assert server.store.get(RESOURCE_SLICES, "ours") is None


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "other.example.com"},
        {"nodeName": "node2"},
        {"pool": {"name": "other", "generation": 0, "resourceSliceCount": 1}},
        {"devices": [{"name": f"d{number}"} for number in range(129)]},
        {"devices": [tainted(f"d{number}") for number in range(65)]},
        {"devices": [{"name": "twice"}, {"name": "twice"}]},
    ],
)
async def test_the_fake_refuses_slices_as_the_api_server_does(change: dict[str, Any], tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        created = await slices.create_slice(api, slice_of("ours"))
        with pytest.raises(ClusterUnavailable) as caught:
            await slices.update_slice(api, created | {"spec": created["spec"] | change})
        assert caught.value.status == INVALID


async def test_the_uid_of_the_node_is_that_of_the_present_node(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        with pytest.raises(ClusterUnavailable) as caught:
            await slices.read_node_uid(api, NODE)
        assert caught.value.status == NOT_FOUND
        assert "node.name" in caught.value.hint
        node = server.store.put(NODES, {"metadata": {"name": NODE}})
        assert await slices.read_node_uid(api, NODE) == node["metadata"]["uid"]


def claimed(server: FakeApiServer) -> dict[str, Any]:
    return server.store.put(RESOURCE_CLAIMS, {"metadata": {"name": CLAIM.name, "namespace": CLAIM.namespace}})


async def test_a_claim_is_read_again_until_the_server_is_back(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        stored = claimed(server)
        await server.stop()

        async def start_later() -> None:
            await anyio.sleep(0.2)  # several connections are refused meanwhile
            await server.start()

        async with anyio.create_task_group() as group:
            group.start_soon(start_later)
            assert await slices.read_claim(api, CLAIM, anyio.current_time() + LONG) == stored


@pytest.mark.parametrize("code", [401, 429, 500, 503])
async def test_errors_that_end_by_themselves_are_waited_for(code: int, tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        stored = claimed(server)
        server.faults.set("status:gpu", Refusal(code, times=2))
        server.faults.set("status:resourceclaims", Refusal(code, times=2))
        assert await slices.read_claim(api, CLAIM, anyio.current_time() + LONG) == stored


async def test_the_authorizer_of_an_api_server_may_learn_of_the_claim_a_moment_later(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        stored = claimed(server)
        server.faults.set("status:resourceclaims", Refusal(FORBIDDEN, times=3))
        assert await slices.read_claim(api, CLAIM, anyio.current_time() + LONG) == stored


async def test_a_claim_that_does_not_exist_or_may_not_be_read_is_soon_an_error(tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        for code in (NOT_FOUND, FORBIDDEN):
            server.faults.set("status:resourceclaims", Refusal(code))
            with pytest.raises(ClusterUnavailable) as caught, anyio.fail_after(5):
                await slices.read_claim(api, CLAIM, anyio.current_time() + LONG)
            assert caught.value.status == code
            assert ("delete its pod" in caught.value.hint) == (code == NOT_FOUND)


@pytest.mark.parametrize("fault", ["away", "silent"])
async def test_at_the_end_of_the_time_the_last_error_is_raised(fault: str, tmp_path: Path) -> None:
    async with FakeApiServer() as server, session(server, tmp_path) as api:
        if fault == "away":
            await server.stop()
        else:
            server.faults.set("slow:gpu", LONG)
        with pytest.raises(ClusterUnavailable) as caught, anyio.fail_after(5):
            await slices.read_claim(api, CLAIM, anyio.current_time() + 0.3)
        assert "resourceclaims/gpu" in caught.value.what
