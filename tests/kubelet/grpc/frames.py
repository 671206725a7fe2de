# SPDX-License-Identifier: Apache-2.0
"""A peer that answers calls with whatever bytes and frames it is told to, which no library would send."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import h2.events
from anyio.abc import SocketStream
from h2.config import H2Configuration
from h2.connection import H2Connection

UNKNOWN = b"\0\0\x03\xfe\0\0\0\0\0abc"  # a frame of type 254 on the connection: length, type, flags, stream
ALTSVC = b"\0\0\x05\x0a\0\0\0\0\0\0\x01aa="  # of type 10, which RFC 7838 added

Answer = Callable[[H2Connection, int], bytes]
"""Sends on the stream of that number what is to be answered; returns bytes that go out before that."""


def framed(message: bytes) -> bytes:
    """A message as gRPC sends it: not compressed, its length, itself."""
    return b"\0" + struct.pack(">I", len(message)) + message


def answering(data: bytes, status: str = "0", before: bytes = b"") -> Answer:
    """The data, and trailers with that status; other bytes go out before both."""

    def answer(connection: H2Connection, stream: int) -> bytes:
        connection.send_headers(stream, [(":status", "200"), ("content-type", "application/grpc+proto")])
        if data:
            connection.send_data(stream, data)
        connection.send_headers(stream, [("grpc-status", status)], end_stream=True)
        return before

    return answer


@asynccontextmanager
async def peer(path: Path, answer: Answer) -> AsyncIterator[None]:
    """A server on the path that answers each call so."""

    async def serve(client: SocketStream) -> None:
        ours = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        ours.initiate_connection()
        async with client:
            await client.send(ours.data_to_send())
            async for data in client:
                for event in ours.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        await client.send(answer(ours, event.stream_id))
                await client.send(ours.data_to_send())

    listener = await anyio.create_unix_listener(path)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield
        tasks.cancel_scope.cancel()
