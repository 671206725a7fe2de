# SPDX-License-Identifier: Apache-2.0
"""Who holds what: the answers of the stand-in kubelet, and answers that are none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.const import Cardinality, Handler

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet import podresources
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc.server import SocketServer
from nodeagent.model.allocation import Holder
from nodeagent.model.ids import ResourceName
from nodeagent.sim.kubelet.standin import Kubelet
from nodeagent.sim.kubelet.state import Pod
from tests.sim.plugin import RESOURCE, Plugin, device, kubelet_with

LIST = "/v1.PodResourcesLister/List"


class Raw:
    """A PodResources service that answers with any bytes, or never (None)."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer

    async def _list(self, stream: Any) -> None:
        await stream.recv_message()
        if self._answer is None:
            await anyio.sleep_forever()
        await stream.send_message(self._answer)

    def __mapping__(self) -> Mapping[str, Handler]:
        kinds = (v1.ListPodResourcesRequest, v1.ListPodResourcesResponse)
        return {LIST: Handler(self._list, Cardinality.UNARY_UNARY, *kinds)}


async def told(directory: Path, answer: bytes | None, limit: float = 5.0) -> dict[str, Holder]:
    server = SocketServer(directory, "kubelet.sock", [Raw(answer)])
    await server.start()
    try:
        return await podresources.holders(str(server.path), limit)
    finally:
        await server.stop(0)


def holder(pod: str, numa: int | None = None) -> Holder:
    return Holder("ns", pod, ResourceName(RESOURCE), numa)


async def test_devices_of_all_containers_have_their_pod_and_numa_node(tmp_path: Path) -> None:
    async with kubelet_with(tmp_path, Plugin(device("a", 0), device("b", 1), device("c"))) as kubelet:
        await kubelet.admit(Pod("ns", "one", [{RESOURCE: 1}, {RESOURCE: 1}]))
        await kubelet.admit(Pod("ns", "two", [{RESOURCE: 1}]))
        found = await podresources.holders(str(kubelet.paths.pod_resources / "kubelet.sock"))
        assert {name: each.numa for name, each in found.items()} == {"a": 0, "b": 1, "c": None}
        assert sorted(str(each) for each in found.values()) == ["ns/one", "ns/one", "ns/two"]
        assert {each.resource for each in found.values()} == {RESOURCE}


async def test_without_pods_nobody_holds_anything(tmp_path: Path) -> None:
    async with Kubelet(tmp_path) as kubelet:
        assert await podresources.holders(str(kubelet.paths.pod_resources / "kubelet.sock")) == {}


@pytest.mark.parametrize(
    ("fault", "text"), [("pod-resources-exhausted", "RESOURCE_EXHAUSTED: rejected by rate limit")]
)
async def test_an_error_of_the_kubelet_keeps_its_text(tmp_path: Path, fault: str, text: str) -> None:
    async with Kubelet(tmp_path) as kubelet:
        kubelet.faults.set(fault)
        with pytest.raises(KubeletUnavailable, match=text):
            await podresources.holders(str(kubelet.paths.pod_resources / "kubelet.sock"))


async def test_an_absent_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=r"kubelet\.sock: No such file or directory"):
        await podresources.holders(str(tmp_path / "kubelet.sock"))


async def test_a_kubelet_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match="no answer in time"):
        await told(tmp_path, None, limit=0.1)


@pytest.mark.parametrize("garbage", [b"\x0a\x03\x0a\x01\xff", b"\x0a\xff\xff", b"\x0d\0\0\0\0", b"\x08\1"])
async def test_garbage_is_an_answer_that_cannot_be_read(tmp_path: Path, garbage: bytes) -> None:
    with pytest.raises(KubeletUnavailable, match="cannot be read"):
        await told(tmp_path, garbage)


async def test_several_numa_nodes_of_one_device_leave_the_first(tmp_path: Path) -> None:
    nodes = v1.TopologyInfo([v1.NumaNode(1), v1.NumaNode(0)])
    entries = [
        v1.ContainerDevices(RESOURCE, ["a"], nodes),
        v1.ContainerDevices(RESOURCE, ["b"], v1.TopologyInfo()),
    ]
    pod = v1.PodResources("p", "ns", [v1.ContainerResources("c", entries)])
    found = await told(tmp_path, bytes(v1.ListPodResourcesResponse([pod])))
    assert found == {"a": holder("p", 1), "b": holder("p")}


async def test_the_socket_tells_when_the_kubelet_was_started(tmp_path: Path) -> None:
    assert podresources.born(str(tmp_path / "nothing.sock")) is None
    async with Kubelet(tmp_path, age=100.0) as kubelet:
        path = str(kubelet.paths.pod_resources / "kubelet.sock")
        first = podresources.born(path)
        assert first is not None
        assert 100 <= time.time() - first < 130
        await kubelet.restart()
        second = podresources.born(path)
        assert second is not None
        assert time.time() - second < 30
