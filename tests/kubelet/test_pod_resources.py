# SPDX-License-Identifier: Apache-2.0
"""Who holds what: the answers of the fake kubelet, and answers that are none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import KubeletAway, SocketServer
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.model.allocation import Holder, PodList
from nodeagent.model.ids import ResourceName
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with

NOBODY = VirtHandler("/nonexistent")


def socket_of(kubelet: FakeKubelet) -> str:
    """The kubelet's PodResources socket."""
    return str(kubelet.paths.pod_resources / "kubelet.sock")


class Answering(v1.PodResourcesListerBase):
    """A PodResources service that lists these pods, or never answers (None)."""

    def __init__(self, pods: Sequence[v1.PodResources] | None) -> None:
        self.pods = pods

    async def list(self, message: v1.ListPodResourcesRequest) -> v1.ListPodResourcesResponse:
        if self.pods is None:
            await anyio.sleep_forever()
        return v1.ListPodResourcesResponse([*(self.pods or ())])


@asynccontextmanager
async def serving(directory: Path, service: Answering) -> AsyncIterator[str]:
    """The path of a socket with this service."""
    server = SocketServer(directory, "kubelet.sock", [service], timeouts=Timeouts())
    await server.start()
    try:
        yield str(server.path)
    finally:
        await server.stop(0)


@contextmanager
def reading(path: str, virt_handler: VirtHandler = NOBODY, limit: float = 5.0) -> Iterator[PodReader]:
    """A reader, whose connection is closed at the end."""
    with closing(PodReader(path, virt_handler, limit)) as reader:
        yield reader


def by_id(answer: PodList) -> dict[str, Holder]:
    """Who has which id, of whatever resource."""
    return {each: holder for ids in answer.table.values() for each, holder in ids.items()}


async def listed(
    directory: Path, pods: Sequence[v1.PodResources] | None, limit: float = 5.0
) -> dict[str, Holder]:
    """What a reader makes of these pods."""
    async with serving(directory, Answering(pods)) as path:
        with reading(path, limit=limit) as reader:
            return by_id(await reader.pods())


async def of_kubelet(kubelet: FakeKubelet) -> PodList:
    """What a reader makes of the kubelet's answer."""
    with reading(socket_of(kubelet)) as reader:
        return await reader.pods()


def pod_with(name: str, *ids: str) -> v1.PodResources:
    """A pod whose one container has these devices."""
    devices = [v1.ContainerDevices(RESOURCE, [each]) for each in ids]
    return v1.PodResources(name, "ns", [v1.ContainerResources("c", devices)])


def holder(pod: str, numa: int | None = None) -> Holder:
    return Holder("ns", pod, ResourceName(RESOURCE), numa)


