# SPDX-License-Identifier: Apache-2.0
"""IOMMU groups: what one pod holds nobody else is given, whatever the resource, until it is released."""

from __future__ import annotations

import os

import pytest
from grpclib.exceptions import GRPCError

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.device_plugin import DeviceList, DevicePlugin
from nodeagent.kubelet.endpoint import Registrar
from nodeagent.kubelet.grpc import SocketServer
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.nodes import demo_node
from tests.blackbox.harness import (
    PATIENCE,
    T4,
    Node,
    allocate,
    health,
    pod,
    until_health,
)
from tests.facts import names
from tests.kubelet.answers import Answers, device
from tests.sim import devnodes

GPUS, SOUND = "example.com/gpu", "example.com/sound"
GPU_AT, SOUND_AT, OTHER_AT = "0000:20:00.0", "0000:20:00.1", "0000:30:00.0"
RESOURCES = """
resources:
  - {name: example.com/gpu, pci: [{devices: ["1eb8"]}]}
  - {name: example.com/sound, pci: [{devices: ["10f9"]}]}
"""
LISTED = {GPUS: 2, SOUND: 1}
NO_OPTIONS = v1beta1.DevicePluginOptions()


@pytest.fixture
def shared(node: Node) -> Node:
    """A GPU and its sound function in one group and two resources; another GPU alone."""
    node.add_gpu(GPU_AT, 20)
    node.add_sound(SOUND_AT, 20)
    node.add_gpu(OTHER_AT, 30)
    node.configure(RESOURCES)
    return node


async def give_gpu_20(kubelet: FakeKubelet, name: str) -> None:
    """Let pod ``name`` have the sound function of group 20."""
    vm = await kubelet.admit(pod(name, {SOUND: 1}))
    assert vm.phase == "Running", vm.message


async def test_while_a_pod_holds_a_device_its_siblings_wait_until_the_pod_ends(shared: Node) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {SOUND: 1}))
        shared.host.hold(SOUND_AT)
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        assert health(kubelet, GPUS) == {GPU_AT: "Unhealthy", OTHER_AT: "Healthy"}
        assert health(kubelet, SOUND) == {SOUND_AT: "Healthy"}
        told = await shared.status()
        (what,) = [d["message"] for r in told["resources"] for d in r["devices"] if not d["healthy"]]
        names(what, "ns/vm", SOUND_AT)
        shared.host.release(SOUND_AT)
        kubelet.delete(vm)
        await until_health(kubelet, GPUS, GPU_AT, "Healthy")


async def test_an_allocate_of_a_held_group_is_refused_with_the_name_of_the_pod(shared: Node) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        await give_gpu_20(kubelet, "first")
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        with pytest.raises(GRPCError, match="ns/first"):
            await allocate(kubelet, GPUS, [GPU_AT])


async def test_one_pod_may_take_both_functions_of_a_group_through_two_resources(shared: Node) -> None:
    shared.host.bind(OTHER_AT, None)
    async with shared.kubelet() as kubelet, shared.daemon("--timing-settle", "5s"):
        await kubelet.until_listed(GPUS, 2, PATIENCE)
        await kubelet.until_listed(SOUND, 1, PATIENCE)
        vm = await kubelet.admit(pod("vm", {GPUS: 1, SOUND: 1}))
        assert vm.phase == "Running", vm.message
        paths = sorted(host for host, _, _ in vm.result.devices)
        assert paths == ["/dev/vfio/20", "/dev/vfio/vfio"]
        assert set(vm.result.envs.values()) == {GPU_AT, SOUND_AT}
        assert health(kubelet, SOUND) == {SOUND_AT: "Healthy"}


