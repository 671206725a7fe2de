# SPDX-License-Identifier: Apache-2.0
"""When the fake kubelet deletes ResourceSlices, and its errors about claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kubelet.dra import DraPlugin
from nodeagent.sim.apiserver.store import RESOURCE_CLAIMS, RESOURCE_SLICES, Store
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests import virtual
from tests.kubelet.claims import DRIVER, NODE, POOL, ClaimRecorder, allocate_claim

OTHER = "other.example.com"


def publish(store: Store, name: str, driver: str = DRIVER, node: str = NODE) -> None:
    """Create a slice."""
    store.put(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": {"driver": driver, "nodeName": node}})


def slices(store: Store) -> list[str]:
    """The names of all slices."""
    return [each["metadata"]["name"] for each in store.all(RESOURCE_SLICES)]


@asynccontextmanager
async def driver(kubelet: FakeKubelet) -> AsyncIterator[None]:
    """A registered driver."""
    watcher, answers = DirectoryWatcher(), ClaimRecorder()
    root, registry = str(kubelet.paths.root), "/var/lib/kubelet/plugins_registry"
    plugin = DraPlugin(DRIVER, lambda: POOL, answers, registry, watcher, Timeouts(), prefix=root)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watcher.run)
        tasks.start_soon(plugin.run)
        await kubelet.until(lambda: bool(kubelet.statistics.accepted(DRIVER)))
        yield
        tasks.cancel_scope.cancel()
    watcher.close()


@virtual.TIME
async def test_each_start_deletes_the_slices_of_the_node_for_all_drivers(tmp_path: Path) -> None:
    store = Store()
    for _ in range(2):
        publish(store, "a")
        publish(store, "b", driver=OTHER)
        publish(store, "c", node="node2")
        async with FakeKubelet(tmp_path, api=store, node=NODE):
            await anyio.sleep(1)
            assert slices(store) == ["c"]


@virtual.TIME
async def test_a_driver_that_is_away_for_30_s_loses_its_slices(tmp_path: Path) -> None:
    store = Store()
    async with FakeKubelet(tmp_path, api=store, node=NODE) as kubelet:
        await anyio.sleep(1)
        publish(store, "a")
        publish(store, "b", driver=OTHER)
        async with driver(kubelet):
            await anyio.sleep(40)
        await anyio.sleep(29)
        assert slices(store) == ["a", "b"]
        await anyio.sleep(2)
        assert slices(store) == ["b"]


@virtual.TIME
async def test_a_driver_that_is_back_in_time_keeps_its_slices(tmp_path: Path) -> None:
    store = Store()
    async with FakeKubelet(tmp_path, api=store, node=NODE) as kubelet:
        await anyio.sleep(1)
        publish(store, "a")
        for _ in range(2):
            async with driver(kubelet):
                await anyio.sleep(1)
            await anyio.sleep(20)
        assert slices(store) == ["a"]


async def test_a_claim_is_prepared_for_its_first_pod_and_unprepared_after_its_last(tmp_path: Path) -> None:
    store = Store()
    allocate_claim(store, "shared", {"gpu": "pci-0"})
    async with FakeKubelet(tmp_path, api=store, node=NODE) as kubelet, driver(kubelet):
        pods = [await kubelet.admit(Pod("ns", name, [{}], claims=["shared"])) for name in ("one", "two")]
        assert [pod.phase for pod in pods] == ["Running", "Running"]
        for pod in pods:
            await kubelet.terminate(pod)
        methods = [call.method for call in kubelet.statistics.claims]
        assert methods == ["NodePrepareResources", "NodeUnprepareResources"]


@pytest.mark.parametrize("state", ["absent", "not allocated", "of another driver"])
async def test_a_pod_stays_pending_while_its_claim_cannot_be_prepared(tmp_path: Path, state: str) -> None:
    store = Store()
    if state == "not allocated":
        store.put(RESOURCE_CLAIMS, {"metadata": {"namespace": "ns", "name": "a"}})
    elif state == "of another driver":
        allocate_claim(store, "a", {"gpu": "pci-0"}, driver=OTHER)
    async with FakeKubelet(tmp_path, api=store, node=NODE) as kubelet, driver(kubelet):
        pod = await kubelet.admit(Pod("ns", "p", [{}], claims=["a"]))
        texts = {
            "absent": "not found",
            "not allocated": "is not allocated",
            "of another driver": f"DRA driver {OTHER} is not registered",
        }
        assert (pod.phase, pod.reason) == ("Pending", "FailedPrepareDynamicResources")
        assert texts[state] in pod.message
