# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet's memory of pods: whom it names, what it frees, and when it writes its checkpoint.

What is expected here was measured on kubelet 1.36.3.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent.kubelet.api.podresources import v1
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import CHECKPOINT, Pod
from tests.kubelet.serving import open_channel
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with, refused, register, served

OTHER = "example.com/other"


def _pod(name: str = "vm", *limits: dict[str, int], **more: Any) -> Pod:
    return Pod("ns", name, list(limits) or [{RESOURCE: 1}], **more)


async def _named(kubelet: FakeKubelet) -> dict[str, set[str]]:
    """Each pod that List names, with the ids that it shows."""
    async with open_channel(kubelet.paths.pod_resources / "kubelet.sock") as peer:
        answer = await v1.PodResourcesListerStub(peer, timeout=5).list(v1.ListPodResourcesRequest())
    return {
        pod.name: {name for one in pod.containers for entry in one.devices for name in entry.device_ids}
        for pod in answer.pod_resources
    }


def _written(kubelet: FakeKubelet) -> list[tuple[str, str]]:
    """Container and resource of each entry of the checkpoint."""
    document = json.loads((kubelet.paths.plugins / CHECKPOINT).read_text())
    return [(entry["ContainerName"], entry["ResourceName"]) for entry in document["Data"]["PodDeviceEntries"]]


def _stamp(kubelet: FakeKubelet) -> tuple[int, int]:
    """Another one after each write."""
    status = (kubelet.paths.plugins / CHECKPOINT).stat()
    return status.st_ino, status.st_mtime_ns


async def _while_allocate_is_open(kubelet: FakeKubelet, plugin: Plugin) -> None:
    await kubelet.until(lambda: bool(kubelet.state.allocating))
    assert not plugin.gate.is_set()


async def _list_one_more(kubelet: FakeKubelet, plugin: Plugin, name: str) -> None:
    """Have the kubelet read another list of the plugin."""
    plugin.show(device(name), *plugin.list.get().devices)
    await kubelet.until(lambda: any(name in table for table in kubelet.state.table.devices.values()))


async def test_a_pod_is_named_from_its_own_admission_on_without_what_it_did_not_get_yet(
    tmp_path: Path,
) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet, anyio.create_task_group() as tasks:
        plugin.gate = anyio.Event()
        first, second = _pod("first"), _pod("second")
        tasks.start_soon(kubelet.admit, first)
        await _while_allocate_is_open(kubelet, plugin)
        tasks.start_soon(kubelet.admit, second)
        assert await _named(kubelet) == {"first": set()}
        plugin.gate.set()
        await kubelet.until(lambda: second.phase == "Running")
        assert sorted(map(len, (await _named(kubelet)).values())) == [1, 1]


async def test_a_pod_that_is_refused_half_way_is_named_no_more_and_frees_what_it_had(tmp_path: Path) -> None:
    plugin, refusing = Plugin(device("a")), Plugin(device("x"))
    refusing.refusal = refused("no")
    async with kubelet_with(tmp_path, plugin) as kubelet, served(kubelet, refusing, "other.sock"):
        await register(kubelet, "other.sock", OTHER)
        await kubelet.until_listed(OTHER, 1)
        pod = await kubelet.admit(_pod("half", {RESOURCE: 1}, {OTHER: 1}))
        assert pod.phase == "Failed"
        assert kubelet.state.table.in_use(RESOURCE) == {"a"}
        assert _written(kubelet) == [("c0", RESOURCE)]
        assert await _named(kubelet) == {}
        assert kubelet.state.table.in_use(RESOURCE) == set()
        assert (await kubelet.admit(_pod("next"))).phase == "Running"


async def test_the_checkpoint_is_written_after_the_last_resource_of_a_container_and_at_lists(
    tmp_path: Path,
) -> None:
    plugin, other = Plugin(device("a")), Plugin(device("x"))
    async with kubelet_with(tmp_path, plugin) as kubelet, served(kubelet, other, "other.sock"):
        await register(kubelet, "other.sock", OTHER)
        await kubelet.until_listed(OTHER, 1)
        async with anyio.create_task_group() as tasks:
            plugin.gate, other.gate = anyio.Event(), anyio.Event()
            pod = _pod("vm", {RESOURCE: 1, OTHER: 1})
            tasks.start_soon(kubelet.admit, pod)
            await _while_allocate_is_open(kubelet, plugin)
            asked_first, asked_last = (plugin, other) if "a" in kubelet.state.allocating else (other, plugin)
            await _list_one_more(kubelet, asked_first, "b")
            assert _written(kubelet) == []
            before = _stamp(kubelet)
            asked_first.gate.set()
            await kubelet.until(lambda: len(kubelet.statistics.allocations) == 1)
            await kubelet.until(lambda: bool(kubelet.state.allocating))
            assert _stamp(kubelet) == before
            await _list_one_more(kubelet, asked_last, "c")
            assert len(_written(kubelet)) == 1
            asked_last.gate.set()
        assert sorted(_written(kubelet)) == [("c0", RESOURCE), ("c0", OTHER)]


async def test_deletions_and_refusals_do_not_write_the_checkpoint(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod())
        before = _stamp(kubelet)
        assert (await kubelet.admit(_pod("second"))).phase == "Failed"
        kubelet.delete(pod)
        assert await _named(kubelet) == {}
        plugin.refusal = refused("no")
        assert (await kubelet.admit(_pod("third"))).phase == "Failed"
        assert _stamp(kubelet) == before
        assert _written(kubelet) == [("c0", RESOURCE)]
        plugin.show(device("a"), device("b"))
        await kubelet.until_listed(RESOURCE, 2)
        assert _written(kubelet) == []


async def test_a_deleted_pod_is_forgotten_at_once_whatever_its_containers_do(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        kubelet.delete(await kubelet.admit(_pod("old")))
        assert await _named(kubelet) == {}
        assert (await kubelet.admit(_pod("new"))).result.ids == {RESOURCE: ("a",)}


@pytest.mark.parametrize("setting", [{"ns/old"}, 60.0], ids=["keys", "seconds"])
async def test_pods_of_a_source_that_was_not_read_are_not_named_and_keep_what_they_have(
    tmp_path: Path, setting: object
) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        old = await kubelet.admit(_pod("old"))
        kubelet.faults.set("pod-resources-unnamed", setting)
        await kubelet.restart()
        async with served(kubelet, plugin, "again.sock"):
            await register(kubelet, "again.sock")
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (2, 2))
            assert await _named(kubelet) == {}
            static = await kubelet.admit(_pod("static"))
            assert await _named(kubelet) == {"static": set(static.result.ids[RESOURCE])}
            assert kubelet.state.table.in_use(RESOURCE) == {"a", "b"}
            kubelet.delete(old)
            assert (await kubelet.admit(_pod("more"))).phase == "Failed"
            kubelet.faults.clear("pod-resources-unnamed")
            assert (await kubelet.admit(_pod("late"))).result.ids == old.result.ids


async def test_the_plugin_is_asked_for_its_preference_among_ids_in_random_order(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(8)]
    plugin = Plugin(*map(device, names), prefers=["d3"])
    async with kubelet_with(tmp_path, plugin) as kubelet:
        await kubelet.admit(_pod())
        (wish,) = plugin.preferences
        assert sorted(wish.available_device_ids) == names
        assert wish.available_device_ids != names
