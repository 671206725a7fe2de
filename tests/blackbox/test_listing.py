# SPDX-License-Identifier: Apache-2.0
"""What the kubelet is told of devices: complete, at once, on change only, never less than it must know."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from grpclib.client import Channel, Stream
from grpclib.config import Configuration
from grpclib.const import Cardinality

from nodeagent.base import sockets
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import (
    EXEC,
    PATIENCE,
    T4,
    Node,
    allocate,
    client_of,
    health,
    healths,
    pod,
    socket_of,
    until_health,
    within,
)
from tests.sim import fifos

LIST = "/v1beta1.DevicePlugin/ListAndWatch"
OUTAGES = {
    "absent": ("pod-resources-absent", True),
    "slow": ("pod-resources-delay", 60),
    "rate-limited": ("pod-resources-exhausted", True),
    "empty after a restart": ("pod-resources-empty", 3600),
}


async def test_a_device_that_fails_and_recovers_costs_one_list_each_way(node: Node) -> None:
    first, second = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (daemon, kubelet):
        node.host.remove_node("/dev/vfio/11")
        await until_health(kubelet, T4, second, "Unhealthy")
        node.host.node("/dev/vfio/11")
        await until_health(kubelet, T4, second, "Healthy")
        good, bad = {first: "Healthy", second: "Healthy"}, {first: "Healthy", second: "Unhealthy"}
        assert healths(list(kubelet.statistics.lists[T4])) == [good, bad, good]
        await daemon.logged("device-healthy")
        assert len(daemon.lines("device-unhealthy")) == 1
        assert len(daemon.lines("device-healthy")) == 1


async def test_one_broken_device_is_unhealthy_says_why_and_harms_no_other(node: Node) -> None:
    fine, nodeless, driverless = node.add_gpus(3)
    node.host.remove_node("/dev/vfio/11")
    node.host.bind(driverless, None)
    node.configure("resources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]")
    async with node.running(listed={"example.com/gpu": 3}) as (_, kubelet):
        assert health(kubelet, "example.com/gpu") == {
            fine: "Healthy",
            nodeless: "Unhealthy",
            driverless: "Unhealthy",
        }
        (told,) = (await node.status())["resources"]
        reasons = {device["id"]: device.get("message") for device in told["devices"]}
        assert reasons[fine] is None
        assert "/dev/vfio/11" in reasons[nodeless]
        assert "no driver" in reasons[driverless]
        assert "no driver" in (await node.command("explain", driverless)).stdout
        assert [response.envs for response in await allocate(kubelet, "example.com/gpu", [fine])] == [
            {"PCI_RESOURCE_EXAMPLE_COM_GPU": fine}
        ]


async def test_one_unreadable_attribute_costs_one_device_which_says_so(node: Node) -> None:
    fine, stuck = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        fifos.hang(node.host, stuck, "enable")
        await until_health(kubelet, T4, stuck, "Unhealthy")
        assert health(kubelet, T4)[fine] == "Healthy"
        (told,) = (await node.status())["resources"]
        assert [device.get("reason") for device in told["devices"]] == [None, "unreadable"]
        assert "not readable" in (await node.command("explain", stuck)).stdout
        fifos.unhang(node.host, stuck, "enable")
        await until_health(kubelet, T4, stuck, "Healthy")


@asynccontextmanager
async def stream_of(kubelet: FakeKubelet, resource: str) -> AsyncIterator[list[dict[str, str]]]:
    """A second ListAndWatch stream; yields the healths of the lists that it got so far."""
    got: list[dict[str, str]] = []

    async def read() -> None:
        async with (
            client_of(kubelet, resource) as channel,
            channel.request(LIST, Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse) as s,
        ):
            await s.send_message(v1beta1.Empty(), end=True)
            try:
                while (message := await s.recv_message()) is not None:
                    got.append({device.id: device.health for device in message.devices})
                    kubelet.state.changed()
            finally:
                with anyio.CancelScope(shield=True):
                    await s.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await kubelet.until(lambda: bool(got), PATIENCE)
        yield got
        tasks.cancel_scope.cancel()


async def test_two_streams_both_get_every_update(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet), stream_of(kubelet, T4) as second:
        for number in range(6):
            wanted = "Healthy" if number % 2 else "Unhealthy"
            node.host.bind(address, "vfio-pci" if number % 2 else "nvidia")
            await until_health(kubelet, T4, address, wanted)
            await kubelet.until(lambda wanted=wanted: second[-1] == {address: wanted}, PATIENCE)  # type: ignore[misc]
        assert second == healths(list(kubelet.statistics.lists[T4]))
    assert len(second) == 7


@pytest.mark.slow
async def test_a_reader_that_stalls_gets_the_last_state_and_costs_no_memory(node: Node) -> None:
    node.host.node("/dev/kvm")
    node.configure("resources: [{name: example.com/many, node: {path: /dev/kvm, count: 200}}]")
    async with (
        node.running(listed={"example.com/many": 200}) as (daemon, kubelet),
        narrow_stream(kubelet, "example.com/many") as stalled,
    ):
        rss = daemon.usage().rss
        for number in range(101):
            if number % 2:
                node.host.node("/dev/kvm")
            else:
                node.host.remove_node("/dev/kvm")
            wanted = "Healthy" if number % 2 else "Unhealthy"
            await until_health(kubelet, "example.com/many", "kvm-0", wanted)
        assert daemon.usage().rss < rss + 4096
        got: list[str] = []
        with anyio.move_on_after(2.0):  # the stream stays open: nothing more comes after the last state
            while (message := await stalled.recv_message()) is not None:
                got.append(message.devices[0].health)
        assert got[-1] == "Unhealthy"
        assert 1 < len(got) < 40


@asynccontextmanager
async def narrow_stream(kubelet: FakeKubelet, resource: str) -> AsyncIterator[Stream[Any, Any]]:
    """A ListAndWatch stream that takes 64 KiB and then no more, until it is read."""
    window = Configuration(http2_connection_window_size=65536, http2_stream_window_size=65536)
    with sockets.shortened(socket_of(kubelet, resource)) as address:
        channel = Channel(path=address, config=window)
        try:
            async with channel.request(
                LIST, Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse
            ) as stream:
                await stream.send_message(v1beta1.Empty(), end=True)
                yield stream
                await stream.cancel()
        finally:
            channel.close()
            await anyio.lowlevel.checkpoint()


async def test_when_all_devices_are_unplugged_an_empty_list_keeps_the_registration(node: Node) -> None:
    addresses = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        for address in addresses:
            node.host.unplug(address)
        await kubelet.until(lambda: health(kubelet, T4) == {}, PATIENCE)
        assert kubelet.capacity(T4) == (0, 0)
        assert kubelet.statistics.streams == {T4: 1}
        node.host.plug(addresses[0])
        node.host.bind(addresses[0], "vfio-pci")
        await until_health(kubelet, T4, addresses[0], "Healthy")
        assert len(kubelet.statistics.registrations) == 1


async def test_a_device_that_vanishes_during_its_allocate_stays_listed_until_the_answer(node: Node) -> None:
    (gpu,) = node.add_gpus(1)
    audio = gpu[:-1] + "1"
    node.add_sound(audio, 10)
    async with node.running(listed={T4: 1}) as (_, kubelet), anyio.create_task_group() as tasks:
        fifos.hang(node.host, audio, "enable")
        asked = pod("vm", {T4: 1})
        tasks.start_soon(kubelet.admit, asked)
        await node.until_told(lambda told: told["host"]["notReadable"] == [audio])
        node.host.unplug(gpu)
        await until_health(kubelet, T4, gpu, "Unhealthy")
        assert kubelet.state.allocating == {gpu}
        fifos.unhang(node.host, audio, "enable")
        await kubelet.until(lambda: asked.phase == "Failed", PATIENCE)
        assert gpu in asked.message
        await until_health(kubelet, T4, gpu, None)
        assert not kubelet.life.crashed
        assert all(gpu in seen.health for seen in list(kubelet.statistics.lists[T4])[:-1])


async def test_a_held_device_that_left_while_the_daemon_was_down_is_listed_until_its_pod_ends(
    node: Node,
) -> None:
    held, other = node.add_gpus(2)
    async with node.kubelet() as kubelet:
        async with node.daemon() as daemon:
            await kubelet.until_listed(T4, 2, PATIENCE)
            vm = await kubelet.admit(pod("vm", {T4: 2}))
            assert vm.phase == "Running"
            await daemon.end(signal.SIGKILL)
        node.host.unplug(held)
        seen = len(kubelet.statistics.lists[T4])
        async with node.daemon():
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            assert kubelet.statistics.lists[T4][seen].health == {held: "Unhealthy", other: "Healthy"}
            (told,) = (await node.status())["resources"]
            assert "ns/vm" in told["devices"][0]["message"]
            kubelet.delete(vm)
            await until_health(kubelet, T4, held, None)
            assert not kubelet.life.crashed


@pytest.mark.parametrize("outage", OUTAGES)
async def test_without_a_trustworthy_answer_on_holders_nothing_held_is_dropped(
    node: Node, outage: str
) -> None:
    held, other = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 2}))
        assert vm.phase == "Running"
        await node.until_told(lambda told: len(told["holders"]) == 2)
        name, setting = OUTAGES[outage]
        kubelet.faults.set(name, setting)
        await kubelet.restart()
        await kubelet.until_listed(T4, 2, PATIENCE)
        node.host.unplug(held)
        await until_health(kubelet, T4, held, "Unhealthy")
        with pytest.raises(TimeoutError):
            await until_dropped(kubelet, held, 1.0)
        assert health(kubelet, T4)[other] == "Healthy"


async def until_dropped(kubelet: FakeKubelet, device: str, seconds: float) -> None:
    """Wait until the device is no longer listed."""
    await kubelet.until(lambda: device not in health(kubelet, T4), seconds)


async def test_numa_nodes_are_told_as_they_are_and_unknown_ones_not_at_all(node: Node) -> None:
    for number, numa in enumerate((-1, 0, 1, 7)):
        node.add_gpu(f"0000:1{number}:00.0", 10 + number, numa=numa)
    async with node.running(listed={T4: 4}) as (_, kubelet):
        nodes = [device.nodes for device in kubelet.statistics.lists[T4][0].devices]
        assert nodes == [None, (0,), (1,), None]


async def test_a_rule_can_leave_numa_nodes_out(node: Node) -> None:
    for number in range(3):
        node.add_gpu(f"0000:1{number}:00.0", 10 + number, numa=1, device=f"1eb{number}")
    node.configure(
        """