async def test_of_two_pods_only_one_gets_a_function_of_a_group(shared: Node) -> None:
    shared.host.bind(OTHER_AT, None)
    async with shared.running(listed=LISTED) as (_, kubelet):
        await give_gpu_20(kubelet, "first")
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        second = await kubelet.admit(pod("second", {GPUS: 1}))
        assert second.phase == "Failed"
        assert "no healthy devices" in second.message


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["pod-resources-exhausted", "pod-resources-delay", "pod-resources-empty"])
async def test_what_was_given_away_is_held_while_the_kubelet_does_not_say_by_whom(
    shared: Node, fault: str
) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        kubelet.faults.set(fault, 600.0)
        await kubelet.restart()
        for resource, devices in LISTED.items():
            await kubelet.until_listed(resource, devices, PATIENCE)
        await give_gpu_20(kubelet, "first")
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        with pytest.raises(GRPCError, match="kubelet") as refused:
            await allocate(kubelet, GPUS, [GPU_AT])
        assert "ns/first" not in str(refused.value.message)
        kubelet.faults.clear(fault)
        await shared.until_told(lambda told: told["holders"].get(SOUND_AT, {}).get("pod") == "ns/first")


@pytest.mark.slow
async def test_a_device_whose_pod_is_not_named_yet_is_not_given_under_another_name(shared: Node) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        kubelet.faults.set("pod-resources-exhausted")
        await give_gpu_20(kubelet, "first")
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        shared.configure(RESOURCES.replace(SOUND, "example.com/other"))
        await kubelet.until_listed("example.com/other", 1, PATIENCE)
        assert health(kubelet, "example.com/other") == {SOUND_AT: "Unhealthy"}


async def test_what_is_open_outside_kubernetes_is_unhealthy_until_it_is_closed(shared: Node) -> None:
    async with shared.kubelet() as kubelet, shared.daemon("--timing-resync", "1s"):
        await kubelet.until_listed(GPUS, 2, PATIENCE)
        await shared.until_told(lambda told: told["kubelet"]["podResources"] == "answers")
        shared.host.hold(OTHER_AT)
        await until_health(kubelet, GPUS, OTHER_AT, "Unhealthy")
        told = await shared.status()
        reasons = {
            each["reason"] for every in told["resources"] for each in every["devices"] if "reason" in each
        }
        assert reasons == {"held-outside-kubernetes"}
        assert any(OTHER_AT in problem for problem in told["problems"])
        shared.host.release(OTHER_AT)
        await until_health(kubelet, GPUS, OTHER_AT, "Healthy")


async def test_a_group_is_held_by_a_pod_that_got_its_device_from_another_plugin(shared: Node) -> None:
    never = ("--timing-resync", "600s", "--timing-holders", "600s")
    shared.configure('resources: [{name: example.com/gpu, pci: [{devices: ["1eb8"]}]}]')
    other = DevicePlugin(DeviceList((device(SOUND_AT),)), Answers(), Timeouts())
    server = SocketServer(shared.plugins, "kubevirt-sound.sock", [other], timeouts=Timeouts())
    async with shared.kubelet() as kubelet, shared.daemon(*never):
        await kubelet.until_listed(GPUS, 2, PATIENCE)
        await server.start()
        registrar = Registrar(str(shared.plugins / "kubelet.sock"), Timeouts())
        await registrar.register(SOUND, server.path.name, NO_OPTIONS)
        await kubelet.until_listed(SOUND, 1, PATIENCE)
        await kubelet.admit(pod("vm", {SOUND: 1}))
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        assert health(kubelet, GPUS)[OTHER_AT] == "Healthy"
        await server.stop(0)


async def test_what_has_been_closed_is_healthy_soon_though_the_kernel_says_nothing(shared: Node) -> None:
    shared.host.hold(OTHER_AT)
    shared.host.tree.link("/proc/4711/fd/7", "/dev/vfio/30")
    async with shared.kubelet() as kubelet, shared.daemon("--timing-resync", "600s"):
        await until_health(kubelet, GPUS, OTHER_AT, "Unhealthy")
        shared.host.release(OTHER_AT)
        await until_health(kubelet, GPUS, OTHER_AT, "Healthy")


async def test_a_device_that_goes_away_while_it_is_held_says_so_until_its_pod_ends(shared: Node) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {SOUND: 1}))
        shared.host.begin_going_away(SOUND_AT)
        await until_health(kubelet, SOUND, SOUND_AT, "Unhealthy")
        await shared.until_told(lambda told: "going-away" in str(told["resources"]))
        kubelet.delete(vm)
        shared.host.finish_going_away(SOUND_AT)
        shared.host.bind(SOUND_AT, "vfio-pci")
        await until_health(kubelet, SOUND, SOUND_AT, "Healthy")
        await until_health(kubelet, GPUS, GPU_AT, "Healthy")


