# SPDX-License-Identifier: Apache-2.0
"""The channel: what goes wrong is one kind of error, and leaves no trace in the task that called."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import anyio
import hpack
import pytest

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import channel
from nodeagent.kubelet.grpc.channel import open_channel
from tests.kubelet.serving import options, serving, within

GOAWAY = bytes.fromhex("000000040000000000 0000080700000000000000000000000000")  # after empty SETTINGS


async def test_a_call_that_times_out_leaves_cancel_scopes_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        with anyio.CancelScope() as scope:
            with pytest.raises(KubeletUnavailable, match="no answer in time"):
                async with open_channel(served.path) as peer:
                    stub = v1beta1.DevicePluginStub(peer)
                    await stub.allocate(v1beta1.AllocateRequest(), timeout=0.05)
            scope.cancel()
            await anyio.sleep_forever()
        assert scope.cancelled_caught


@pytest.mark.parametrize("last_words", [b"", GOAWAY], ids=["nothing", "GOAWAY"])
async def test_a_lost_connection_leaves_its_task_uncancelled(tmp_path: Path, last_words: bytes) -> None:
    loop = asyncio.get_running_loop()
    counts: list[int] = []

    async def call() -> None:
        with pytest.raises(KubeletUnavailable):
            async with open_channel(tmp_path / "p.sock") as peer:
                await v1beta1.DevicePluginStub(peer).allocate(v1beta1.AllocateRequest())
        counts.append(_cancellations())

    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(tmp_path / "p.sock"))
        listening.listen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            connection, _ = await loop.sock_accept(listening)
            with connection:
                await anyio.wait_all_tasks_blocked()  # the call waits for its answer
                await loop.sock_sendall(connection, last_words)
    assert counts == [0]


@pytest.mark.parametrize(
    "headers",
    [
        [("content-type", "application/grpc")],
        [(":status", "200"), ("content-type", "application/grpc"), ("x-bin", "x")],
        [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "5"), ("x-bin", "x")],
    ],
    ids=["no status", "no base64", "no base64 at the end"],
)
async def test_headers_that_no_server_of_grpc_sends_are_an_answer_that_failed(
    tmp_path: Path, headers: list[tuple[str, str]]
) -> None:
    packed = hpack.Encoder().encode(headers)
    settings, head = b"\0\0\0\4\0\0\0\0\0", len(packed).to_bytes(3, "big") + b"\1\5\0\0\0\1"
    closed = anyio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings + head + packed)
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    async with await asyncio.start_unix_server(answer, tmp_path / "p.sock"):
        with pytest.raises(KubeletUnavailable, match="not understood"):
            await options(tmp_path / "p.sock")
        await closed.wait()


async def test_a_cancellation_that_is_not_grpclibs_stays_counted(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin), anyio.create_task_group() as tasks:
        counts: list[int] = []
        calling: list[asyncio.Task[Any] | None] = []

        async def call() -> None:
            calling.append(asyncio.current_task())
            try:
                async with open_channel(served.path) as peer:
                    await v1beta1.DevicePluginStub(peer).allocate(v1beta1.AllocateRequest())
            finally:
                counts.append(_cancellations())

        tasks.start_soon(call)
        await within(5, plugin.entered.wait)
        assert calling[0] is not None
        calling[0].cancel()
    assert counts == [1]


def _cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_an_absent_or_silent_peer_means_kubelet_unavailable(tmp_path: Path) -> None:
    with pytest.raises(channel.KubeletAway, match="No such file"):
        await options(tmp_path / "none.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "deaf.sock"))
        with pytest.raises(channel.KubeletAway, match="Connection refused"):
            await options(tmp_path / "deaf.sock")
        bound.listen()
        with pytest.raises(KubeletUnavailable, match="no answer in time") as caught:
            async with open_channel(tmp_path / "deaf.sock") as peer:
                await v1beta1.DevicePluginStub(peer).get_device_plugin_options(timeout=0.05)
        assert not isinstance(caught.value, channel.KubeletAway)


async def test_a_channel_that_was_closed_is_not_connected_anew_by_a_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        peer = channel.SocketChannel(served.path)
        await peer.__connect__()
        peer.close()
        with pytest.raises(ConnectionAbortedError):
            await v1beta1.DevicePluginStub(peer).get_device_plugin_options()
        async with anyio.create_task_group() as tasks:  # and not while it connects
            late = channel.SocketChannel(served.path)
            tasks.start_soon(_close, late)
            with pytest.raises(ConnectionAbortedError):
                await late.__connect__()


async def _close(peer: channel.SocketChannel) -> None:
    peer.close()
