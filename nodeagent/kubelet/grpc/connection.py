# SPDX-License-Identifier: Apache-2.0
"""Connections with as few frames and system calls as they can do with, and the RPCs that run on a server's.

grpclib writes headers, message and trailers one by one; each is a system call, and wakes the peer for a
part of an answer with which it can do nothing: what is written in one turn of the event loop goes out in
one piece. And it opens windows of 4 MiB, for which three more frames are exchanged at each start: where
what comes in is small, the windows that HTTP/2 begins with will do. What comes in is judged before it is
kept: a message has a bound, one that ends too early is none, and frames of unknown types are passed over
(RFC 9113, 5.5), where grpclib gives the connection up. Knows nothing of what is sent.

Each RPC of a server runs in a cancel scope of its own: a scope that is cancelled lets the method return, so
that grpclib still sends the trailers, where a cancelled task would leave the peer waiting.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Collection
from typing import Any, cast

import anyio
from anyio import CancelScope
from grpclib.config import Configuration
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import Connection as H2Connection
from grpclib.protocol import EventsProcessor, H2Protocol, Stream

from nodeagent.base.errors import bounded
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.grpc.wire import Unreadable

SMALL = Configuration(http2_connection_window_size=65_535, http2_stream_window_size=65_535)
"""For connections on which no more than that comes in at once, as a rule: more costs an acknowledgement."""
LARGEST = 16 << 20
"""Bytes of a message: as many as the kubelet's own client of PodResources takes (16 MiB)."""
_CUT_OFF = "the message ends too early"
NO_COMPRESSION = "Compression not implemented"  # grpclib 0.4.9 to a compressed request


class JoinedWrites(asyncio.Transport):
    """In front of a connection's transport. Only what grpclib uses is offered."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send at the end of this turn."""
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._send)
        self._pieces.append(data)

    def close(self) -> None:
        """Send what was written, then close."""
        self._send()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what was written may be lost."""
        self._transport.abort()

    def is_closing(self) -> bool:
        """True if it is closed, or is being closed."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the connection's transport knows."""
        return self._transport.get_extra_info(name, default)

    def _send(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces and not self._transport.is_closing():
            self._transport.write(b"".join(pieces))


class WholeMessages(Stream):
    """grpclib's stream of a call, which takes messages that are whole, and not too large.

    grpclib asks for the head of a message (5 bytes), then for its body, and asserts that it got them.
    """

    _in_body = False

    async def send_request(
        self, headers: list[tuple[str, str]], end_stream: bool = False, *, _processor: EventsProcessor
    ) -> Callable[[], None]:
        """Begin a call. Where the peer bears so many only, it waits for its turn, but not without a peer.

        grpclib 0.4.9 ends those that have a number when the connection is lost, and lets the others wait.
        """
        waiting = -id(self)
        _processor.streams[waiting] = self
        try:
            return await super().send_request(headers, end_stream, _processor=_processor)
        finally:
            del _processor.streams[waiting]

    async def recv_data(self, size: int) -> bytes:
        """The next bytes; none where the messages end. :raises GRPCError: for a message that is none."""
        if size > LARGEST:
            raise GRPCError(Status.RESOURCE_EXHAUSTED, f"a message of {size} bytes: {LARGEST} are taken")
        try:
            data = await super().recv_data(size)
        except AssertionError as error:
            raise GRPCError(Status.DATA_LOSS, _CUT_OFF) from error
        if len(data) < size and self._in_body:
            raise GRPCError(Status.DATA_LOSS, _CUT_OFF)
        self._in_body = not self._in_body
        return data


class _Processors(dict[type, Callable[[Any], None]]):
    """What grpclib does at each kind of event; nothing at those that it does not know."""

    def __missing__(self, kind: type) -> Callable[[Any], None]:
        return _pass_over


def _pass_over(_: object) -> None:
    """RFC 9113 lets a peer send what nobody understands."""


def _whole_messages(connection: H2Connection, **options: Any) -> Stream:
    return WholeMessages(connection, connection._connection, connection._transport, **options)


class Connection(H2Protocol):
    """grpclib's protocol, whose writes are joined, and which bears what a peer may send."""

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(JoinedWrites(transport))
        made = functools.partial(_whole_messages, self.connection)
        self.connection.create_stream = made  # type: ignore[method-assign]
        known: Any = self.processor.processors
        self.processor.processors = cast(Any, _Processors(known))


class Calls:
    """The RPCs of one server: each runs in a scope of its own, so that it can be ended kindly."""

    def __init__(self, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self.unary: set[CancelScope] = set()
        self.streams: set[CancelScope] = set()
        self.connections: set[H2Protocol] = set()
        self.closing = False
        self._streamed = False
        self._progress = Latest(None)

    def guarded(self, handler: Handler) -> Handler:
        """The same method, counted, refused while closing, and ended by ``drain``."""
        streaming = handler.cardinality.server_streaming
        running = self.streams if streaming else self.unary

        async def call(stream: Any) -> None:
            if self.closing:
                raise GRPCError(Status.UNAVAILABLE, "the server is stopping")
            self._streamed |= streaming
            scope = CancelScope()
            running.add(scope)
            try:
                with scope:
                    await handler.func(stream)
            except Unreadable as error:
                raise GRPCError(Status.INVALID_ARGUMENT, str(error)) from error
            except NotImplementedError as error:
                if str(error) != NO_COMPRESSION:
                    raise
                raise GRPCError(Status.UNIMPLEMENTED, "compressed requests are not supported") from error
            except GRPCError as error:  # HPACK codes a long text for minutes, and no person reads it
                raise GRPCError(error.status, bounded(error.message or ""), error.details) from error
            finally:
                running.discard(scope)
                self.moved()
            if scope.cancelled_caught and not streaming:
                raise GRPCError(Status.UNAVAILABLE, "the server has stopped")

        return handler._replace(func=call)

    async def drain(self, grace: float) -> None:
        """Let unary RPCs end, then end all, then let the peers close their connections.

        The kubelet closes the connection when its ListAndWatch stream has ended, and has forgotten
        the old registration by then; a new one that comes earlier may be taken for the old
        (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, 1.36).
        """
        answering, timeouts = bool(self.unary), self.timeouts
        await self._until_empty(self.unary, grace)
        for scope in (*self.unary, *self.streams):
            scope.cancel()
        await self._until_empty(self.unary, timeouts.grpc_call_cancel)
        await self._until_empty(self.streams, timeouts.grpc_call_cancel)
        if self._streamed or answering:
            limit = timeouts.grpc_peer_close if self._streamed else timeouts.grpc_answer_read
            await self._until_empty(self.connections, limit)

    def moved(self) -> None:
        """Wake those who wait for something to end: nobody does before the end has begun."""
        if self.closing:
            self._progress.touch()

    async def _until_empty(self, waited: Collection[object], seconds: float) -> None:
        if not waited:
            return
        with anyio.move_on_after(seconds):
            while waited:
                await self._progress.newer(self._progress.version)
