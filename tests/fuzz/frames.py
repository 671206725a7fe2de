# SPDX-License-Identifier: Apache-2.0
"""Frames of HTTP/2 that no kubelet sends, at a plugin's socket and at our client.

What is damaged is what h2 itself writes for the calls that are made here. A plugin that was told nonsense on
one connection serves the next one. An answer that breaks off is none, however much of it has come.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
from h2.config import H2Configuration
from h2.connection import H2Connection
from hypothesis import strategies as st

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet import podresources
from nodeagent.kubelet.grpc.server import SocketServer
from nodeagent.model.allocation import PodList
from tests.fuzz import kubelets, mutations
from tests.fuzz.running import Target

_PREFACE = 24  # bytes
_HEAD = 9  # bytes of a frame before its payload
_MOMENT = 0.02  # seconds in which an answer to nonsense may come
_LIMIT = 0.3  # seconds for an answer of PodResources
_FRAME = st.builds(
    lambda kind, flags, stream, payload: _frame(kind, flags, stream, payload),
    st.integers(0, 12) | st.integers(0, 255),
    st.sampled_from([0, 1, 4, 5, 8, 0x20, 0x2D]) | st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
    st.binary(max_size=40)
    | st.sampled_from([b"\0" * 8, b"\0\0\0\0\0", b"\xff" * 300, b"\x82" * 900, b"\0\3\0\0\0\1"]),
)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _split(data: bytes) -> list[bytes]:
    """The frames that h2 has written."""
    frames = []
    while data:
        size = _HEAD + int.from_bytes(data[:3], "big")
        frames.append(data[:size])
        data = data[size:]
    return frames


def _calls(method: str) -> tuple[bytes, list[bytes]]:
    """The preface, and the frames of one call."""
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    path = f"/v1beta1.DevicePlugin/{method}"
    basics = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")]
    peer.send_headers(1, [*basics, ("content-type", "application/grpc")])
    peer.send_data(1, bytes(5), end_stream=True)
    data = peer.data_to_send()
    return data[:_PREFACE], _split(data[_PREFACE:])


def _answers(message: bytes) -> list[bytes]:
    """The frames of an answer to the first call on a connection."""
    client, server = H2Connection(), H2Connection(H2Configuration(client_side=False))
    client.initiate_connection()
    server.initiate_connection()
    client.send_headers(1, [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "x")])
    server.receive_data(client.data_to_send())
    server.send_headers(1, [(":status", "200"), ("content-type", "application/grpc+proto")])
    server.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message)
    server.send_headers(1, [("grpc-status", "0")], end_stream=True)
    return _split(server.data_to_send())


def _shuffled(frames: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Frames in their order with others between them, some left out or twice; then damage to the bytes."""
    known = st.sampled_from(frames)
    mixed = st.lists(known | _FRAME, max_size=8)
    inserted = st.tuples(st.integers(0, len(frames)), mixed).map(
        lambda drawn: [*frames[: drawn[0]], *drawn[1], *frames[drawn[0] :]]
    )
    joined = (inserted | mixed).map(b"".join)
    return joined | joined.flatmap(lambda data: mutations.damaged([data], [b"\0", b"\xff", b"\x82"], 2))


def _served(content: bytes) -> None:
    async def talk() -> None:
        with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
            server = SocketServer(directory, "p.sock", [kubelets.plugin()], timeouts=Timeouts())
            await server.start()
            try:
                await _say(server.path, content)
                await kubelets.usable(server.path)
            finally:
                await server.stop(0)

    anyio.run(talk)


async def _say(path: Path, content: bytes) -> None:
    """Send it all and hear what comes, for a moment."""
    async with await anyio.connect_unix(path) as stream:
        with contextlib.suppress(anyio.BrokenResourceError, anyio.EndOfStream), anyio.move_on_after(_MOMENT):
            await stream.send(content)
            while True:
                await stream.receive()


def _listened(content: bytes) -> PodList | None:
    """What our client makes of an answer; None if it does not believe it."""

    async def talk() -> PodList | None:
        with TemporaryDirectory(prefix="nodeagent-fuzz-") as directory:
            path = str(Path(directory, "kubelet.sock"))
            server = await asyncio.start_unix_server(_teller(content), path)
            async with server:
                try:
                    return await podresources.PodReader(
                        path, podresources.VirtHandler(directory), _LIMIT
                    ).pods()
                except KubeletUnavailable:
                    return None

    return anyio.run(talk)


def _teller(content: bytes):  # type: ignore[no-untyped-def]
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # by the end of the loop
            await reader.read(1 << 16)
            writer.write(content)
            await writer.drain()
            await asyncio.sleep(_MOMENT)  # the client hears the end of the connection after all of it
        writer.close()

    return tell


def _broken_off(at: int) -> None:
    whole = b"".join(_answers(kubelets.answer()))
    found = _listened(whole[: at % len(whole)])
    assert found is None, f"of {len(whole)} bytes {at % len(whole)} were believed"


def targets() -> list[Target]:
    """All of this module."""
    sessions = [
        _calls("GetDevicePluginOptions"),
        _calls("ListAndWatch"),
        _calls("Allocate"),
        _calls("Nothing"),
    ]
    spoken = st.sampled_from(sessions).flatmap(
        lambda session: _shuffled(session[1]).map(lambda data: session[0] + data)
    )
    answered = _shuffled(_answers(kubelets.answer()))
    return [
        Target("server-frames", spoken, _served),
        Target("client-frames", answered, lambda content: _listened(content) and None),
        Target("broken-off", st.integers(0, 1 << 16), _broken_off, lambda at: 1000),
    ]
