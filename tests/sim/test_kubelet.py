# SPDX-License-Identifier: Apache-2.0
"""The fake kubelet: registration, lists, duplicates, restarts, faults, PodResources, plugins_registry.

Pods are in test_kubelet_pods; grpcio as a plugin is in test_kubelet_peer. What is expected here was
measured on kubelet 1.36.2.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError

from nodeagent.base import sockets
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.pluginregistration import pluginregistration
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import SocketServer, call
from nodeagent.sim.kubelet.plugins import is_extended_resource_name
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests import virtual
from tests.kubelet.serving import open_channel
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with, register, served


async def test_a_plugin_registers_and_its_list_makes_the_capacity(tmp_path: Path) -> None:
    plugin = Plugin(device("a"), device("b", health="Unhealthy"), device("c", 0))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        assert kubelet.capacity(RESOURCE) == (3, 2)
        (seen,) = kubelet.statistics.lists[RESOURCE]
        assert [entry.nodes for entry in seen.devices] == [None, None, (0,)]
        assert len(kubelet.statistics.accepted(RESOURCE)) == 1


async def test_only_one_spelling_is_healthy_and_equal_ids_collapse(tmp_path: Path) -> None:
    plugin = Plugin(*[device(name, health=name) for name in ("Healthy", "healthy", "HEALTHY", "")])
    async with kubelet_with(tmp_path, plugin) as kubelet:
        assert kubelet.capacity(RESOURCE) == (4, 1)
        plugin.show(device("a"), device("a", health="Unhealthy"))
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 0))


async def test_an_empty_list_keeps_the_registration(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        plugin.show()
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (0, 0))
        plugin.show(device("b"))
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 1))


@pytest.mark.parametrize(
    ("version", "resource", "text"),
    [
        ("v1", "also bad", 'API version "v1" is not supported by kubelet. Supported version is ["v1beta1"]'),
        ("v1beta1", "bad", 'the ResourceName "bad" is invalid'),
    ],
)
async def test_refusals_are_unknown_with_a_text_and_the_version_comes_first(
    tmp_path: Path, version: str, resource: str, text: str
) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        with pytest.raises(GRPCError) as refused:
            await register(kubelet, "none.sock", resource, version)
        assert refused.value.status is Status.UNKNOWN
        assert text in str(refused.value.message)
        assert text in str(kubelet.statistics.registrations[0].refusal)


@pytest.mark.parametrize(
    ("name", "accepted"),
    [
        ("example.com/DEV_x.y-z", True),
        ("example.com/" + "x" * 63, True),
        ("nvidia.com/GRID_T4-1Q", True),
        ("Example.com/dev", False),
        ("example.com/" + "x" * 64, False),
        ("example.com/-x", False),
        ("example.com/x_", False),
        ("dev", False),
        ("/dev", False),
        ("a/b/c", False),
        ("example.com/a b", False),
        ("kubernetes.io/x", False),
        ("notkubernetes.io/x", False),
        ("requests.example.com/x", False),
        ("hugepages-2Mi", False),
        ("a" * 245 + "/x", False),
    ],
)
def test_resource_names_are_judged_as_the_kubelet_judges_them(name: str, accepted: bool) -> None:
    assert is_extended_resource_name(name) is accepted


async def test_a_socket_that_comes_late_is_dialled_again(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet, anyio.create_task_group() as tasks:
        tasks.start_soon(register, kubelet, "dev.sock")
        await anyio.wait_all_tasks_blocked()
        async with served(kubelet, Plugin(device("a"))):
            await kubelet.until_listed(RESOURCE, 1)


async def test_a_plugin_without_options_is_refused(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        server = SocketServer(kubelet.paths.plugins, "dev.sock", [], timeouts=Timeouts())
        await server.start()
        with pytest.raises(GRPCError, match=r"failed to get device plugin options: .*Unimplemented"):
            await register(kubelet, "dev.sock")
        await server.stop(0)


async def test_a_stream_that_ends_makes_all_devices_unhealthy_and_closes_the_connection(
    tmp_path: Path,
) -> None:
    plugin = Plugin(device("a"), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        plugin.end_stream()
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (2, 0))
        assert kubelet.statistics.streams[RESOURCE] == 0


@virtual.TIME
async def test_the_end_of_an_old_stream_disconnects_the_new_plugin(tmp_path: Path) -> None:
    old, new = Plugin(device("a")), Plugin(device("a"))
    async with kubelet_with(tmp_path, old) as kubelet, served(kubelet, new, "new.sock"):
        await register(kubelet, "new.sock")
        await kubelet.until(lambda: kubelet.statistics.streams[RESOURCE] == 2)
        old.end_stream()
        await kubelet.until(lambda: kubelet.statistics.streams[RESOURCE] == 0)
        assert kubelet.capacity(RESOURCE) == (1, 0)
        await register(kubelet, "new.sock")
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 1))


@virtual.TIME
async def test_after_a_failed_register_devices_stay_allocatable_without_a_server(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        bare = SocketServer(kubelet.paths.plugins, "bare.sock", [], timeouts=Timeouts())
        await bare.start()
        with pytest.raises(GRPCError):
            await register(kubelet, "bare.sock")
        plugin.end_stream()
        await kubelet.until(lambda: kubelet.statistics.streams[RESOURCE] == 0)
        assert kubelet.capacity(RESOURCE) == (1, 1)
        await bare.stop(0)


async def test_a_list_above_four_mebibytes_ends_the_stream(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        plugin.show(*[device(f"{number:0>1000}") for number in range(4200)])
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 0), 20)


async def test_a_restart_wipes_sockets_keeps_files_and_needs_a_new_registration(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        (kubelet.paths.plugins / "a-file").touch()
        before = kubelet.socket.stat().st_ino, kubelet.socket.stat().st_ctime_ns
        await kubelet.restart()
        assert sorted(os.listdir(kubelet.paths.plugins)) == [
            "a-file",
            "kubelet.sock",
            "kubelet_internal_checkpoint",
        ]
        assert (kubelet.socket.stat().st_ino, kubelet.socket.stat().st_ctime_ns) != before
        assert kubelet.capacity(RESOURCE) == (0, 0)


async def test_a_stopped_kubelet_leaves_a_socket_that_refuses(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        await kubelet.stop()
        assert kubelet.socket.is_socket()
        assert not sockets.is_served(kubelet.socket)
        await kubelet.start()
        assert sockets.is_served(kubelet.socket)


async def test_the_socket_refuses_between_bind_and_listen(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet, anyio.create_task_group() as tasks:
        await kubelet.stop()
        kubelet.socket.unlink()
        tasks.start_soon(kubelet.restart, 0.2)
        with anyio.fail_after(5):
            while not kubelet.socket.is_socket():
                await anyio.lowlevel.checkpoint()
        assert not sockets.is_served(kubelet.socket)
        await kubelet.until(lambda: kubelet.life.running)
        assert sockets.is_served(kubelet.socket)


async def test_injected_refusals_and_drops_hit_the_named_resource_only(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet, served(kubelet, Plugin(device("a"))):
        kubelet.faults.set("refuse-register:example.com/no", "go away")
        kubelet.faults.set("drop-register:example.com/drop")
        with pytest.raises(GRPCError, match="go away"):
            await register(kubelet, "dev.sock", "example.com/no")
        with pytest.raises(StreamTerminatedError):
            await register(kubelet, "dev.sock", "example.com/drop")
        await register(kubelet, "dev.sock")
        await kubelet.until_listed(RESOURCE, 1)


async def test_a_hanging_register_does_not_answer(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        kubelet.faults.set("hang-register")
        with pytest.raises(KubeletUnavailable, match="no answer in time"):
            async with open_channel(kubelet.socket) as peer:
                request = v1beta1.RegisterRequest("v1beta1", "dev.sock", RESOURCE)
                await call(v1beta1.RegistrationStub(peer).register(request, timeout=0.1))


async def test_it_can_forget_to_open_the_stream(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with FakeKubelet(tmp_path) as kubelet, served(kubelet, plugin):
        kubelet.faults.set("no-list")
        await register(kubelet, "dev.sock")
        await anyio.wait_all_tasks_blocked()
        assert plugin.streams == 0
        assert RESOURCE not in kubelet.statistics.lists


async def test_a_stalled_reader_reads_on_when_it_is_let(tmp_path: Path) -> None:
    plugin = Plugin(device("a"))
    async with kubelet_with(tmp_path, plugin) as kubelet:
        kubelet.faults.set("stalled-reader")
        plugin.show(device("b"))
        await kubelet.until(lambda: "b" in kubelet.state.table.devices[RESOURCE])
        plugin.show(device("c"))
        await anyio.wait_all_tasks_blocked()
        assert "c" not in kubelet.state.table.devices[RESOURCE]
        kubelet.faults.clear("stalled-reader")
        await kubelet.until(lambda: "c" in kubelet.state.table.devices[RESOURCE])


async def test_the_kubelet_can_end_a_stream(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        kubelet.end_stream(RESOURCE)
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 0))


async def test_until_gives_up_in_time(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: False, 0.05)


@asynccontextmanager
async def lister(kubelet: FakeKubelet) -> AsyncIterator[v1.PodResourcesListerStub]:
    async with open_channel(kubelet.paths.pod_resources / "kubelet.sock") as peer:
        yield v1.PodResourcesListerStub(peer, timeout=5)


async def test_pod_resources_names_the_holders(tmp_path: Path) -> None:
    plugin = Plugin(device("a", 0), device("b"))
    async with kubelet_with(tmp_path, plugin) as kubelet, lister(kubelet) as stub:
        pod = await kubelet.admit(Pod("ns", "vm", [{RESOURCE: 2}]))
        answer = await stub.list(v1.ListPodResourcesRequest())
        (entry,) = answer.pod_resources
        devices = entry.containers[0].devices
        assert (entry.namespace, entry.name) == ("ns", "vm")
        assert sorted(one.device_ids[0] for one in devices) == ["a", "b"]
        nodes = {one.device_ids[0]: one.topology and one.topology.nodes[0].id for one in devices}
        assert nodes == {"a": 0, "b": None}
        got = await stub.get(v1.GetPodResourcesRequest("vm", "ns"))
        assert got.pod_resources == entry
        every = await stub.get_allocatable_resources(v1.AllocatableResourcesRequest())
        assert len(every.devices) == 2
        kubelet.delete(pod)
        assert kubelet.state.table.in_use(RESOURCE) == {"a", "b"}
        assert (await stub.list(v1.ListPodResourcesRequest())).pod_resources == []
        assert kubelet.state.table.in_use(RESOURCE) == set()


async def test_pod_resources_can_be_absent_empty_slow_and_rate_limited(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        await kubelet.admit(Pod("ns", "vm", [{RESOURCE: 1}]))
        async with lister(kubelet) as stub:
            kubelet.faults.set("pod-resources-empty", 3600)
            assert not (await stub.list(v1.ListPodResourcesRequest())).pod_resources
            kubelet.faults.clear("pod-resources-empty")
            kubelet.faults.set("pod-resources-exhausted")
            with pytest.raises(GRPCError, match="rejected by rate limit"):
                await stub.list(v1.ListPodResourcesRequest())
            kubelet.faults.clear("pod-resources-exhausted")
            kubelet.faults.set("pod-resources-delay", 0.1)
            before = time.monotonic()
            await stub.list(v1.ListPodResourcesRequest())
            assert time.monotonic() - before >= 0.1
        kubelet.faults.set("pod-resources-absent")
        await kubelet.restart()
        async with lister(kubelet) as stub:
            with pytest.raises(KubeletUnavailable):
                await call(stub.list(v1.ListPodResourcesRequest()))


class Announced(pluginregistration.RegistrationBase):
    """The registration service of a plugin in plugins_registry."""

    def __init__(self, kind: str = "DevicePlugin") -> None:
        self.kind = kind
        self.told: list[pluginregistration.RegistrationStatus] = []

    async def get_info(self, message: pluginregistration.InfoRequest) -> pluginregistration.PluginInfo:
        """Service on the same socket."""
        return pluginregistration.PluginInfo(self.kind, RESOURCE, "", ["v1beta1"])

    async def notify_registration_status(
        self, message: pluginregistration.RegistrationStatus
    ) -> pluginregistration.RegistrationStatusResponse:
        """Remember it."""
        self.told.append(message)
        return pluginregistration.RegistrationStatusResponse()


@asynccontextmanager
async def announced(kubelet: FakeKubelet, service: Announced, plugin: Plugin) -> AsyncIterator[SocketServer]:
    server = SocketServer(
        kubelet.paths.registry, ".dev.sock", [service, plugin], publish_as="dev.sock", timeouts=Timeouts()
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop(0)


@virtual.TIME
async def test_a_plugin_in_the_registry_comes_goes_and_survives_a_restart(tmp_path: Path) -> None:
    service = Announced()
    async with FakeKubelet(tmp_path) as kubelet, announced(kubelet, service, Plugin(device("a"))):
        await kubelet.until_listed(RESOURCE, 1)
        await kubelet.until(lambda: len(service.told) == 1)
        await kubelet.restart()
        await kubelet.until_listed(RESOURCE, 1)
        await kubelet.until(lambda: len(service.told) == 2)
        assert all(status.plugin_registered for status in service.told)
        (kubelet.paths.registry / "dev.sock").rename(kubelet.paths.registry / ".gone")
        await kubelet.until(lambda: kubelet.capacity(RESOURCE) == (1, 0))
        assert kubelet.statistics.streams[RESOURCE] == 0
        (kubelet.paths.registry / ".gone").rename(kubelet.paths.registry / "dev.sock")
        await kubelet.until_listed(RESOURCE, 1)


async def test_a_registry_plugin_of_an_unknown_type_is_told_so(tmp_path: Path) -> None:
    service = Announced("SomethingElse")
    async with FakeKubelet(tmp_path) as kubelet, announced(kubelet, service, Plugin()):
        await kubelet.until(lambda: bool(service.told))
        assert not service.told[0].plugin_registered
        assert "no handler registered" in service.told[0].error


@virtual.TIME
async def test_a_registry_stream_that_ends_is_not_registered_again(tmp_path: Path) -> None:
    plugin, service = Plugin(device("a")), Announced()
    async with FakeKubelet(tmp_path) as kubelet, announced(kubelet, service, plugin):
        await kubelet.until_listed(RESOURCE, 1)
        kubelet.end_stream(RESOURCE)
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: len(kubelet.statistics.registrations) > 1, 0.5)
