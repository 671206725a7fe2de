# SPDX-License-Identifier: Apache-2.0
"""The kept channel: calls share a connection for as long as it is good for the next one."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from h2.connection import H2Connection
from h2.settings import SettingCodes

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc.channel import KubeletAway
from nodeagent.kubelet.grpc.kept import KeptChannel
from tests import virtual
from tests.kubelet.grpc import frames
from tests.kubelet.serving import serving, within

IDLE = 5.0  # seconds


def kept_at(directory: Path, idle: float = IDLE) -> closing[KeptChannel]:
    return closing(KeptChannel(str(directory / "p.sock"), idle))


async def connection(kept: KeptChannel) -> Any:
    """What a short call goes through."""
    async with kept.channel() as channel:
        await v1beta1.DevicePluginStub(channel).get_device_plugin_options(timeout=5)
        return await channel.__connect__()


async def allocate(kept: KeptChannel, limit: float | None = None) -> None:
    async with kept.channel() as channel:
        await v1beta1.DevicePluginStub(channel).allocate(v1beta1.AllocateRequest(), timeout=limit)


async def test_calls_that_follow_each_other_share_a_connection(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with kept_at(tmp_path) as kept:
            assert await connection(kept) is await connection(kept)


async def test_calls_at_the_same_time_share_a_connection_that_is_closed_with_the_last(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, plugin):
        with kept_at(tmp_path, idle=0.0) as kept:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(allocate, kept)
                await within(5, plugin.entered.wait)
                first = await connection(kept)
                assert await connection(kept) is first
                assert not first.connection.is_closing()
                plugin.gate.set()
            assert first.connection.is_closing()
            assert await connection(kept) is not first


async def test_what_is_closed_under_a_call_goes_on_until_its_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, plugin), anyio.create_task_group() as tasks:
        with kept_at(tmp_path) as kept:
            tasks.start_soon(allocate, kept)
            await within(5, plugin.entered.wait)
            first = await connection(kept)
            kept.close()
            assert not first.connection.is_closing()
            assert await connection(kept) is not first
        plugin.gate.set()


@virtual.TIME
async def test_a_connection_is_closed_when_nobody_has_used_it_for_a_moment(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with kept_at(tmp_path) as kept:
            first = await connection(kept)
            await anyio.sleep(0.9 * IDLE)
            assert await connection(kept) is first
            await anyio.sleep(0.9 * IDLE)
            assert not first.connection.is_closing(), "it was used meanwhile"
            await anyio.sleep(0.2 * IDLE)
            assert first.connection.is_closing()
            assert await connection(kept) is not first


async def test_a_peer_with_another_socket_is_asked_by_another_connection(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    async with serving(tmp_path, "one.sock") as (one, _), serving(tmp_path, "two.sock") as (two, _):
        with kept_at(tmp_path) as kept:
            path.hardlink_to(one.path)
            first = await connection(kept)
            path.unlink()
            with pytest.raises(KubeletAway, match="No such file"):
                await connection(kept)
            path.hardlink_to(two.path)
            assert await connection(kept) is not first, "the old peer still listens elsewhere"
            assert first.connection.is_closing()


async def test_a_peer_that_has_hung_up_is_connected_to_anew(tmp_path: Path) -> None:
    with kept_at(tmp_path) as kept:
        async with serving(tmp_path):
            first = await connection(kept)
        with pytest.raises(KubeletAway):
            await connection(kept)
        async with serving(tmp_path):
            assert await connection(kept) is not first


async def test_a_connection_on_which_a_call_failed_gets_no_more_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path):
        with kept_at(tmp_path) as kept:
            first = await connection(kept)
            with pytest.raises(KubeletUnavailable, match=r"no answer in time|DEADLINE_EXCEEDED"):
                await allocate(kept, 0.05)
            assert first.connection.is_closing()
            assert await connection(kept) is not first


async def test_a_call_that_waits_for_its_turn_ends_with_the_connection(tmp_path: Path) -> None:
    """A peer may bear so many calls at a time; those that have not begun have no number yet."""
    begun: list[int] = []

    def one_at_a_time(connection: H2Connection, stream: int) -> bytes:
        begun.append(stream)
        connection.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
        return frames.answering(frames.framed(b""))(connection, stream) if len(begun) == 1 else b""

    async def fail(kept: KeptChannel) -> None:
        with pytest.raises(KubeletUnavailable, match="Connection lost"):
            await allocate(kept)
        ended.append(kept)

    ended: list[KeptChannel] = []
    with kept_at(tmp_path) as kept, anyio.fail_after(5):
        async with anyio.create_task_group() as tasks, frames.peer(tmp_path / "p.sock", one_at_a_time):
            await allocate(kept)
            for _ in range(3):
                tasks.start_soon(fail, kept)
            await anyio.wait_all_tasks_blocked()
    assert len(begun) == 2
    assert len(ended) == 3
