# SPDX-License-Identifier: Apache-2.0
"""Calls: every failure is one kind of error, and leaves no trace in the task that called."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest
from grpclib.exceptions import StreamTerminatedError

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet import grpc
from nodeagent.kubelet.api.deviceplugin import v1beta1
from tests.kubelet.serving import allocate, open_channel, options, serving, within

GOAWAY = bytes.fromhex("000000040000000000 0000080700000000000000000000000000")  # after empty SETTINGS


async def test_a_call_that_times_out_leaves_cancel_scopes_in_order(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        with anyio.CancelScope() as scope:
            with pytest.raises(KubeletUnavailable, match="no answer in time"):
                await allocate(served.path, limit=0.05)
            scope.cancel()
            await anyio.sleep_forever()
        assert scope.cancelled_caught


@pytest.mark.parametrize("last_words", [b"", GOAWAY], ids=["nothing", "GOAWAY"])
async def test_a_lost_connection_leaves_its_task_uncancelled(tmp_path: Path, last_words: bytes) -> None:
    loop = asyncio.get_running_loop()
    counts: list[int] = []

    async def call() -> None:
        with pytest.raises(KubeletUnavailable):
            await allocate(tmp_path / "p.sock")
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


async def test_a_cancelled_caller_ends_its_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, plugin), anyio.create_task_group() as tasks:
        counts: list[int] = []
        calling: list[asyncio.Task[Any] | None] = []

        async def call() -> None:
            calling.append(asyncio.current_task())
            try:
                await allocate(served.path)
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


async def test_an_error_that_comes_after_the_caller_was_cancelled_is_nobodys() -> None:
    """Asyncio reports an exception that nobody has looked at; anyio's test runner raises it."""

    async def fails() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise StreamTerminatedError("Connection lost")

    with anyio.move_on_after(0):
        await grpc.in_own_task(fails())
    gc.collect()
    await anyio.wait_all_tasks_blocked()


async def test_an_absent_or_silent_peer_means_kubelet_unavailable(tmp_path: Path) -> None:
    with pytest.raises(grpc.KubeletAway, match="No such file"):
        await options(tmp_path / "none.sock")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "deaf.sock"))
        with pytest.raises(grpc.KubeletAway, match="Connection refused"):
            await options(tmp_path / "deaf.sock")
        bound.listen()
        with pytest.raises(KubeletUnavailable, match="no answer in time") as caught:
            await options(tmp_path / "deaf.sock", limit=0.05)
        assert not isinstance(caught.value, grpc.KubeletAway)


async def test_an_answer_that_is_no_message_means_kubelet_unavailable(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "p.sock"):
        with pytest.raises(KubeletUnavailable):
            await options(tmp_path / "p.sock")


async def test_calls_share_a_connection_until_the_peer_is_another(tmp_path: Path) -> None:
    async with open_channel(tmp_path / "p.sock") as channel:
        stub, connections = v1beta1.DevicePluginStub(channel), []
        for _ in range(2):
            async with serving(tmp_path):
                for _ in range(2):
                    await grpc.call(stub.get_device_plugin_options(timeout=5))
                    connections.append(await channel.__connect__())
    first, again, second, last = connections
    assert first is again
    assert second is last
    assert second is not first


async def test_a_closed_channel_does_not_connect_again_for_a_later_call(tmp_path: Path) -> None:
    async with serving(tmp_path), open_channel(tmp_path / "p.sock") as channel:
        stub = v1beta1.DevicePluginStub(channel)
        await grpc.call(stub.get_device_plugin_options(timeout=5))
        channel.close()
        with pytest.raises(grpc.KubeletAway):
            await grpc.call(stub.get_device_plugin_options(timeout=5))