async def test_devices_of_all_containers_have_their_pod_and_numa_node(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a", 0), device("b", 1), device("c"))) as kubelet:
        await kubelet.admit(Pod("ns", "one", [{RESOURCE: 1}, {RESOURCE: 1}]))
        await kubelet.admit(Pod("ns", "two", [{RESOURCE: 1}]))
        found = by_id(await of_kubelet(kubelet))
        assert {name: each.numa for name, each in found.items()} == {"a": 0, "b": 1, "c": None}
        assert sorted(str(each) for each in found.values()) == ["ns/one", "ns/one", "ns/two"]
        assert {each.resource for each in found.values()} == {RESOURCE}


async def test_one_id_of_two_resources_is_two_devices(tmp_path: Path) -> None:
    other = ResourceName("example.com/other")
    two = v1.PodResources("two", "ns", [v1.ContainerResources("c", [v1.ContainerDevices(other, ["a"])])])
    async with serving(tmp_path, Answering([two, pod_with("one", "a")])) as path:
        with reading(path) as reader:
            found = await reader.pods()
    assert found.table == {
        ResourceName(RESOURCE): {"a": holder("one")},
        other: {"a": Holder("ns", "two", other)},
    }


async def test_without_pods_no_device_is_in_use(tmp_path: Path) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        assert await of_kubelet(kubelet) == PodList({}, {})


async def test_a_reader_follows_the_kubelet_over_its_restart(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a"))) as kubelet:
        await kubelet.admit(Pod("ns", "one", [{RESOURCE: 1}]))
        with reading(socket_of(kubelet)) as reader:
            before = await reader.pods()
            await kubelet.stop()
            with pytest.raises(KubeletAway):
                await reader.pods()
            await kubelet.start()
            assert (await reader.pods()).pods == before.pods


@pytest.mark.parametrize(
    ("fault", "text"), [("pod-resources-exhausted", "RESOURCE_EXHAUSTED: rejected by rate limit")]
)
async def test_an_error_of_the_kubelet_keeps_its_text(tmp_path: Path, fault: str, text: str) -> None:
    async with FakeKubelet(tmp_path) as kubelet:
        kubelet.faults.set(fault)
        with pytest.raises(KubeletUnavailable, match=text):
            await of_kubelet(kubelet)


async def test_an_absent_socket_is_named(tmp_path: Path) -> None:
    absent = str(tmp_path / "kubelet.sock")
    with reading(absent) as reader, pytest.raises(KubeletAway, match=f"{absent}: No such file or directory"):
        await reader.pods()


async def test_a_kubelet_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="no answer in time"):
        await listed(tmp_path, None, limit=0.1)


async def test_the_first_of_several_numa_nodes_of_a_device_counts(tmp_path: Path) -> None:
    nodes = v1.TopologyInfo([v1.NumaNode(1), v1.NumaNode(0)])
    entries = [
        v1.ContainerDevices(RESOURCE, ["a"], nodes),
        v1.ContainerDevices(RESOURCE, ["b"], v1.TopologyInfo()),
    ]
    pod = v1.PodResources("p", "ns", [v1.ContainerResources("c", entries)])
    assert await listed(tmp_path, [pod]) == {"a": holder("p", 1), "b": holder("p")}


async def test_each_answer_replaces_the_one_before(tmp_path: Path) -> None:
    """The same again, another device, two pods, none, and the first again."""
    service = Answering([])
    async with serving(tmp_path, service) as path:
        with reading(path) as reader:
            one, other = [("p", "a")], [("p", "b")]
            for pods in (one, one, other, [("q", "c"), *other], [], one):
                service.pods = [pod_with(*each) for each in pods]
                found = await reader.pods()
                assert by_id(found) == {device_id: holder(name) for name, device_id in pods}
                assert found.pods == {f"ns/{name}": {(RESOURCE, device_id)} for name, device_id in pods}


@pytest.mark.parametrize("order", [("p", "q"), ("q", "p")])
async def test_the_order_of_pods_decides_nothing(tmp_path: Path, order: tuple[str, str]) -> None:
    """The kubelet lists pods in no order."""
    assert await listed(tmp_path, [pod_with(name, "a") for name in order]) == {"a": holder("q")}


async def test_two_pods_of_one_name_both_show_their_devices(tmp_path: Path) -> None:
    """One that ends, and the next one."""
    pods = [pod_with("p", "a"), pod_with("p")]
    for order in (pods, pods[::-1]):
        async with serving(tmp_path, Answering(order)) as path:
            with reading(path) as reader:
                assert (await reader.pods()).pods == {"ns/p": {(RESOURCE, "a")}}


async def test_questions_at_the_same_time_are_all_answered(tmp_path: Path) -> None:
    """An Allocate may ask while another request is under way, and give it up."""
    answers: list[PodList] = []

    async def ask() -> None:
        answers.append(await reader.pods())

    async with serving(tmp_path, Answering([pod_with("p", "a")])) as path:
        with reading(path) as reader:
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(ask)
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await reader.pods()
    assert [by_id(each) for each in answers] == [{"a": holder("p")}] * 3


async def test_pods_without_devices_are_named_and_numbers_are_groups_of_virt_handler_alone(
    tmp_path: Path,
) -> None:
    devices = [v1.ContainerDevices("kubevirt.io/gpu", ["12"]), v1.ContainerDevices("rdma/hca", ["12", "13"])]
    pods = [
        v1.PodResources("p", "ns", [v1.ContainerResources("c", devices)]),
        v1.PodResources("q", "ns", [v1.ContainerResources("c")]),
    ]
    (tmp_path / "kubevirt-kubevirt.io-gpu.sock").touch()
    async with serving(tmp_path, Answering(pods)) as path:
        with reading(path, VirtHandler(str(tmp_path))) as reader:
            for _ in range(2):  # a kubelet that starts removes the sockets
                found = await reader.pods()
                assert by_id(found) == {"12": Holder("ns", "p", ResourceName("kubevirt.io/gpu"))}
                assert {name: len(shown) for name, shown in found.pods.items()} == {"ns/p": 3, "ns/q": 0}
                (tmp_path / "kubevirt-kubevirt.io-gpu.sock").unlink(missing_ok=True)
