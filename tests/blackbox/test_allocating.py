# SPDX-License-Identifier: Apache-2.0
"""What the kubelet's questions are answered: Allocate, GetPreferredAllocation, and all others it may ask."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from nodeagent.base import threads
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.blackbox.harness import (
    PATIENCE,
    T4,
    Node,
    allocate,
    client_of,
    eventually,
    health,
    pod,
    until_health,
)
from tests.sim import fifos
from tests.sim.hosts import many

ENV = "PCI_RESOURCE_NVIDIA_COM_TU104GL_TESLA_T4"


async def test_two_devices_are_given_in_one_response_the_same_in_any_order(node: Node) -> None:
    first, second = node.add_gpus(2)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        (one,) = await allocate(kubelet, T4, [first, second])
        (other,) = await allocate(kubelet, T4, [second, first])
        assert one.envs == {ENV: f"{first},{second}"}
        assert set(other.envs[ENV].split(",")) == {first, second}
        paths = ["/dev/vfio/10", "/dev/vfio/11", "/dev/vfio/vfio"]
        for answer in (one, other):
            assert sorted(device.host_path for device in answer.devices) == paths
            assert {device.permissions for device in answer.devices} == {"mrw"}


async def test_init_sidecar_and_app_containers_may_share_and_repeat(node: Node) -> None:
    addresses = node.add_gpus(3)
    async with node.running(listed={T4: 3}) as (_, kubelet):
        vm = await kubelet.admit(
            pod("vm", {T4: 2}, init_containers=[{T4: 2}], sidecars=[{T4: 1}]),
        )
        assert vm.phase == "Running", vm.message
        given = [ids for each in kubelet.statistics.allocations for ids in each.ids]
        assert len(given) > len(set(given))
        again = [await allocate(kubelet, T4, [addresses[0]]) for _ in range(3)]
        assert again[0] == again[1] == again[2]


async def test_an_unknown_id_is_refused_by_name(node: Node) -> None:
    node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        for ids in (["0000:99:00.0"], ["0000:10:00.0", "0000:99:00.0"]):
            with pytest.raises(GRPCError, match=r"0000:99:00\.0") as refused:
                await allocate(kubelet, T4, ids)
            assert "0000:10:00.0" not in str(refused.value.message)
        line = await daemon.logged("allocate-refused", count=2)
        assert "reason" not in line, "no device has one"


@pytest.mark.parametrize("broken", ["node", "driver"])
async def test_a_device_that_broke_a_moment_ago_is_unhealthy_before_its_allocate_fails(
    node: Node, broken: str
) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        if broken == "node":
            node.host.remove_node("/dev/vfio/10")
        else:
            node.host.bind(address, "nvidia")
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        assert vm.phase == "Failed"
        await until_health(kubelet, T4, address, "Unhealthy")
        (asked,) = kubelet.statistics.allocations
        assert asked.error is not None
        assert address in asked.error
        assert ("/dev/vfio/10" if broken == "node" else "nvidia") in asked.error
        assert kubelet.statistics.lists[T4][-1].when < asked.when + 0.1
        if broken == "driver":
            assert node.driver_of(address) == "nvidia"


@pytest.mark.slow
async def test_a_device_that_a_stale_process_has_open_is_not_given(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet):
        await node.until_told(lambda told: told["kubelet"]["podResources"] == "answers")
        node.host.hold(address)
        with pytest.raises(GRPCError, match=address):
            await allocate(kubelet, T4, [address])
        refused = await daemon.logged("allocate-refused")
        assert refused["reason"] == "held-outside-kubernetes"
        assert health(kubelet, T4) == {address: "Unhealthy"}


@pytest.mark.slow
async def test_an_allocate_on_a_hanging_host_fails_after_ten_seconds_and_delays_nobody(node: Node) -> None:
    stuck, fine = node.add_gpus(2)
    node.configure(
        f"resources: [{{name: example.com/stuck, pci: [{{addresses: ['{stuck}']}}]}},"
        f" {{name: example.com/fine, pci: [{{addresses: ['{fine}']}}]}}]"
    )
    listed = {"example.com/stuck": 1, "example.com/fine": 1}
    async with node.running(listed=listed) as (_, kubelet), anyio.create_task_group() as tasks:
        fifos.hang(node.host, stuck, "enable")
        asked = pod("vm", {"example.com/stuck": 1})
        began = time.monotonic()
        tasks.start_soon(kubelet.admit, asked)
        await kubelet.until(lambda: bool(kubelet.state.allocating), PATIENCE)
        quickest = [await _seconds(kubelet, fine) for _ in range(20)]
        assert sorted(quickest)[10] < 1.0
        await until_health(kubelet, "example.com/stuck", stuck, "Unhealthy")
        assert (await node.status())["host"]["notReadable"] == [stuck]
        node.host.bind(fine, "nvidia")
        await until_health(kubelet, "example.com/fine", fine, "Unhealthy")
        assert asked.phase == "Pending"
        await kubelet.until(lambda: asked.phase == "Failed", PATIENCE)
        assert 9.0 < time.monotonic() - began < 13.0
        assert stuck in asked.message
        assert kubelet.statistics.streams == {"example.com/stuck": 1, "example.com/fine": 1}
        fifos.unhang(node.host, stuck, "enable")
        await until_health(kubelet, "example.com/stuck", stuck, "Healthy")


async def _seconds(kubelet: FakeKubelet, device: str) -> float:
    began = time.monotonic()
    await allocate(kubelet, "example.com/fine", [device])
    return time.monotonic() - began


async def test_many_allocates_at_once_over_sixty_resources_are_all_right(node: Node) -> None:
    await threads.call(many, node.root, 120, 60)
    async with node.kubelet() as kubelet, node.daemon("--discovery-naming", "id"):
        streams = kubelet.statistics.streams
        await kubelet.until(lambda: sum(streams.values()) == 60 == len(kubelet.state.table.devices), PATIENCE)
        limit, wrong = anyio.Semaphore(8), []

        async def ask(resource: str, address: str) -> None:
            async with limit:
                (answer,) = await allocate(kubelet, resource, [address])
            if list(answer.envs.values()) != [address]:
                wrong.append((resource, address, answer))

        async with anyio.create_task_group() as tasks:
            for resource, devices in kubelet.state.table.devices.items():
                for address in devices:
                    tasks.start_soon(ask, resource, address)
        assert wrong == []


async def test_two_containers_in_one_request_get_two_responses_in_order(node: Node) -> None:
    first, second, third = node.add_gpus(3)
    async with node.running(listed={T4: 3}) as (_, kubelet):
        answers = await allocate(kubelet, T4, [third], [first, second], [third])
        assert [answer.envs for answer in answers] == [
            {ENV: third},
            {ENV: f"{first},{second}"},
            {ENV: third},
        ]
        assert [len(answer.devices) for answer in answers] == [2, 3, 2]


async def test_a_vf_among_the_devices_leaves_the_others_as_they_are(node: Node) -> None:
    node.add_gpu("0000:20:00.0", 20, sriov=4)
    node.add_gpu("0000:20:00.4", 21, physfn="0000:20:00.0")
    node.host.bind("0000:20:00.0", "nouveau")  # with one on vfio-pci its VFs want a token
    node.add_gpu("0000:30:00.0", 30)
    async with node.running(listed={T4: 2}) as (_, kubelet):
        for address in ("0000:20:00.4", "0000:30:00.0", "0000:20:00.4"):
            (answer,) = await allocate(kubelet, T4, [address])
            assert answer.envs == {ENV: address}


async def _preferred(kubelet: FakeKubelet, available: list[str], must: list[str], size: int) -> list[str]:
    wish = v1beta1.ContainerPreferredAllocationRequest(available, must, size)
    async with client_of(kubelet, T4) as channel:
        stub = v1beta1.DevicePluginStub(channel)
        answer = await stub.get_preferred_allocation(v1beta1.PreferredAllocationRequest([wish]), timeout=10)
    return list(answer.container_responses[0].device_ids)


async def test_preference_keeps_groups_and_numa_nodes_together_and_takes_what_it_must(node: Node) -> None:
    numas = (0, 0, 1, 1)
    single = [f"0000:1{number}:00.0" for number in range(4)]
    for number, numa in enumerate(numas):
        node.add_gpu(single[number], 10 + number, numa=numa)
    pair = ["0000:20:00.0", "0000:20:00.1"]
    for address in pair:
        node.add_gpu(address, 20, numa=1)
    async with node.running(listed={T4: 6}) as (_, kubelet):
        assert await _preferred(kubelet, [single[2]], [], 1) == [single[2]]
        assert await _preferred(kubelet, single, [single[2]], 2) == [single[2], single[3]]
        assert await _preferred(kubelet, single, [single[0], single[2]], 3) == [
            single[0],
            single[2],
            single[1],
        ]
        assert await _preferred(kubelet, [*pair, single[3]], [], 1) == [single[3]]
        assert await _preferred(kubelet, [*single, *pair], [pair[1]], 2) == [pair[1], pair[0]]
        with pytest.raises(GRPCError, match=r"MustIncludeDeviceIDs \(2\) exceeds allocation size \(1\)"):
            await _preferred(kubelet, single, single[:2], 1)


async def test_what_was_never_announced_is_answered_all_the_same(node: Node) -> None:
    (address,) = node.add_gpus(1)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), client_of(kubelet, T4) as channel:
        stub = v1beta1.DevicePluginStub(channel)
        await stub.pre_start_container(v1beta1.PreStartContainerRequest([address]), timeout=5)
        for name in ("/v1beta1.DevicePlugin/Deallocate", "/v9.Something/Else"):
            with pytest.raises(GRPCError) as refused:
                async with channel.request(
                    name, Cardinality.UNARY_UNARY, v1beta1.Empty, v1beta1.Empty, timeout=5
                ) as stream:
                    await stream.send_message(v1beta1.Empty(), end=True)
                    await stream.recv_message()
            assert refused.value.status is Status.UNIMPLEMENTED
        assert daemon.alive
        assert kubelet.statistics.streams == {T4: 1}


@pytest.mark.parametrize(
    "authority",
    ["localhost", "/var/lib/kubelet/device-plugins/x.sock", "%2Fvar%2Flib%2Fx.sock", ""],
    ids=["localhost", "path", "escaped path", "empty"],
)
async def test_every_authority_is_served(node: Node, authority: str) -> None:
    node.add_gpus(1)
    async with (
        node.running(listed={T4: 1}) as (_, kubelet),
        client_of(kubelet, T4, authority=authority) as channel,
    ):
        stub = v1beta1.DevicePluginStub(channel)
        options = await stub.get_device_plugin_options(v1beta1.Empty(), timeout=5)
        assert options.get_preferred_allocation_available


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        ("never", ["/dev/vfio/vfio", "/dev/vfio/10"]),
        ("auto", ["/dev/vfio/vfio", "/dev/vfio/10", "/dev/vfio/devices/vfio0", "/dev/iommu"]),
        ("only", ["/dev/vfio/vfio", "/dev/vfio/devices/vfio0", "/dev/iommu"]),
    ],
)
async def test_character_devices_are_given_when_the_rule_asks_and_they_exist(
    node: Node, mode: str, given: list[str]
) -> None:
    node.host = SimulatedHost(node.root, cdev=True)
    (address,) = node.add_gpus(1)
    node.configure(f"resources: [{{name: example.com/g, pci: [{{vendors: ['10de']}}], iommufd: {mode}}}]")
    async with node.running(listed={"example.com/g": 1}) as (_, kubelet):
        (answer,) = await allocate(kubelet, "example.com/g", [address])
        assert [device.host_path for device in answer.devices] == given
        node.host.remove_node("/dev/vfio/devices/vfio0")
        if mode == "only":
            with pytest.raises(GRPCError, match="/dev/vfio/devices/vfio"):
                await allocate(kubelet, "example.com/g", [address])
        else:
            (answer,) = await allocate(kubelet, "example.com/g", [address])
            assert all("devices" not in device.host_path for device in answer.devices)


async def test_several_devices_of_one_group_are_all_offered_by_address_and_have_cdi_names_of_their_own(
    node: Node,
) -> None:
    node.host = SimulatedHost(node.root, cdev=True)
    pair = ["0000:20:00.0", "0000:20:00.1"]
    for address in pair:
        node.add_gpu(address, 20)
    node.configure("resources: [{name: example.com/g, pci: [{vendors: ['10de']}], iommufd: auto, cdi: true}]")
    async with node.running(listed={"example.com/g": 2}) as (_, kubelet):
        assert health(kubelet, "example.com/g") == dict.fromkeys(pair, "Healthy")
        (answer,) = await allocate(kubelet, "example.com/g", pair)
        assert answer.envs == {"PCI_RESOURCE_EXAMPLE_COM_G": ",".join(pair)}
        names = [device.name for device in answer.cdi_devices]
        assert len(set(names)) == 2
        (spec,) = (node.root / "var/run/cdi").glob("*.json")
        listed = json.loads(spec.read_text())
        assert [f"{listed['kind']}={device['name']}" for device in listed["devices"]] == names


@pytest.mark.parametrize("allocated", [True, False])
async def test_a_cdi_file_names_the_nodes_of_now_though_no_device_is_listed_otherwise(
    node: Node, allocated: bool
) -> None:
    """A container that is started again reads the file without an Allocate."""
    node.host = SimulatedHost(node.root, cdev=True)
    (address,) = node.add_gpus(1)
    node.configure("resources: [{name: example.com/g, pci: [{vendors: ['10de']}], iommufd: auto, cdi: true}]")

    def named() -> list[str]:
        (file,) = (node.root / "var/run/cdi").glob("*.json")
        (device,) = json.loads(file.read_text())["devices"]
        return [each["path"] for each in device["containerEdits"]["deviceNodes"]]

    async with node.running(listed={"example.com/g": 1}) as (_, kubelet):
        assert "/dev/vfio/devices/vfio0" in named()
        node.host.remove_node("/dev/vfio/devices/vfio0")
        if allocated:
            await allocate(kubelet, "example.com/g", [address])
            assert named() == ["/dev/vfio/vfio", "/dev/vfio/10"]
        await eventually(lambda: named() == ["/dev/vfio/vfio", "/dev/vfio/10"])


async def test_a_cdi_file_that_cannot_be_written_is_an_error_of_allocate(node: Node) -> None:
    (address,) = node.add_gpus(1)
    node.configure("resources: [{name: example.com/g, pci: [{vendors: ['10de']}], cdi: true}]")
    (node.root / "var/run").mkdir(parents=True)
    (node.root / "var/run/cdi").write_text("not a directory")
    async with node.running(listed={"example.com/g": 1}) as (daemon, kubelet):
        with pytest.raises(GRPCError, match="cdi"):
            await allocate(kubelet, "example.com/g", [address])
        await daemon.logged("cdi-failed")


async def test_shares_of_a_node_stay_as_many_as_were_asked_for(node: Node) -> None:
    node.host.node("/dev/kvm")
    node.configure("resources: [{name: example.com/kvm, node: {path: /dev/kvm, count: 3}}]")
    async with node.running(listed={"example.com/kvm": 3}) as (_, kubelet):
        for number in range(3):
            vm = await kubelet.admit(pod(f"vm{number}", {"example.com/kvm": 1}))
            assert vm.result.devices == [("/dev/kvm", "/dev/kvm", "rw")]
        full = await kubelet.admit(pod("vm3", {"example.com/kvm": 1}))
        assert full.phase == "Failed"
        assert kubelet.capacity("example.com/kvm") == (3, 3)


@pytest.mark.parametrize("path", ["/dev/kvm", "/dev/vfio/vfio"])
async def test_a_node_that_has_just_gone_is_missed_at_allocate(node: Node, path: str) -> None:
    """The kubelet admits a pod with a node that does not exist, and its container never starts."""
    node.host.node("/dev/kvm")
    (address,) = node.add_gpus(1)
    node.configure(
        "resources:\n"
        "- {name: example.com/kvm, node: {path: /dev/kvm, count: 3}}\n"
        "- {name: example.com/gpu, pci: [{vendors: ['10de']}]}\n"
    )
    name, device = ("example.com/kvm", "kvm-0") if path == "/dev/kvm" else ("example.com/gpu", address)
    async with node.running(listed={name: 3 if path == "/dev/kvm" else 1}) as (_, kubelet):
        async with client_of(kubelet, name) as channel:
            plugin = v1beta1.DevicePluginStub(channel)
            await plugin.get_device_plugin_options()  # connected: the daemon hears of both at once
            node.host.remove_node(path)
            with pytest.raises(GRPCError, match=path):
                await plugin.allocate(v1beta1.AllocateRequest([v1beta1.ContainerAllocateRequest([device])]))
        assert health(kubelet, name)[device] == "Unhealthy"


async def test_nodes_that_are_given_exist_on_the_host(node: Node) -> None:
    node.add_gpus(1)
    node.add_sound("0000:10:00.1", 10)
    async with node.running(listed={T4: 1}) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {T4: 1}))
        assert vm.result.error is None
        assert vm.result.devices
        assert all(node.has(host) for host, _, _ in vm.result.devices)
