# SPDX-License-Identifier: Apache-2.0
"""Others are answered while the daemon reads a long answer of PodResources, and takes it in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.const import Cardinality, Handler

from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc.server import SocketServer
from nodeagent.sim.kubelet.devices import Held
from nodeagent.sim.kubelet.standin import Kubelet
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, client_of

LIST = "/v1.PodResourcesLister/List"
ANSWERS = 6  # that are read while others ask
HELD = 25.0  # ms of the loop's own time in one call; it is 350 to 600 where an answer is read in one go
TOPOLOGY = v1.TopologyInfo([v1.NumaNode(1)])


def containers(count: int, ids: Iterator[str]) -> list[v1.ContainerResources]:
    """Each with two devices of somebody's, some with a place."""
    return [
        v1.ContainerResources(
            "c-name",
            [
                v1.ContainerDevices("other.example/x", [next(ids)], TOPOLOGY if number % 3 else None)
                for _ in range(2)
            ],
        )
        for number in range(count)
    ]


def others() -> Iterator[str]:
    """Ids of another plugin's devices."""
    return (f"port-{number}" for number in range(20_000))


def shares() -> Iterator[str]:
    """Ids of the shares of somebody's device."""
    return (str(number) for number in range(20_000))


class LongAnswers:
    """A PodResources service with 10,000 containers in so many pods; at each answer they have other names."""

    def __init__(self, pods: int, ids: Iterator[str]) -> None:
        answers = (
            v1.ListPodResourcesResponse(
                [v1.PodResources(f"p{number}", "ns", containers(10_000 // pods, ids))]
            )
            for number in range(pods)
        )
        self._answer = b"".join(map(bytes, answers))
        self.given = 0

    async def _list(self, stream: Any) -> None:
        await stream.recv_message()
        self.given += 1
        name = b"\x0a\x06c-%04d" % self.given
        await stream.send_message(self._answer.replace(b"\x0a\x06c-name", name))

    def __mapping__(self) -> Mapping[str, Handler]:
        kinds = (v1.ListPodResourcesRequest, v1.ListPodResourcesResponse)
        return {LIST: Handler(self._list, Cardinality.UNARY_UNARY, *kinds)}


@asynccontextmanager
async def answering(kubelet: Kubelet, answers: LongAnswers) -> AsyncIterator[None]:
    """In place of the kubelet's own."""
    kubelet.faults.set("pod-resources-absent")
    await kubelet.restart()
    server = SocketServer(kubelet.paths.pod_resources, "kubelet.sock", [answers], timeouts=Timeouts())
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


def other_entries(kubelet: Kubelet) -> None:
    """The kubelet writes its checkpoint, with an entry of another plugin or without."""
    table = kubelet.state.table
    table.held = [] if table.held else [Held("uid", "c", "other.example/x", ("port-0",), b"")]
    table.save()


def loop_ran(daemon: Daemon) -> float:
    """Milliseconds for which the daemon's main thread has run so far: what others load does not count."""
    schedstat = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/schedstat").read_text()
    return int(schedstat.split()[0]) / 1e6


@pytest.mark.parametrize("pods", [1000, 1], ids=["pods", "pod"])
@pytest.mark.parametrize("ids", [others, shares], ids=["others", "shares"])
async def test_others_are_answered_while_ten_thousand_containers_are_read(
    node: Node, ids: Callable[[], Iterator[str]], pods: int
) -> None:
    node.add_gpus(2)
    answers = LongAnswers(pods, ids())
    async with node.kubelet() as kubelet, answering(kubelet, answers), node.daemon() as daemon:
        await kubelet.until_listed(T4, 2, PATIENCE)
        async with client_of(kubelet, T4) as channel:
            stub = v1beta1.DevicePluginStub(channel)
            longest: dict[int, float] = {}  # for each answer
            with anyio.fail_after(PATIENCE):
                while len(longest) <= ANSWERS:
                    other_entries(kubelet)  # the kubelet is asked after each change of them
                    before = loop_ran(daemon)
                    await stub.get_device_plugin_options(v1beta1.Empty())
                    ran = loop_ran(daemon) - before
                    longest[answers.given] = max(ran, longest.get(answers.given, 0.0))
                    await anyio.sleep(0.002)
        _, held, *_ = sorted(longest.values())  # where others load the machine most of them are longer
        assert held < HELD, longest
