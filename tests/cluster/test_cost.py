# SPDX-License-Identifier: Apache-2.0
"""What following the cluster costs its API server, counted on the wire: the figures of docs/scale.md.

A relay between client and server counts requests and bytes, HTTP included and TLS not. The node object
changes every five minutes, as the kubelet's report makes it do, and has the size of one with 50 images.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
from anyio.abc import SocketStream

from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import events, node_status
from nodeagent.cluster.api import Session
from nodeagent.cluster.credentials import Credentials
from nodeagent.cluster.events import Event, Involved, Occurrences
from nodeagent.cluster.node_status import Condition
from nodeagent.cluster.watch import Resource, Watch
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES
from tests import virtual
from tests.cluster.following import RESOURCE, cr, served, until, until_gates

OFFERED = ("nvidia.com/gpu0", "nvidia.com/gpu1", "nvidia.com/old")
NODE = Resource(
    "/api/v1/nodes",
    "nodes",
    "metadata.name=node1",
    trim=lambda node: {"labels": node["metadata"]["labels"]} | node_status.counts(node, OFFERED),
)
HOSTS = [
    {"pciVendorSelector": f"10DE:{number:04X}", "resourceName": f"nvidia.com/gpu{number}"}
    for number in range(20)
]

NODES_AT_ONCE = 60


class Wire:
    """Bytes from the server and to it."""

    def __init__(self) -> None:
        self.down = 0
        self.up = 0

    async def relay(self, near: SocketStream, port: int) -> None:
        """One connection, until either end closes."""
        async with (
            near,
            await anyio.connect_tcp("127.0.0.1", port) as far,
            anyio.create_task_group() as group,
        ):
            group.start_soon(self._pump, near, far, group.cancel_scope)
            async for piece in far:
                self.down += len(piece)
                await near.send(piece)
            group.cancel_scope.cancel()

    async def _pump(self, near: SocketStream, far: SocketStream, both: anyio.CancelScope) -> None:
        try:
            async for piece in near:
                self.up += len(piece)
                await far.send(piece)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        both.cancel()


def lead(path: Path, server: FakeApiServer, port: int) -> None:
    """A kubeconfig that leads to another port, with a token as long as those of service accounts."""
    server.kubeconfig(path, token="x" * 900)
    path.write_text(path.read_text().replace(server.url, f"http://127.0.0.1:{port}"))


@asynccontextmanager
async def wired(server: FakeApiServer, folder: Path) -> AsyncIterator[tuple[Wire, Credentials]]:
    """A relay before the server, and credentials that lead through it."""
    wire, port = Wire(), int(server.url.rpartition(":")[2])
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    there = listener.extra(anyio.abc.SocketAttribute.local_port)
    path = folder / "kubeconfig"
    lead(path, server, there)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, lambda near: wire.relay(near, port))
        yield wire, Credentials(str(path))
        group.cancel_scope.cancel()


def node(beat: int) -> dict[str, Any]:
    """A node as the kubelet reports it, for the so-and-so-many-th time."""
    name = "registry.example.com/some/where/deep/down/an-image-of-usual-length"
    images = [
        {"names": [f"{name}@sha256:{number:064x}", f"{name}:v1.{number}"], "sizeBytes": 123456789}
        for number in range(50)
    ]
    labels = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(40)}
    counts = {"cpu": "64", "memory": f"{beat}Ki", **dict.fromkeys(OFFERED, "0")}
    conditions = [{"type": "Ready", "lastHeartbeatTime": beat}]
    status = {"images": images, "conditions": conditions, "capacity": counts, "allocatable": dict(counts)}
    return {"metadata": {"name": "node1", "labels": labels}, "status": status}


@virtual.TIME
async def test_an_hour_at_rest_and_an_edit_cost_the_api_server_little(tmp_path: Path) -> None:
    jitter = random.Random(7).random
    async with served(edit=None) as server, wired(server, tmp_path) as (wire, credentials):
        server.store.put(KUBEVIRTS, cr(0, permittedHostDevices=HOSTS))
        server.store.put(NODES, node(0))
        async with Session(credentials, Timeouts()) as session, anyio.create_task_group() as group:
            crs, own = (Watch(session, each, jitter=jitter) for each in (RESOURCE, NODE))
            for watch in (crs, own):
                group.start_soon(watch.run, name=watch.name)
            await until(own.state, lambda known: known.objects is not None)
            await until_gates(crs, 0)
            await server.until(lambda: server.statistics.streams == 2)
            begin = (len(server.statistics.requests), wire.down, wire.up)
            version = own.state.version
            for beat in range(1, 12):
                await anyio.sleep(300.0)
                server.store.put(NODES, node(beat))
            await anyio.sleep(270.0)
            end = (len(server.statistics.requests), wire.down, wire.up)
            assert own.state.version == version  # heartbeats wake nobody
            server.store.put(KUBEVIRTS, cr(1, permittedHostDevices=HOSTS))
            await until_gates(crs, 1, within=1.0)
            edit = wire.down - end[1]
            group.cancel_scope.cancel()
    requests, down, up = (after - before for before, after in zip(begin, end, strict=True))
    print(f"start {begin}; hour: {requests} requests, {down} bytes down, {up} up; edit: {edit} bytes")
    assert requests <= 32
    assert (down, up) < (400_000, 60_000)
    assert edit < 4_000


@asynccontextmanager
async def many(number: int, kubeconfig: str) -> AsyncIterator[list[Watch]]:
    """That many nodes, each with a session and a watch of its own."""
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(anyio.create_task_group())
        watches = []
        for seed in range(number):
            session = await stack.enter_async_context(Session(Credentials(kubeconfig), Timeouts()))
            watches.append(Watch(session, RESOURCE, jitter=random.Random(seed).random))
            group.start_soon(watches[-1].run, name=watches[-1].name)
        yield watches
        group.cancel_scope.cancel()


@virtual.TIME
async def test_nodes_that_lose_their_server_at_once_come_back_spread(
    tmp_path: Path, loop_may_block: None
) -> None:
    async with served() as server, many(NODES_AT_ONCE, server.kubeconfig(tmp_path / "config")) as watches:
        for watch in watches:
            await until_gates(watch, 1, within=60.0)
        await anyio.sleep(10.0)
        await server.stop()
        await anyio.sleep(300.0)
        server.store.put(KUBEVIRTS, cr(2))
        await server.start()
        back, seen = anyio.current_time(), len(server.statistics.requests)
        for watch in watches:
            await until_gates(watch, 2, within=31.0)
        times = [each.when - back for each in server.statistics.requests[seen:]]
        busiest = max(sum(second <= when < second + 1 for when in times) for second in range(31))
        print(f"{len(times)} requests within {max(times):.1f} s, at most {busiest} in one second")
        assert len(times) == NODES_AT_ONCE
        assert busiest < NODES_AT_ONCE / 6


EVENT = Event(
    Involved("node1", "8f0b5d5e-3c57-4f0a-a3c3-6f3f2d1f7c11"),
    "DeviceUnhealthy",
    "nvidia.com/TU104GL_TESLA_T4: 0000:d8:00.0: its driver is nvidia, not a VFIO driver; "
    "bind 0000:d8:00.0 to vfio-pci",
    warning=True,
)
BAD = Condition("False", "ActionRequired", f"nodeagent status on the node says what to do: {EVENT.message}")


@virtual.TIME
async def test_an_event_the_same_again_a_condition_and_a_stale_resource_are_one_request_each(
    tmp_path: Path,
) -> None:
    async with (
        served() as server,
        wired(server, tmp_path) as (wire, credentials),
        Session(credentials, Timeouts()) as api,
    ):
        whose = server.store.put(NODES, node(0))
        await api.get("/api/v1/nodes/node1")

        async def cost(step: Awaitable[object]) -> tuple[int, int, int]:
            before = (len(server.statistics.requests), wire.down, wire.up)
            await step
            after = (len(server.statistics.requests), wire.down, wire.up)
            requests, down, up = (now - then for now, then in zip(after, before, strict=True))
            return requests, down, up

        made = await cost(events.write(api, "node1", EVENT, Occurrences(1, 0.0, 0.0)))
        again = await cost(events.write(api, "node1", EVENT, Occurrences(1, 9.0, 9.0), 1))
        flip = await cost(node_status.write_condition(api, "node1", "DevicesUsable", BAD, 0.0))
        stale = await cost(node_status.remove_counts(api, whose, OFFERED[2]))
    print(f"Event (requests, bytes down, up): {made}; again: {again}; condition: {flip}; stale: {stale}")
    assert made[0] == again[0] == flip[0] == stale[0] == 1
    assert max(*made, *again) < 2_500
    assert max(flip[1], stale[1]) < 20_000, "the answer is the Node"
    assert max(flip[2], stale[2]) < 2_500