resources:
  - {name: example.com/here, pci: [{devices: [1eb0]}]}
  - {name: example.com/anywhere, pci: [{devices: [1eb1]}], topology: false}
  - {name: example.com/anywhere, pci: [{devices: [1eb2]}], topology: false}
"""
    )
    resources = {"example.com/here": 1, "example.com/anywhere": 2}
    async with node.running(listed=resources) as (_, kubelet):
        lists = {each: kubelet.statistics.lists[each][-1].devices for each in resources}
        nodes = {each: [device.nodes for device in devices] for each, devices in lists.items()}
        assert nodes == {"example.com/here": [(1,)], "example.com/anywhere": [None, None]}


async def test_what_happened_without_a_stream_is_in_the_first_list_of_the_next(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        await kubelet.stop()
        node.host.bind(address, "nvidia")
        await daemon.logged("device-unhealthy")
        seen = len(kubelet.statistics.lists[T4])
        await kubelet.start()
        await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
        assert kubelet.statistics.lists[T4][seen].health == {address: "Unhealthy"}


async def test_devices_that_come_go_and_change_are_told_on_the_open_stream(node: Node) -> None:
    first, second = node.add_gpus(2)
    node.host.bind(second, None)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        node.host.bind(second, "vfio-pci")
        await until_health(kubelet, T4, second, "Healthy")
        node.host.unplug(first)
        await until_health(kubelet, T4, first, None)
        node.add_gpu("0000:20:00.0", 20, sriov=4)
        node.host.bind("0000:20:00.0", "nouveau")  # with one on vfio-pci its VFs want a token
        node.add_gpu("0000:20:00.4", 21, physfn="0000:20:00.0")
        await until_health(kubelet, T4, "0000:20:00.4", "Healthy")
        assert len(kubelet.statistics.registrations) == 1
        assert kubelet.statistics.streams == {T4: 1}


async def test_a_group_that_has_another_number_is_resolved_when_it_is_given(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        node.host.unplug(address)
        await until_health(kubelet, T4, address, None)
        node.add_gpu(address, 39)
        await until_health(kubelet, T4, address, "Healthy")
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        assert [host for host, _, _ in vm.result.devices] == ["/dev/vfio/vfio", "/dev/vfio/39"]


@pytest.mark.bench
@pytest.mark.timeout(150)
async def test_a_minute_without_news_is_silent_and_costs_next_to_no_processor_time(node: Node) -> None:
    node.add_gpus(1)
    node.host.node("/dev/kvm")
    node.configure(
        "resources:\n"
        + "".join(f"  - {{name: example.com/r{n}, node: {{path: /dev/kvm}}}}\n" for n in range(7))
    )
    listed = {T4: 1} | {f"example.com/r{number}": 1 for number in range(7)}
    async with node.kubelet() as kubelet, node.daemon(under=EXEC) as daemon:
        for resource, devices in listed.items():
            await kubelet.until_listed(resource, devices, PATIENCE)
        await daemon.logged("resource-registered", count=8)
        with pytest.raises(TimeoutError):  # tidying up after the registrations
            await kubelet.until(lambda: False, 2.0)
        lines, lists, before = len(daemon.raw), kubelet.statistics.lists_total, daemon.usage()
        with pytest.raises(TimeoutError):
            await kubelet.until(lambda: kubelet.statistics.lists_total > lists, 60.0)
        assert len(daemon.raw) == lines
        after = daemon.usage()
        # Slow timers alone: 30 switches and 9 ms here; a poll of once a second would show in both.
        assert after.switches - before.switches <= 55
        assert after.ticks - before.ticks <= 10


async def test_a_stream_that_opens_late_is_given_the_present_list_at_once(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        node.host.bind(address, "nvidia")
        await until_health(kubelet, T4, address, "Unhealthy")
        async with stream_of(kubelet, T4) as got:
            assert got == [{address: "Unhealthy"}]
        assert await within(5, node.status())
