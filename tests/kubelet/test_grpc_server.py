# SPDX-License-Identifier: Apache-2.0
"""The server against our own channel and against grpcio (C-core) as a strict client."""

from __future__ import annotations

import gc
import os
import socket
from pathlib import Path

import anyio
import anyio.lowlevel
import grpc
import grpc.aio
import grpclib.server
import h2.events
import pytest
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError
from h2.connection import H2Connection

from nodeagent.base import sockets
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import SocketChannel, SocketServer
from tests import virtual
from tests.kubelet.serving import HELLO, Plugin, allocate, open_channel, options, serving, within

ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
LIST = "/v1beta1.DevicePlugin/ListAndWatch"
OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"


async def test_a_call_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        assert (await options(served.path)).get_preferred_allocation_available


async def test_a_long_prefix_does_not_matter(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120) / ("y" * 120)
    deep.mkdir(parents=True)
    async with serving(deep) as (served, _):
        assert (await options(served.path)).get_preferred_allocation_available
        assert sockets.is_served(served.path)


async def test_stop_lets_a_running_call_finish(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin), open_channel(served.path) as peer:
        answers: list[v1beta1.AllocateResponse] = []

        async def call() -> None:
            answers.append(await v1beta1.DevicePluginStub(peer).allocate(v1beta1.AllocateRequest()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await within(5, plugin.entered.wait)
            tasks.start_soon(served.stop, 5.0)
            await anyio.wait_all_tasks_blocked()
            assert not answers
            plugin.gate.set()
        assert answers == [v1beta1.AllocateResponse()]


async def test_a_call_that_outlives_the_grace_is_told_so(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin):
        raised: list[KubeletUnavailable] = []

        async def call() -> None:
            try:
                await allocate(served.path)
            except KubeletUnavailable as error:
                raised.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await within(5, plugin.entered.wait)
            await within(3, lambda: served.stop(0.05))
        assert "UNAVAILABLE: the server has stopped" in raised[0].what


async def test_new_calls_on_an_old_connection_are_refused_while_stopping(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin), open_channel(served.path) as peer:
        stub = v1beta1.DevicePluginStub(peer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stub.allocate, v1beta1.AllocateRequest())
            await within(5, plugin.entered.wait)
            tasks.start_soon(served.stop, 5.0)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(GRPCError) as refused:
                await stub.get_device_plugin_options(timeout=5)
            plugin.gate.set()
    assert refused.value.status is Status.UNAVAILABLE


@virtual.TIME
async def test_stop_ends_a_stream_cleanly_and_closes_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin), open_channel(served.path) as peer:
        seen: list[v1beta1.ListAndWatchResponse] = []

        async def read() -> None:
            async for message in v1beta1.DevicePluginStub(peer).list_and_watch():
                seen.append(message)
                first.set()

        first = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await within(5, first.wait)
            await within(4, lambda: served.stop(0))
        assert [message.devices[0].id for message in seen] == ["a"]
        assert plugin.ended.get() == 1
        assert not served.path.exists()
        with pytest.raises(OSError):
            await v1beta1.DevicePluginStub(peer).get_device_plugin_options(timeout=5)


async def test_stop_works_for_a_cancelled_caller_and_twice(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await served.stop(0)
        assert not served.path.exists()
        await served.stop(0)


async def test_a_handler_learns_that_its_peer_has_gone_and_cleans_up_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin):
        async with open_channel(served.path) as peer:
            stream = v1beta1.DevicePluginStub(peer).list_and_watch()
            assert await within(5, stream.__anext__)
            await stream.aclose()  # type: ignore[attr-defined]  # an async generator, typed as iterator
        await within(5, lambda: plugin.ended.newer(0))
        assert plugin.ended.get() == 1
        began = anyio.current_time()
        await served.stop(0)  # at once: it has no stream to end, and no peer to wait for
        assert anyio.current_time() - began < 0.5


async def test_a_missing_directory_means_that_the_kubelet_is_away(tmp_path: Path) -> None:
    with pytest.raises(KubeletUnavailable, match=r"none/p\.sock"):
        await SocketServer(tmp_path / "none", "p.sock", [Plugin()], timeouts=Timeouts()).start()


async def test_a_name_that_is_taken_is_not_stolen(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        with pytest.raises(KubeletUnavailable):
            await SocketServer(tmp_path, "p.sock", [Plugin()], timeouts=Timeouts()).start()
        assert served.present
        assert (await options(served.path)).get_preferred_allocation_available


async def test_the_server_knows_when_its_socket_has_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        assert served.present
        served.path.unlink()
        assert not served.present


async def test_stop_leaves_the_file_of_another_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        served.path.rename(tmp_path / "moved")
        served.path.write_text("somebody else's")
        await served.stop(0)
        assert served.path.read_text() == "somebody else's"


async def test_a_socket_is_published_under_its_name_when_it_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "reg.sock").write_text("left over")
    served = SocketServer(tmp_path, ".reg.sock", [Plugin()], publish_as="reg.sock", timeouts=Timeouts())
    await served.start()
    try:
        assert os.listdir(tmp_path) == ["reg.sock"]
        assert served.present
        assert (await options(served.path)).get_preferred_allocation_available
    finally:
        await served.stop(0)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("path", ["/v1beta1.DevicePlugin/Nope", "/nobody.Knows/It"])
@pytest.mark.parametrize("authority", ["localhost", "/var/lib/kubelet/x.sock", "%2Fvar%2Fx.sock", ""])
async def test_any_authority_is_served_and_unknown_methods_are_unimplemented(
    tmp_path: Path, authority: str, path: str
) -> None:
    async with serving(tmp_path) as (served, _):
        settings = [("grpc.default_authority", authority)] if authority else []
        async with grpc.aio.insecure_channel(f"unix:{served.path}", options=settings) as peer:
            call = peer.unary_unary(OPTIONS)
            assert await call(b"", timeout=5) == b"\x10\x01"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await peer.unary_unary(path)(b"", timeout=5)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_the_answer_to_an_unknown_method_has_a_content_type(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        peer = SocketChannel(served.path)
        kinds = (Cardinality.UNARY_UNARY, v1beta1.Empty, v1beta1.Empty)
        with pytest.raises(GRPCError, match="unknown method"):
            async with peer.request("/nobody.Knows/It", *kinds, timeout=5) as stream:
                await stream.send_message(v1beta1.Empty(), end=True)
                await stream.recv_message()
        peer.close()
        headers = dict(stream._stream.headers or ())  # noqa: SLF001 - grpclib shows metadata only in public
        assert (headers["content-type"], headers["grpc-status"]) == ("application/grpc+proto", "12")


async def test_a_peer_that_is_still_connected_is_told_goodbye(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        ours = H2Connection()
        ours.initiate_connection()
        events: list[h2.events.Event] = []
        async with await anyio.connect_unix(served.path) as stream:
            await stream.send(ours.data_to_send())
            events += ours.receive_data(await stream.receive())
            await served.stop(0)
            with anyio.fail_after(5):
                async for data in stream:
                    events += ours.receive_data(data)
        assert isinstance(events[-1], h2.events.ConnectionTerminated)


async def test_an_empty_authority_is_served(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        peer = SocketChannel(served.path, authority="")
        answer = await v1beta1.DevicePluginStub(peer).get_device_plugin_options(timeout=5)
        peer.close()
        assert answer.get_preferred_allocation_available


async def test_a_strict_peer_sees_the_stream_end_with_ok_when_the_server_stops(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as (served, _), grpc.aio.insecure_channel(f"unix:{served.path}") as peer:
        call = peer.unary_stream(LIST)(b"")
        assert await within(5, call.read) == bytes(HELLO)
        await within(5, lambda: served.stop(0))
        assert await within(5, call.read) is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


def test_probing_a_path_tells_whether_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    assert not sockets.is_served(path)
    assert not sockets.is_served(tmp_path / "none" / "s.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
        assert not sockets.is_served(path)
        bound.listen()
        assert sockets.is_served(path)
    assert not sockets.is_served(path)


async def _fds() -> int:
    gc.collect()
    await anyio.wait_all_tasks_blocked()
    return len(os.listdir("/proc/self/fd"))


async def test_many_starts_and_calls_leave_no_descriptor_behind(tmp_path: Path, loop_may_block: None) -> None:
    async def once() -> None:
        async with serving(tmp_path) as (served, _):
            await options(served.path)

    await once()
    before = await _fds()
    for _ in range(20):
        await once()
    assert await _fds() <= before  # fewer, when an earlier test's grpcio lets go only now


async def test_connections_that_ended_are_forgotten(tmp_path: Path, loop_may_block: None) -> None:
    async with serving(tmp_path) as (served, _):
        for _ in range(38):
            await options(served.path)
        gc.collect()
        alive = sum(isinstance(thing, grpclib.server.Handler) for thing in gc.get_objects())
    assert alive <= 4


async def test_a_start_that_is_cancelled_makes_no_later_socket_deaf(tmp_path: Path) -> None:
    """The next one has the number of its descriptor, which the event loop must not take for served."""
    first = SocketServer(tmp_path, "first.sock", [Plugin()], timeouts=Timeouts())
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await first.start()
        finally:
            await first.stop(0)
    async with serving(tmp_path) as (served, _):
        with anyio.fail_after(5):
            assert (await options(served.path)).get_preferred_allocation_available
