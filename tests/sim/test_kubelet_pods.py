# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet's admission: choice of devices, texts, crashes, health in the pod's status."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.sim.kubelet.state import Pod, health_of
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with, refused, register, served


def _pod(count: int = 1, name: str = "vm") -> Pod:
    return Pod("ns", name, [{RESOURCE: count}])


async def test_a_pod_gets_the_devices_and_the_environment(tmp_path: Path) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod(2))
        assert pod.phase == "Running"
        assert pod.result.envs == {"IDS": "a,b", "EMPTY": ""}
        assert sorted(pod.result.ids[RESOURCE]) == ["a", "b"]
        (allocation,) = kubelet.statistics.allocations
        assert sorted(allocation.ids) == ["a", "b"]


async def test_ids_come_in_random_order(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(8)]
    async with kubelet_with(tmp_path, Plugin(*map(device, names))) as kubelet:
        await kubelet.admit(_pod(8))
        (allocation,) = kubelet.statistics.allocations
        assert sorted(allocation.ids) == names
        assert list(allocation.ids) != names


async def test_devices_of_a_deleted_pod_are_free_at_the_next_admission(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        first = await kubelet.admit(_pod())
        assert (await kubelet.admit(_pod(name="second"))).phase == "Failed"
        kubelet.delete(first)
        assert (await kubelet.admit(_pod(name="third"))).phase == "Running"


async def test_too_few_devices_are_a_rejection_with_the_numbers(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        pod = await kubelet.admit(_pod(2))
        assert (pod.phase, pod.reason) == ("Failed", "UnexpectedAdmissionError")
        assert pod.message == (
            "Pod was rejected: Allocate failed due to requested number of devices unavailable for "
            "example.com/dev. Requested: 2, Available: 1, which is unexpected"
        )


async def test_unhealthy_devices_are_a_rejection(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a", health="Unhealthy"))) as kubelet:
        pod = await kubelet.admit(_pod())
        text = "no healthy devices present; cannot allocate unhealthy devices example.com/dev"
        assert text in pod.message


async def test_the_text_of_the_plugin_reaches_the_pod(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    plugin.refusal = refused("a is broken: Ω → 0")
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod())
        assert pod.message == (
            "Pod was rejected: Allocate failed due to rpc error: code = Internal "
            "desc = a is broken: Ω → 0, which is unexpected"
        )
        assert kubelet.state.table.in_use(RESOURCE) == set()


async def test_a_resource_that_nobody_listed_is_ignored(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        pod = await kubelet.admit(Pod("ns", "vm", [{"example.com/none": 1}]))
        assert (pod.phase, pod.result.ids) == ("Running", {})


async def test_the_preference_of_the_plugin_is_followed_as_far_as_it_fits(tmp_path: Path) -> None:
    plugin = Plugin(*map(device, "abcde"), prefers=["zzz", "d"])
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod(2))
        assert "d" in pod.result.ids[RESOURCE]
        assert len(pod.result.ids[RESOURCE]) == 2
        (wish,) = plugin.preferences
        assert (sorted(wish.available_device_ids), wish.allocation_size) == (list("abcde"), 2)


async def test_devices_of_init_containers_are_used_again_but_those_of_sidecars_are_not(
    tmp_path: Path,
) -> None:
    plugin = Plugin(*map(device, "abc"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        one = {RESOURCE: 1}
        pod = await kubelet.admit(
            Pod("ns", "vm", containers=[one], init_containers=[{RESOURCE: 2}], sidecars=[one])
        )
        init, sidecar, app = (set(pod.results[n].ids[RESOURCE]) for n in ("init0", "sidecar0", "c0"))
        assert sidecar | app == init
        assert not sidecar & app
        assert len(kubelet.statistics.allocations) == 3


async def test_no_device_is_given_twice_to_a_container_though_the_kubelet_has_forgotten_who_had_it(
    tmp_path: Path,
) -> None:
    """It counts again when another pod is refused, and takes what an init container had for free."""
    plugin = Plugin(*map(device, "abc"), prefers=["a", "b", "c"])
    async with kubelet_with(tmp_path, plugin) as kubelet:
        kubelet.state.table.allocated = NeverKept()
        pod = await kubelet.admit(
            Pod("ns", "vm", containers=[{RESOURCE: 2}], init_containers=[{RESOURCE: 1}])
        )
        assert len(set(pod.results["c0"].ids[RESOURCE])) == 2
        assert set(pod.results["init0"].ids[RESOURCE]) < set(pod.results["c0"].ids[RESOURCE])


class NeverKept(dict[str, set[str]]):
    """Counts of which nothing is known a moment later."""

    def setdefault(self, key: str, default: set[str] | None = None) -> set[str]:
        """Nothing stays."""
        return default if default is not None else set()


async def test_a_pod_is_refused_if_what_it_got_cannot_be_written(tmp_path: Path) -> None:
    plugin = Plugin(*map(device, "abc"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        kubelet.state.table.full = True
        pod = await kubelet.admit(_pod())
        assert "no space left on device" in pod.message
        kubelet.state.table.full = False
        assert (await kubelet.admit(_pod())).phase == "Running"


async def test_a_missing_device_node_stops_the_container_and_not_the_pod(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    plugin.node = "/dev/vfio/7"
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod())
        assert pod.phase == "Running"
        assert pod.result.error == "CreateContainerError: lstat /dev/vfio/7: no such file or directory"
        kubelet.delete(pod)
        (tmp_path / "dev/vfio").mkdir(parents=True)
        (tmp_path / "dev/vfio/7").touch()
        assert (await kubelet.admit(_pod())).result.error is None


async def test_pods_keep_their_devices_over_a_restart(tmp_path: Path) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod())
        await kubelet.restart()
        assert kubelet.state.table.in_use(RESOURCE) == set(pod.result.ids[RESOURCE])
        text = "no healthy devices present; cannot allocate unhealthy devices example.com/dev"
        assert text in (await kubelet.admit(_pod(name="early"))).message
        async with served(kubelet, plugin, "again.sock"):
            await register(kubelet, "again.sock")
            await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (2, 2))
            other = await kubelet.admit(_pod(name="late"))
            assert set(other.result.ids[RESOURCE]) != set(pod.result.ids[RESOURCE])


async def test_health_in_the_pod_follows_the_list_but_not_the_plugins_death(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        pod = await kubelet.admit(_pod())
        assert health_of(kubelet.state.table, pod.uid) == {"a": "Healthy"}
        plugin.show(device("a", health="Unhealthy"))
        await kubelet.until(lambda: health_of(kubelet.state.table, pod.uid) == {"a": "Unhealthy"})
        plugin.show(device("a"))
        await kubelet.until(lambda: health_of(kubelet.state.table, pod.uid) == {"a": "Healthy"})
        plugin.end_stream()
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 0))
        assert health_of(kubelet.state.table, pod.uid) == {"a": "Healthy"}


@pytest.mark.parametrize("stays", [False, True], ids=["dropped", "shown as unhealthy"])
async def test_dropping_an_id_while_its_allocate_runs_crashes_the_kubelet(
    tmp_path: Path, stays: bool
) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet, anyio.create_task_group() as tasks:
        plugin.gate = anyio.Event()
        tasks.start_soon(kubelet.admit, _pod(2))
        await kubelet.until(lambda: len(kubelet.state.allocating) == 2)
        left = [device("b", health="Unhealthy")] if stays else []
        plugin.show(device("a"), *left)
        await kubelet.until(lambda: kubelet.state.table.allocatable(RESOURCE) == 1)
        plugin.gate.set()
        await kubelet.until(lambda: len(kubelet.statistics.allocations) == 1)
        assert (kubelet.life.crashed is None) is stays


@pytest.mark.parametrize(
    ("policy", "numa", "left", "crashes"),
    [
        ("best-effort", 0, [], True),
        ("best-effort", 0, [("a", "Unhealthy")], False),
        ("best-effort", None, [], False),
        ("none", 0, [], False),
    ],
)
async def test_a_held_id_that_is_missing_after_a_restart_crashes_topology_hints(
    tmp_path: Path, policy: str, numa: int | None, left: list[tuple[str, str]], crashes: bool
) -> None:
    plugin = Plugin(device("a", numa))
    async with kubelet_with(tmp_path, plugin, topology_policy=policy) as kubelet:
        await kubelet.admit(_pod())
        await kubelet.restart()
        plugin.show(device("b", numa), *[device(name, numa, health) for name, health in left])
        async with served(kubelet, plugin, "again.sock"):
            await register(kubelet, "again.sock")
            await kubelet.until(lambda: "b" in kubelet.state.table.devices.get(RESOURCE, {}))
            await kubelet.until(lambda: kubelet.life.running is not crashes)
            assert (kubelet.life.crashed is not None) is crashes


async def test_what_is_under_an_allocate_while_a_pod_ends_and_somebody_asks_is_forgotten(
    tmp_path: Path,
) -> None:
    """A refusal makes the kubelet count again."""
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet, anyio.create_task_group() as tasks:
        old = await kubelet.admit(_pod(name="old"))
        (taken,) = old.result.ids[RESOURCE]
        (left,) = {"a", "b"} - {taken}
        plugin.gate = anyio.Event()
        first = _pod(name="first")
        tasks.start_soon(kubelet.admit, first)
        await kubelet.until(lambda: left in kubelet.state.allocating)
        kubelet.delete(old)
        socket = str(kubelet.paths.pod_resources / "kubelet.sock")
        with closing(PodReader(socket, VirtHandler(""), Timeouts().pod_resources_rpc)) as reader:
            await reader.pods()
        plugin.gate.set()
        await kubelet.until(lambda: first.phase == "Running")
        plugin.refusal = refused("not now")
        both = await kubelet.admit(_pod(2, name="both"))
        assert "not now" in both.message, "it takes both for free"
        assert "Available: 1" in (await kubelet.admit(_pod(2, name="again"))).message


async def test_a_container_is_not_started_again_before_its_plugin_has_come_again(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        one = await kubelet.admit(_pod(name="one"))
        await kubelet.restart()
        await kubelet.admit(one, again=True)
        assert one.result.error == f"endpoint not found in cache for a registered resource: {RESOURCE}"
        async with served(kubelet, plugin, "again.sock"):
            await register(kubelet, "again.sock")
            await kubelet.until_listed(RESOURCE, 1)
            await kubelet.admit(one, again=True)
        assert one.result.error is None
