# SPDX-License-Identifier: Apache-2.0
"""gRPC over unix sockets with grpclib: a server that stops cleanly, and calls to the kubelet.

grpclib 0.4.9 implements the protocol, and the generated messages encode and decode. This module adds:

- ``SocketServer.stop`` ends streams with trailers and connections with GOAWAY, and accepts no call on an old
  connection (grpclib issues 107, 131, 148). It takes bounded time also since Python 3.12, where
  ``asyncio.Server.wait_closed`` waits for the clients.
- ``call`` runs each call in its own task, because grpclib aborts a call by cancelling its task.
- Unknown methods are answered with UNIMPLEMENTED, since grpc-go cannot parse grpclib's own answer.

Each resource's endpoint has a server; each Register call and the PodResources client have a channel. The fake
kubelet in ``sim/`` uses this server and this channel too.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio
import anyio.lowlevel
from anyio import CancelScope
from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.encoding.proto import ProtoCodec
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol
from grpclib.server import Server

from nodeagent.base import hints, sockets
from nodeagent.base.errors import KubeletUnavailable, bounded
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts

T = TypeVar("T")

BACKLOG = 128  # connections that wait to be accepted
SMALL_WINDOWS = Configuration(http2_connection_window_size=65_535, http2_stream_window_size=65_535)
"""The default windows of HTTP/2; those of grpclib (4 MiB) need three more frames on each connection."""

RPC_ERRORS = (OSError, GRPCError, ProtocolError, StreamTerminatedError)
"""The errors that a failed grpclib call raises; TimeoutError, raised at the deadline, is an OSError."""


class Servable(Protocol):
    """A generated service: a map from method path to grpclib Handler."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Return the handlers by method path."""
        ...