async def test_a_held_device_that_is_unplugged_stays_listed_until_its_pod_ends(shared: Node) -> None:
    async with shared.running(listed=LISTED) as (_, kubelet):
        vm = await kubelet.admit(pod("vm", {SOUND: 1}))
        await shared.until_told(lambda told: SOUND_AT in told["holders"])
        shared.host.unplug(SOUND_AT)
        await until_health(kubelet, SOUND, SOUND_AT, "Unhealthy")
        assert not kubelet.life.crashed
        kubelet.delete(vm)
        await until_health(kubelet, SOUND, SOUND_AT, None)
        assert kubelet.statistics.streams[SOUND] == 1


async def test_a_kubelet_restart_with_held_devices_keeps_them_and_their_siblings_apart(shared: Node) -> None:
    async with shared.kubelet(topology_policy="best-effort") as kubelet, shared.daemon():
        await kubelet.until_listed(SOUND, 1, PATIENCE)
        await give_gpu_20(kubelet, "vm")
        await until_health(kubelet, GPUS, GPU_AT, "Unhealthy")
        shared.host.unplug(SOUND_AT)
        await until_health(kubelet, SOUND, SOUND_AT, "Unhealthy")
        seen = len(kubelet.statistics.lists[SOUND])
        await kubelet.restart()
        await kubelet.until(lambda: len(kubelet.statistics.lists[SOUND]) > seen, PATIENCE)
        assert kubelet.statistics.lists[SOUND][seen].health == {SOUND_AT: "Unhealthy"}
        assert not kubelet.life.crashed


async def test_a_group_with_a_foreign_driver_is_not_viable_and_names_it_and_bridges_do_not_count(
    node: Node,
) -> None:
    node.host.add_function(
        "0000:20:00.0", vendor="8086", device="2030", pci_class="060400", driver="pcieport", group=20
    )
    node.add_gpu("0000:20:01.0", 20)
    node.host.add_function(
        "0000:20:02.0", vendor="8086", device="10d3", pci_class="020000", driver="e1000e", group=20
    )
    async with node.running(listed={T4: 1}) as (_, kubelet):
        assert health(kubelet, T4) == {"0000:20:01.0": "Unhealthy"}
        (problem,) = [each for each in (await node.status())["problems"] if "viable" in each]
        assert "0000:20:02.0 (e1000e)" in problem
        explained = await node.command("explain", "20:01.0")
        assert "0000:20:02.0" in explained.stdout
        node.host.bind("0000:20:02.0", None)
        await until_health(kubelet, T4, "0000:20:01.0", "Healthy")


async def test_only_the_gpus_of_multi_function_cards_are_offered_by_themselves(node: Node) -> None:
    demo_node(node.root)
    gpu = "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A"
    async with node.running(listed={gpu: 4, T4: 1}) as (_, kubelet):
        assert set(kubelet.state.table.devices) == {gpu, T4}
        told = await node.command("explain", "3b:00.1")
        assert told.returncode == 0
        names(told.stdout, "not offered", "040300")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device nodes")
async def test_a_group_whose_node_has_the_number_of_another_one_is_given_to_nobody(shared: Node) -> None:
    """Somebody has made the node by hand, and VFIO has given the group another number since."""
    path = "/dev/vfio/20"
    shared.host.remove_node(path)
    devnodes.add(shared.host, path, (245, 3))
    shared.host.write_file("/sys/class/vfio/20/dev", "245:3\n")
    async with shared.kubelet() as kubelet, shared.daemon():
        await kubelet.until_listed(GPUS, 2)
        await until_health(kubelet, GPUS, GPU_AT, "Healthy")
        shared.host.write_file("/sys/class/vfio/20/dev", "245:4\n")  # no event tells it
        with pytest.raises(GRPCError, match="/dev/vfio/20"):
            await allocate(kubelet, GPUS, [GPU_AT])
        assert (await shared.command("explain", GPU_AT)).stdout.count("remove that node") == 1
        shared.host.remove_node(path)
        devnodes.add(shared.host, path, (245, 4))
        await until_health(kubelet, GPUS, GPU_AT, "Healthy")
        await allocate(kubelet, GPUS, [GPU_AT])
