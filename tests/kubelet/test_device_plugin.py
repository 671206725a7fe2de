# SPDX-License-Identifier: Apache-2.0
"""The DevicePlugin service over a real socket: lists, grants, refusals, preferences."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from nodeagent.base.errors import AllocationRefused, KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import device_plugin
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.device_plugin import DeviceList, DevicePlugin
from nodeagent.kubelet.grpc import SocketChannel, SocketServer
from tests import virtual
from tests.facts import names
from tests.kubelet.answers import BROKEN, Answers, device

A, B = device("a", numa=0), device("b", BROKEN)
LIST_AND_WATCH = "/v1beta1.DevicePlugin/ListAndWatch"
Seen = list[tuple[tuple[str, str], ...]]


@dataclass
class Peer:
    """A plugin, its parts, and a client on its socket."""

    server: SocketServer
    listing: DeviceList
    answers: Answers
    channel: SocketChannel
    changes: Latest[None] = field(default_factory=lambda: Latest(None))

    @property
    def stub(self) -> v1beta1.DevicePluginStub:
        return v1beta1.DevicePluginStub(self.channel)

    async def until_streams(self, count: int) -> None:
        with anyio.fail_after(5):
            while self.server.streams != count:
                await self.changes.newer(self.changes.version)

    async def allocate(self, *containers: list[str]) -> v1beta1.AllocateResponse:
        requests = [v1beta1.ContainerAllocateRequest(ids) for ids in containers]
        return await self.stub.allocate(v1beta1.AllocateRequest(requests), timeout=30)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    listing, answers, changes = DeviceList((A, B)), Answers(), Latest[None](None)
    served = DevicePlugin(listing, answers, Timeouts())
    server = SocketServer(tmp_path, "p.sock", [served], timeouts=Timeouts(), on_streams=changes.touch)
    await server.start()
    channel = SocketChannel(server.path)
    yield Peer(server, listing, answers, channel, changes)
    channel.close()
    await server.stop(0)


@asynccontextmanager
async def watcher(peer: Peer, slow: anyio.Event | None = None) -> AsyncIterator[Latest[Seen]]:
    """A stream that is read in the background: all lists so far. A slow one reads after its event."""
    seen = Latest[Seen]([])

    async def read() -> None:
        kinds = (Cardinality.UNARY_STREAM, v1beta1.Empty, v1beta1.ListAndWatchResponse)
        async with peer.channel.request(LIST_AND_WATCH, *kinds) as stream:
            await stream.send_message(v1beta1.Empty(), end=True)
            if slow is not None:
                await slow.wait()
            while (message := await stream.recv_message()) is not None:
                seen.set([*seen.get(), tuple((each.id, each.health) for each in message.devices)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        yield seen
        tasks.cancel_scope.cancel()


async def until(seen: Latest[Seen], count: int) -> Seen:
    with anyio.fail_after(5):
        while len(seen.get()) < count:
            await seen.newer(seen.version)
    return seen.get()


@pytest.mark.parametrize("preferring", [True, False])
async def test_options_say_the_same_in_both_places(peer: Peer, preferring: bool) -> None:
    peer.answers.preferring = preferring
    told = await peer.stub.get_device_plugin_options()
    assert told == device_plugin.options(peer.answers)
    assert told.get_preferred_allocation_available is preferring
    assert not told.pre_start_required


async def test_a_stream_starts_with_the_list_and_hears_of_changes_only(peer: Peer) -> None:
    async with watcher(peer) as seen:
        await until(seen, 1)
        peer.listing.update((A, B))
        peer.listing.update((A,))
        assert await until(seen, 2) == [(("a", "Healthy"), ("b", "Unhealthy")), (("a", "Healthy"),)]


async def test_a_list_can_be_sent_again_though_it_is_the_same(peer: Peer) -> None:
    """The kubelet writes its checkpoint at each one."""
    async with watcher(peer) as seen:
        await until(seen, 1)
        peer.listing.resend()
        assert len(set(await until(seen, 2))) == 1


async def test_another_text_of_a_reason_is_no_news_for_the_kubelet(peer: Peer) -> None:
    async with watcher(peer) as seen:
        await until(seen, 1)
        other = BROKEN._replace(message="its driver is another")
        peer.listing.update((A, device("b", other)))
        await anyio.wait_all_tasks_blocked()
        peer.listing.update((A,))
        assert await until(seen, 2) == [(("a", "Healthy"), ("b", "Unhealthy")), (("a", "Healthy"),)]


async def test_without_devices_the_list_is_empty_and_sent(peer: Peer) -> None:
    peer.listing.update(())
    async with watcher(peer) as seen:
        assert await until(seen, 1) == [()]


async def test_no_topology_is_sent_for_an_unknown_numa_node(peer: Peer) -> None:
    """With -1 on the wire strict topology policies refuse pods; node 0 must be on it."""
    peer.listing.update(tuple(device(str(numa), numa=numa) for numa in (None, -1, 0, 1)))
    stream = peer.stub.list_and_watch()
    topologies = [each.topology for each in (await anext(stream)).devices]
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator, typed as iterator
    assert topologies == [None, None, *(v1beta1.TopologyInfo([v1beta1.NumaNode(numa)]) for numa in (0, 1))]


async def test_two_streams_both_get_everything(peer: Peer) -> None:
    async with watcher(peer) as one, watcher(peer) as other:
        await until(one, 1)
        await until(other, 1)
        assert peer.server.streams == 2
        peer.listing.update((B,))
        assert (await until(one, 2))[1] == (await until(other, 2))[1] == (("b", "Unhealthy"),)


async def test_the_end_of_a_stream_is_noticed(peer: Peer) -> None:
    assert not peer.server.streamed
    async with watcher(peer) as seen:
        await until(seen, 1)
    await peer.until_streams(0)
    assert peer.server.streamed


async def test_containers_are_answered_one_by_one_in_order(peer: Peer) -> None:
    answer = await peer.allocate(["a"], ["b", "c"], ["a"])
    assert [one.envs["IDS"] for one in answer.container_responses] == ["a", "b,c", "a"]
    first = answer.container_responses[0]
    assert first.devices == [v1beta1.DeviceSpec("/dev/vfio/vfio", "/dev/vfio/vfio", "mrw")]
    assert [each.name for each in first.cdi_devices] == ["x/y=a"]


async def test_the_same_ids_may_come_again(peer: Peer) -> None:
    assert await peer.allocate(["a"]) == await peer.allocate(["a"])


@pytest.mark.parametrize("kind", [AllocationRefused, KernelRefused])
async def test_a_refusal_reaches_the_user_in_one_line(peer: Peer, kind: type[AllocationRefused]) -> None:
    peer.answers.error = kind("a: its driver is nouveau", "bind it to vfio-pci")
    with pytest.raises(GRPCError) as caught:
        await peer.allocate(["a"])
    assert caught.value.status is Status.FAILED_PRECONDITION
    error = peer.answers.error
    assert caught.value.message == f"{error.what}: {error.hint}"


async def test_a_refusal_without_a_hint_is_the_text_alone(peer: Peer) -> None:
    peer.answers.error = AllocationRefused("a is gone")
    with pytest.raises(GRPCError) as caught:
        await peer.allocate(["a"])
    assert caught.value.message == "a is gone"


async def test_the_list_that_explains_a_refusal_comes_before_it(peer: Peer) -> None:
    peer.answers.error = AllocationRefused("a: its driver is nouveau")
    peer.answers.before_error = lambda: peer.listing.update((device("a", BROKEN), B))
    async with watcher(peer) as seen:
        await until(seen, 1)
        with pytest.raises(GRPCError):
            await peer.allocate(["a"])
        assert len(seen.get()) == 2


async def test_a_stalled_reader_delays_a_refusal_only_a_moment(peer: Peer) -> None:
    peer.answers.error = AllocationRefused("no")
    many = tuple(device(f"{number:060d}") for number in range(5_000))
    async with watcher(peer, slow=anyio.Event()):
        await peer.until_streams(1)
        peer.listing.update(many)
        began = anyio.current_time()
        with pytest.raises(GRPCError, match="no"):
            await peer.allocate(["a"])
        assert anyio.current_time() - began < Timeouts().refusal_list_sent + 1


@virtual.TIME
async def test_a_host_that_does_not_answer_ends_in_a_text_at_the_limit(peer: Peer) -> None:
    peer.answers.gate = anyio.Event()
    began = anyio.current_time()
    with pytest.raises(GRPCError) as caught:
        await peer.allocate(["a"])
    assert caught.value.status is Status.DEADLINE_EXCEEDED
    names(caught.value.message, "a", f"{Timeouts().allocate_answer:.0f} s")
    assert Timeouts().allocate_answer - 0.5 < anyio.current_time() - began < Timeouts().allocate_answer + 3


async def test_an_id_stays_listed_while_its_allocate_runs(peer: Peer) -> None:
    peer.answers.gate = anyio.Event()
    async with watcher(peer) as seen, anyio.create_task_group() as tasks:
        await until(seen, 1)
        tasks.start_soon(peer.allocate, ["a"])
        await peer.answers.entered.wait()
        peer.listing.update(())
        assert (await until(seen, 2))[1] == (("a", "Unhealthy"),)
        peer.answers.gate.set()


async def test_each_container_has_its_own_preference(peer: Peer) -> None:
    ask = v1beta1.ContainerPreferredAllocationRequest
    answer = await peer.stub.get_preferred_allocation(
        v1beta1.PreferredAllocationRequest([ask(["a", "b", "c"], ["a"], 2), ask(["a", "b"], [], 1)])
    )
    assert [one.device_ids for one in answer.container_responses] == [["a", "c"], ["b"]]


async def test_a_preference_that_cannot_be_met_is_an_error_of_the_request(peer: Peer) -> None:
    peer.answers.error = AllocationRefused("too many must be included")
    request = v1beta1.PreferredAllocationRequest([v1beta1.ContainerPreferredAllocationRequest(["a"], [], 1)])
    with pytest.raises(GRPCError) as caught:
        await peer.stub.get_preferred_allocation(request)
    assert (caught.value.status, caught.value.message) == (
        Status.INVALID_ARGUMENT,
        "too many must be included",
    )


async def test_pre_start_container_answers(peer: Peer) -> None:
    answer = await peer.stub.pre_start_container(v1beta1.PreStartContainerRequest(["a"]))
    assert answer == v1beta1.PreStartContainerResponse()