class SocketServer:
    """A server for gRPC services on one unix socket; it can be started and stopped only once."""

    def __init__(
        self,
        directory: str | Path,
        name: str,
        services: Collection[Servable],
        timeouts: Timeouts,
        *,
        publish_as: str | None = None,
        on_streams: Callable[[], None] = lambda: None,
        passed: socket.socket | None = None,
    ) -> None:
        """A server for ``directory``/``name``.

        With ``publish_as`` the listening socket is renamed to that name at the end of ``start``, over an old
        one: the kubelet's plugin watcher ignores names with a dot in front, so a socket appears to it only
        when it can be used. ``on_streams`` is called when a server stream has begun or ended. ``passed``:
        a socket that already listens at the path.
        """
        self.name = publish_as or name
        self.streams = 0  # number of open server streams
        self.streamed = False  # a server stream has been opened since the start
        self._directory = Path(directory)
        self._bound_name = name
        self._services = services
        self._timeouts = timeouts
        self._on_streams = on_streams
        self._calls: dict[CancelScope, bool] = {}  # running RPCs → whether the RPC is a stream
        self._connections: set[H2Protocol] = set()
        self._stopping = False
        self._progress = Latest(None)  # touched when an RPC or a connection ends
        self._server: _Server | None = None
        self._file: sockets.SocketFile | None = None
        self._passed = passed

    @property
    def socket(self) -> socket.socket:
        """Return the listening socket of a started server."""
        assert self._file is not None
        return self._file.socket

    @property
    def path(self) -> Path:
        """Return the path at which clients find the socket."""
        return self._directory / self.name

    @property
    def present(self) -> bool:
        """Return True while the path refers to this socket; False after it was removed or replaced."""
        return self._file is not None and self._file.is_at(self.path)

    def bind(self) -> None:
        """Create the socket file without listening; ``start`` calls this unless it was called before.

        :raises KubeletUnavailable: if the directory does not exist or is not writable, or the name is in
            use.
        """
        try:
            if self._passed is None:
                self._file = sockets.SocketFile.bind(self._directory, self._bound_name)
            else:
                self._file = sockets.SocketFile.adopt(self._directory, self.name, self._passed)
        except OSError as error:
            raise self._unavailable(error) from error

    async def start(self) -> None:
        """Bind, listen and publish the socket.

        :raises KubeletUnavailable: as ``bind`` does.
        """
        if self._file is None:
            self.bind()
        assert self._file is not None
        server = _Server(self._services, self._guarded, self._connections, self._progress.touch)
        try:
            # asyncio loses a server whose start is cancelled: nothing would accept its connections
            with CancelScope(shield=True):
                await server.start(sock=self._file.socket, backlog=BACKLOG)
            self._file.rename(self.name)
        except BaseException as error:
            with CancelScope(shield=True):
                await server.close_listener()
            self._drop_file(keep=False)
            if isinstance(error, OSError):
                raise self._unavailable(error) from error
            raise
        self._server = server

    async def stop(self, grace: float, *, keep_file: bool = False) -> None:
        """Stop the server within ``grace`` + 4 s, even if the caller is cancelled.

        New connections and RPCs are refused immediately. Running unary RPCs get ``grace`` seconds. Then
        streams end with status OK, clients have a moment to close, and open connections get a GOAWAY. The
        socket file is removed if it still belongs to this server, unless ``keep_file``.
        """
        server, self._server = self._server, None
        with CancelScope(shield=True):
            self._stopping = True
            if server is not None:
                await server.close_listener()
            self._drop_file(keep_file)
            if server is not None:
                await self._drain(grace)
                await self._hang_up(server)

    def _guarded(self, handler: Handler) -> Handler:
        """Return a handler whose calls are counted, refused while the server stops, and ended with trailers
        by ``stop``.
        """
        is_stream = handler.cardinality.server_streaming

        async def serve(stream: Any) -> None:
            if self._stopping:
                raise GRPCError(Status.UNAVAILABLE, "the server is stopping")
            scope = CancelScope()
            self._calls[scope] = is_stream
            if is_stream:
                self._count_stream(1)
            try:
                with scope:
                    await handler.func(stream)
            finally:
                del self._calls[scope]
                if is_stream:
                    self._count_stream(-1)
                self._progress.touch()
            if scope.cancelled_caught and not is_stream:
                raise GRPCError(Status.UNAVAILABLE, "the server has stopped")

        return handler._replace(func=serve)

    def _count_stream(self, change: int) -> None:
        self.streams += change
        self.streamed = True
        self._on_streams()

    async def _drain(self, grace: float) -> None:
        """Wait for unary RPCs, then end all RPCs, then wait for the clients to close their connections.

        The kubelet closes the connection after its ListAndWatch stream has ended, when it has also removed
        the registration. The kubelet may mistake a registration before that time for the old one
        (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, 1.36).
        """
        timeouts, answering = self._timeouts, self._runs_unary()
        await self._until(lambda: not self._runs_unary(), grace)
        for scope in self._calls:
            scope.cancel()
        await self._until(lambda: not self._calls, timeouts.grpc_call_cancel)
        if self.streamed or answering:
            limit = timeouts.grpc_peer_close if self.streamed else timeouts.grpc_answer_read
            await self._until(lambda: not self._connections, limit)

    async def _hang_up(self, server: _Server) -> None:
        """Send GOAWAY to all clients, cancel the running RPCs, and wait for a limited time."""
        for connection in tuple(self._connections):
            if not connection.connection.is_closing():
                connection.connection._connection.close_connection()
                connection.connection.flush()
            connection.processor.close("the server has stopped")
        server.close()
        with anyio.move_on_after(self._timeouts.grpc_server_close):
            await server.wait_closed()

    def _runs_unary(self) -> bool:
        return not all(self._calls.values())

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        if not condition():
            with anyio.move_on_after(seconds):
                while not condition():
                    await self._progress.newer(self._progress.version)

    def _drop_file(self, keep: bool) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close() if keep else file.remove()

    def _unavailable(self, error: OSError) -> KubeletUnavailable:
        return KubeletUnavailable(
            f"cannot serve on {self.path}: {hints.strerror(error)}", hints.for_errno(error, "listen")
        )


