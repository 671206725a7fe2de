# SPDX-License-Identifier: Apache-2.0
"""Who holds what: the answers of the stand-in kubelet, and answers that are none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.const import Cardinality, Handler

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import wire
from nodeagent.kubelet.grpc.server import SocketServer
from nodeagent.kubelet.podresources import PodReader, VirtHandler
from nodeagent.model.allocation import Holder, PodList
from nodeagent.model.ids import ResourceName
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with

LIST = "/v1.PodResourcesLister/List"
NOBODY = VirtHandler("/nonexistent")
NO_PROC = "/nonexistent"


def socket_of(kubelet: Kubelet) -> str:
    """The kubelet's PodResources socket."""
    return str(kubelet.paths.pod_resources / "kubelet.sock")


class Raw:
    """A PodResources service that answers with any bytes, or never (None)."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer

    async def _list(self, stream: Any) -> None:
        await stream.recv_message()
        if self.answer is None:
            await anyio.sleep_forever()
        await stream.send_message(self.answer)

    def __mapping__(self) -> Mapping[str, Handler]:
        kinds = (v1.ListPodResourcesRequest, v1.ListPodResourcesResponse)
        return {LIST: Handler(self._list, Cardinality.UNARY_UNARY, *kinds)}


@asynccontextmanager
async def serving(directory: Path, service: Raw) -> AsyncIterator[str]:
    """The path of a socket with this service."""
    server = SocketServer(directory, "kubelet.sock", [service], timeouts=Timeouts())
    await server.start()
    try:
        yield str(server.path)
    finally:
        await server.stop(0)


def by_id(answer: PodList) -> dict[str, Holder]:
    """Who has which id, of whatever resource."""
    return {each: holder for ids in answer.table.values() for each, holder in ids.items()}


async def told(directory: Path, answer: bytes | None, limit: float = 5.0) -> dict[str, Holder]:
    async with serving(directory, Raw(answer)) as path:
        return by_id(await PodReader(path, NOBODY, limit).pods())


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
        found = by_id(await PodReader(socket_of(kubelet), NOBODY, Timeouts().pod_resources_rpc).pods())
        assert {name: each.numa for name, each in found.items()} == {"a": 0, "b": 1, "c": None}
        assert sorted(str(each) for each in found.values()) == ["ns/one", "ns/one", "ns/two"]
        assert {each.resource for each in found.values()} == {RESOURCE}


async def test_a_pod_of_which_nothing_new_is_said_is_read_once_for_as_long_as_it_is_there(
    tmp_path: Path,
) -> None:
    one, two = pod_with("one", "a"), pod_with("two", "b")
    both, service = bytes(v1.ListPodResourcesResponse([one, two])), Raw(None)
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        answers = []
        for answer in (both, both, bytes(v1.ListPodResourcesResponse([two])), both):
            service.answer = answer
            answers.append(by_id(await reader.pods()))
    first, again, _, back = answers
    assert first == again == back
    assert first["a"] is again["a"]
    assert back["b"] is first["b"]
    assert back["a"] is not first["a"], "who has gone is not remembered"


async def test_of_two_with_one_id_of_two_resources_both_are_told_in_whichever_answer_they_come(
    tmp_path: Path,
) -> None:
    one = pod_with("one", "a")
    other = v1.ContainerDevices("example.com/other", ["a"])
    two = v1.PodResources("two", "ns", [v1.ContainerResources("c", [other])])
    service = Raw(bytes(v1.ListPodResourcesResponse([one])))
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        first = await reader.pods()
        service.answer = bytes(v1.ListPodResourcesResponse([two, one]))
        both = await reader.pods()
        service.answer = bytes(v1.ListPodResourcesResponse([two, one, pod_with("three", "b")]))
        more = await reader.pods()
        service.answer = bytes(v1.ListPodResourcesResponse([two]))
        last = await reader.pods()
    of_two = {
        ResourceName("example.com/other"): {"a": Holder("ns", "two", ResourceName("example.com/other"))}
    }
    assert first.table == {ResourceName(RESOURCE): {"a": holder("one")}}
    assert both.table == {ResourceName(RESOURCE): {"a": holder("one")}, **of_two}
    assert more.table == {ResourceName(RESOURCE): {"a": holder("one"), "b": holder("three")}, **of_two}
    assert last.table == of_two


async def test_an_answer_that_says_the_same_again_is_the_same_object_until_a_number_means_a_group(
    tmp_path: Path,
) -> None:
    service = Raw(bytes(v1.ListPodResourcesResponse([pod_with("p", "a", "7"), pod_with("q", "b")])))
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, VirtHandler(str(plugins)), Timeouts().pod_resources_rpc)
        first, again = await reader.pods(), await reader.pods()
        assert again is first
        assert by_id(first) == {"a": holder("p"), "b": holder("q")}
        (plugins / f"kubevirt-{RESOURCE.replace('/', '-')}.sock").touch()
        assert by_id(await reader.pods()) == {"a": holder("p"), "7": holder("p"), "b": holder("q")}


async def test_a_long_pod_says_the_same_as_many_short_ones_and_again_with_the_same_objects(
    tmp_path: Path,
) -> None:
    def said(name: str, count: int) -> bytes:
        devices = (v1.ContainerDevices(RESOURCE, [f"d{number}"]) for number in range(count))
        pod = v1.PodResources("p", "ns", [v1.ContainerResources(name, [each]) for each in devices])
        return bytes(v1.ListPodResourcesResponse([pod]))

    service = Raw(said("c", 600))
    async with serving(tmp_path, service) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        first = await reader.pods()
        service.answer = said("other-name", 600)
        again = await reader.pods()
        service.answer = said("c", 599)
        fewer = await reader.pods()
    ids = [f"d{number}" for number in range(600)]
    assert by_id(first) == dict.fromkeys(ids, holder("p"))
    assert first.pods == {"ns/p": {(RESOURCE, each) for each in ids}}
    assert again.pods["ns/p"] is first.pods["ns/p"]
    assert all(by_id(again)[each] is by_id(first)[each] for each in ids)
    assert by_id(fewer).keys() == set(ids[:-1])
    assert fewer.pods == {"ns/p": {(RESOURCE, each) for each in ids[:-1]}}


async def test_a_name_counts_wherever_it_stands_in_a_long_pod(tmp_path: Path) -> None:
    devices = (v1.ContainerDevices(RESOURCE, [f"d{number}"]) for number in range(1000))
    containers = bytes(v1.PodResources(containers=[v1.ContainerResources("c", [each]) for each in devices]))
    pod = containers + bytes(v1.PodResources("p", "ns"))
    found = await told(tmp_path, b"\x0a" + wire.delimited(pod))
    assert found == dict.fromkeys((f"d{number}" for number in range(1000)), holder("p"))


async def test_without_pods_nobody_holds_anything(tmp_path: Path) -> None:
    async with Kubelet(tmp_path) as kubelet:
        assert await PodReader(socket_of(kubelet), NOBODY, Timeouts().pod_resources_rpc).pods() == PodList(
            {}, {}
        )


@pytest.mark.parametrize(
    ("fault", "text"), [("pod-resources-exhausted", "RESOURCE_EXHAUSTED: rejected by rate limit")]
)
async def test_an_error_of_the_kubelet_keeps_its_text(tmp_path: Path, fault: str, text: str) -> None:
    async with Kubelet(tmp_path) as kubelet:
        kubelet.faults.set(fault)
        with pytest.raises(KubeletUnavailable, match=text):
            await PodReader(socket_of(kubelet), NOBODY, Timeouts().pod_resources_rpc).pods()


async def test_an_absent_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=r"kubelet\.sock: No such file or directory"):
        await PodReader(str(tmp_path / "kubelet.sock"), NOBODY, Timeouts().pod_resources_rpc).pods()


async def test_a_kubelet_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="no answer in time"):
        await told(tmp_path, None, limit=0.1)


@pytest.mark.parametrize("garbage", [b"\x0a\x03\x0a\x01\xff", b"\x0a\xff\xff", b"\x0d\0\0\0\0", b"\x08\1"])
async def test_garbage_is_an_answer_that_cannot_be_read(tmp_path: Path, garbage: bytes) -> None:
    with pytest.raises(KubeletUnavailable, match="cannot be read"):
        await told(tmp_path, garbage)


async def test_an_answer_as_large_as_the_kubelet_s_own_client_takes_is_read(tmp_path: Path) -> None:
    most = 16 << 20
    pods = wire.encode(v1.ListPodResourcesResponse([pod_with("large", "a")]))
    tag, length = wire.varint(15 << 3 | 2), 4  # of a field that nobody knows
    answer = pods + tag + wire.delimited(bytes(most - len(pods) - len(tag) - length))
    assert len(answer) == most
    assert await told(tmp_path, answer, limit=60.0) == {"a": holder("large")}


@pytest.mark.parametrize(
    "pod",
    [
        v1.PodResources("p"),
        v1.PodResources(namespace="ns"),
        v1.PodResources("p", "ns", [v1.ContainerResources("c", [v1.ContainerDevices(device_ids=["a"])])]),
    ],
)
async def test_what_has_no_name_is_not_guessed(tmp_path: Path, pod: v1.PodResources) -> None:
    with pytest.raises(KubeletUnavailable, match="no name"):
        await told(tmp_path, bytes(v1.ListPodResourcesResponse([pod])))


async def test_several_numa_nodes_of_one_device_leave_the_first(tmp_path: Path) -> None:
    nodes = v1.TopologyInfo([v1.NumaNode(1), v1.NumaNode(0)])
    entries = [
        v1.ContainerDevices(RESOURCE, ["a"], nodes),
        v1.ContainerDevices(RESOURCE, ["b"], v1.TopologyInfo()),
    ]
    pod = v1.PodResources("p", "ns", [v1.ContainerResources("c", entries)])
    found = await told(tmp_path, bytes(v1.ListPodResourcesResponse([pod])))
    assert found == {"a": holder("p", 1), "b": holder("p")}


async def test_what_is_said_of_a_pod_counts_as_it_was_said_last(tmp_path: Path) -> None:
    """The same again, another device, two pods with one of them as before, nobody, and the first again."""

    def shown(*pods: tuple[str, str]) -> bytes:
        return bytes(v1.ListPodResourcesResponse([pod_with(*each) for each in pods]))

    answers = Raw(b"")
    async with serving(tmp_path, answers) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        for pods in ([("p", "a")], [("p", "a")], [("p", "b")], [("q", "c"), ("p", "b")], [], [("p", "a")]):
            answers.answer = shown(*pods)
            found = await reader.pods()
            assert by_id(found) == {device_id: holder(name) for name, device_id in pods}
            assert found.pods == {f"ns/{name}": {(RESOURCE, device_id)} for name, device_id in pods}


async def test_a_pod_that_cannot_be_read_spoils_the_answer_also_if_the_others_are_known(
    tmp_path: Path,
) -> None:
    fine = bytes(v1.ListPodResourcesResponse([pod_with("p", "a")]))
    answers = Raw(fine)
    async with serving(tmp_path, answers) as path:
        reader = PodReader(path, NOBODY, Timeouts().pod_resources_rpc)
        assert by_id(await reader.pods()) == {"a": holder("p")}
        answers.answer = fine + b"\x0a\x03\x0a\x01\xff"
        with pytest.raises(KubeletUnavailable, match="cannot be read"):
            await reader.pods()
        answers.answer = fine
        assert by_id(await reader.pods()) == {"a": holder("p")}


@pytest.mark.parametrize("order", [("p", "q"), ("q", "p")])
async def test_of_two_pods_that_show_one_id_the_same_is_told_each_time(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """The kubelet lists pods in no order."""
    pods = [pod_with(name, "a") for name in order]
    assert await told(tmp_path, bytes(v1.ListPodResourcesResponse(pods))) == {"a": holder("q")}


async def test_pods_without_devices_are_named_and_numbers_are_groups_of_virt_handler_alone(
    tmp_path: Path,
) -> None:
    devices = [v1.ContainerDevices("kubevirt.io/gpu", ["12"]), v1.ContainerDevices("rdma/hca", ["12", "13"])]
    answer = v1.ListPodResourcesResponse(
        [
            v1.PodResources("p", "ns", [v1.ContainerResources("c", devices)]),
            v1.PodResources("q", "ns", [v1.ContainerResources("c")]),
        ]
    )
    (tmp_path / "kubevirt-kubevirt.io-gpu.sock").touch()
    virt_handler = VirtHandler(str(tmp_path))
    for _ in range(2):  # a kubelet that starts removes the sockets
        server = SocketServer(tmp_path, "kubelet.sock", [Raw(bytes(answer))], timeouts=Timeouts())
        await server.start()
        try:
            found = await PodReader(str(server.path), virt_handler, Timeouts().pod_resources_rpc).pods()
        finally:
            await server.stop(0)
        assert by_id(found) == {"12": Holder("ns", "p", ResourceName("kubevirt.io/gpu"))}
        assert {name: len(shown) for name, shown in found.pods.items()} == {"ns/p": 3, "ns/q": 0}
        (tmp_path / "kubevirt-kubevirt.io-gpu.sock").unlink(missing_ok=True)
