# SPDX-License-Identifier: Apache-2.0
"""Frames that nobody knows, messages that end too early or have no end, and texts without bounds."""

from __future__ import annotations

import struct
from pathlib import Path

import anyio
import grpc
import grpc.aio
import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from h2.connection import H2Connection

from nodeagent.base.errors import LONGEST, KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import server
from nodeagent.kubelet.grpc.channel import open_channel
from nodeagent.kubelet.grpc.connection import LARGEST
from tests.kubelet.grpc.frames import ALTSVC, UNKNOWN, answering, framed, peer
from tests.kubelet.serving import Plugin, options, serving

OPTIONS = "/v1beta1.DevicePlugin/GetDevicePluginOptions"
ALLOCATE = "/v1beta1.DevicePlugin/Allocate"
ANSWER = framed(bytes(v1beta1.DevicePluginOptions(True, True)))
HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", OPTIONS),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


class Talkative(Plugin):
    """Refuses with as many words as it can find."""

    async def allocate(self, message: v1beta1.AllocateRequest) -> v1beta1.AllocateResponse:
        raise GRPCError(Status.FAILED_PRECONDITION, "ü" * (1 << 20))


@pytest.mark.parametrize("frame", [UNKNOWN, ALTSVC])
async def test_an_answer_is_taken_although_unknown_frames_come_before_it(
    tmp_path: Path, frame: bytes
) -> None:
    path = tmp_path / "p.sock"
    async with peer(path, answering(ANSWER, before=frame)):
        assert (await options(path)).get_preferred_allocation_available


@pytest.mark.parametrize("frame", [UNKNOWN, ALTSVC])
async def test_a_call_is_answered_although_unknown_frames_come_before_it(
    tmp_path: Path, frame: bytes
) -> None:
    ours = H2Connection()
    ours.initiate_connection()
    async with serving(tmp_path) as (served, _), await anyio.connect_unix(served.path) as stream:
        await stream.send(ours.data_to_send() + frame)
        ours.send_headers(1, HEADERS)
        ours.send_data(1, framed(b""), end_stream=True)
        await stream.send(ours.data_to_send())
        names: list[str] = []
        with anyio.fail_after(5):
            while "StreamEnded" not in names:
                names += [type(event).__name__ for event in ours.receive_data(await stream.receive())]
        assert "DataReceived" in names


@pytest.mark.parametrize("cut", range(len(ANSWER)))
async def test_a_part_of_an_answer_is_none(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "p.sock"
    async with peer(path, answering(ANSWER[:cut])):
        with pytest.raises(KubeletUnavailable):
            await options(path)


async def test_a_refusal_without_a_message_keeps_its_status(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    async with peer(path, answering(b"", "8")):
        with pytest.raises(KubeletUnavailable, match="RESOURCE_EXHAUSTED"):
            await options(path)


async def test_an_answer_beyond_all_bounds_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "p.sock"
    async with peer(path, answering(b"\0" + struct.pack(">I", LARGEST + 1))):
        with pytest.raises(
            KubeletUnavailable, match=rf"RESOURCE_EXHAUSTED: a message of {LARGEST + 1} bytes"
        ):
            await options(path)


async def test_a_request_beyond_all_bounds_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (served, _):
        limits = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(f"unix:{served.path}", options=limits) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.unary_unary(ALLOCATE)(bytes(LARGEST + 1), timeout=10)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await client.unary_unary(OPTIONS)(b"", timeout=5) == b"\x10\x01"


async def test_a_refusal_has_no_more_words_than_a_person_reads(tmp_path: Path) -> None:
    served = server.SocketServer(tmp_path, "p.sock", [Talkative()], timeouts=Timeouts())
    await served.start()
    try:
        with pytest.raises(KubeletUnavailable) as refused:
            async with open_channel(served.path) as client:
                await v1beta1.DevicePluginStub(client).allocate(v1beta1.AllocateRequest(), timeout=5)
        assert refused.value.what.startswith("FAILED_PRECONDITION: üüü")
        assert len(refused.value.what) < LONGEST + 100
    finally:
        await served.stop(0)