class _Server(Server):
    """grpclib's server, extended with a set of its open connections.

    Private names of grpclib 0.4.9 in this module: ``_mapping``, ``_protocol_factory``, ``_server`` here,
    ``connection._connection`` in ``SocketServer``, ``_create_connection``, ``_path``, ``_loop`` and
    ``_authority`` in ``SocketChannel``. The tests of this module fail if grpclib changes these names.
    """

    # the default keeps up to ten dead connections: memory grew from 32 to 75 MiB in 22 restarts
    __gc_interval__ = 1

    def __init__(
        self,
        services: Collection[Servable],
        guarded: Callable[[Handler], Handler],
        connections: set[H2Protocol],
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(services, codec=ProtoCodec(), config=SMALL_WINDOWS)
        self._mapping = _Methods({path: guarded(handler) for path, handler in self._mapping.items()})
        self._connections = connections
        self._on_lost = on_lost

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _Connection(plain, self._connections, self._on_lost)

    async def close_listener(self) -> None:
        """Accept no new connections; existing connections stay open.

        The method first waits until a connection that was just accepted has started: otherwise the closed
        asyncio server leaves this connection open and loses track of it (``Server._attach`` in Python 3.11).
        """
        if not isinstance(self._server, asyncio.Server):
            return
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        for _ in range(2):  # asyncio creates the transport in one iteration, the protocol in the next
            await anyio.lowlevel.checkpoint()
        self._server.close()


class _Connection(H2Protocol):
    """One connection, registered with its server while it is open."""

    def __init__(self, plain: H2Protocol, connections: set[H2Protocol], on_lost: Callable[[], None]) -> None:
        super().__init__(plain.handler, plain.config, plain.h2_config)
        self._connections = connections
        self._on_lost = on_lost

    def connection_made(self, transport: Any) -> None:
        """Register the connection with its server."""
        super().connection_made(transport)
        self._connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from its server."""
        super().connection_lost(exc)
        self._connections.discard(self)
        self._on_lost()


class _Methods(dict[str, Handler]):
    """Handlers by method path.

    grpclib answers an unknown path without a content type, which grpc-go cannot read.
    """

    def get(self, path: str, default: Any = None) -> Handler:
        """Return the handler of the path, or one that answers UNIMPLEMENTED."""
        return super().get(path) or Handler(_refuse_method, Cardinality.UNARY_UNARY, None, None)


async def _refuse_method(stream: Any) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "unknown method")


class SocketChannel(Channel):
    """grpclib's channel to a unix socket: it connects at the first call, and again after a lost connection.

    The path may be longer than the 107 bytes of a socket address. The default ``authority`` is the one that
    the kubelet's own clients send.
    """

    def __init__(
        self, path: str | Path, *, authority: str = "localhost", codec: CodecBase | None = None
    ) -> None:
        super().__init__(path=str(path), codec=codec or ProtoCodec(), config=SMALL_WINDOWS)
        self._authority = authority
        self._closed = False

    def close(self) -> None:
        """Close the connection for good: grpclib would connect again for a call that begins afterwards."""
        self._closed = True
        super().close()

    async def _create_connection(self) -> H2Protocol:
        with sockets.shortened(str(self._path)) as address:
            _, protocol = await self._loop.create_unix_connection(self._protocol_factory, address)
        if self._closed:
            protocol.processor.close()
            raise ConnectionRefusedError(f"the channel to {self._path} is closed")
        return protocol


class KubeletAway(KubeletUnavailable):
    """Raised when no process listens on the kubelet's socket: the file is missing, or the kubelet is
    restarting.
    """


async def call(rpc: Coroutine[Any, Any, T]) -> T:
    """Return the response to a call of a generated stub.

    :raises KubeletAway: if no process listens.
    :raises KubeletUnavailable: for any other failure, with grpclib's error as its cause.
    """
    try:
        return await in_own_task(rpc)
    except Exception as error:
        away = isinstance(error, FileNotFoundError | ConnectionRefusedError)
        raise (KubeletAway if away else KubeletUnavailable)(_describe(error)) from error


async def in_own_task(rpc: Coroutine[Any, Any, T]) -> T:
    """Run a call in its own task, and return the response or raise its error.

    grpclib aborts a call (deadline, GOAWAY, lost connection) by cancelling the waiting task without
    ``Task.uncancel``; a cancel scope in that task could not tell this from its own cancellation.
    """
    task = asyncio.ensure_future(rpc)  # noqa: TID251 - it ends here: grpclib must cancel no other task
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            with CancelScope(shield=True):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieve the error even without a waiter, or asyncio reports it
    if task.cancelled():
        raise StreamTerminatedError("Connection lost")
    return task.result()


def _describe(error: Exception) -> str:
    """Return a text such as ``NOT_FOUND: text``, ``no answer in time``, or the system's error text."""
    if isinstance(error, GRPCError):
        return bounded(f"{error.status.name}: {error.message or 'no text'}")
    if isinstance(error, TimeoutError) and not error.strerror:
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or bounded(str(error)) or repr(error)
