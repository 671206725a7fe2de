# SPDX-License-Identifier: Apache-2.0
"""A gRPC server on a unix socket: the only place that knows how grpclib serves.

Cures what grpclib 0.4.9 leaves open: streams end with trailers, connections with GOAWAY (grpclib issues
107, 131, 148); nothing is served on an old connection after ``stop``; unknown methods are answered
with a content type; only root and our own user may talk; the socket file is ours alone; ``stop``
takes bounded time on every Python (since 3.12 ``wait_closed`` waits for the peers). Knows no device
and no kubelet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import anyio.lowlevel
from anyio import CancelScope
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from nodeagent.base import advice, sockets
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.grpc.connection import SMALL, Calls, Connection
from nodeagent.kubelet.grpc.wire import Codec

BACKLOG = 128


class Servable(Protocol):
    """What has gRPC methods: path → grpclib Handler, as the generated base classes make it."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """The methods."""
        ...


class SocketServer:
    """One unix socket with its gRPC methods; starts once and stops once."""

    def __init__(
        self,
        directory: str | Path,
        name: str,
        handlers: Collection[Servable],
        timeouts: Timeouts,
        *,
        publish_as: str | None = None,
    ) -> None:
        """A server for ``directory``/``name``.

        With ``publish_as`` the listening socket is renamed to that name at the end of ``start``,
        over an old one: the kubelet's plugin watcher ignores names with a dot in front, so a
        socket appears to it only when it can be used.
        """
        self._directory = Path(directory)
        self._bound_name = name
        self._name = publish_as or name
        self._calls = Calls(timeouts)
        self._handlers = handlers
        self._server: _Server | None = None
        self._file: sockets.SocketFile | None = None

    @property
    def path(self) -> Path:
        """Where clients find the socket."""
        return self._directory / self._name

    @property
    def present(self) -> bool:
        """True while the path leads to our own socket, False once it was removed or replaced."""
        return self._file is not None and self._file.is_at(self.path)

    def bind(self) -> None:
        """Make the socket file, without listening yet; ``start`` does it if nobody did.

        :raises KubeletUnavailable: if the directory is missing or refuses, or the name is taken.
        """
        try:
            self._file = sockets.SocketFile.bind(self._directory, self._bound_name)
        except OSError as error:
            raise self._unavailable(error) from error

    async def start(self) -> None:
        """Bind, listen, publish.

        :raises KubeletUnavailable: as ``bind`` does.
        """
        if self._file is None:
            self.bind()
        assert self._file is not None
        server = _Server(self._calls, self._handlers)
        try:
            with CancelScope(shield=True):  # a cancelled start loses the server, and its reader stays
                await server.start(sock=self._file.socket, backlog=BACKLOG)
            self._file.rename(self._name)
        except BaseException as error:
            server.close_listener()
            self._drop_file(keep=False)
            if isinstance(error, OSError):
                raise self._unavailable(error) from error
            raise
        self._server = server

    async def stop(self, grace: float, *, keep_file: bool = False) -> None:
        """End everything in bounded time (``grace`` + 4 s at worst), also if the caller is cancelled.

        No new connection and no new RPC from now on. Running unary RPCs get ``grace`` seconds; then
        streams end with status OK, the peers have a moment to close, and what is still open gets a
        GOAWAY. The socket file is removed if it is still ours, unless ``keep_file``.
        """
        server, self._server = self._server, None
        with CancelScope(shield=True):
            self._calls.closing = True
            if server is not None:
                server.stop_accepting()
                await anyio.lowlevel.checkpoint()
                server.close_listener()
            self._drop_file(keep_file)
            if server is not None:
                await self._calls.drain(grace)
                await server.hang_up()

    def _drop_file(self, keep: bool) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close() if keep else file.remove()

    def _unavailable(self, error: OSError) -> KubeletUnavailable:
        return KubeletUnavailable(
            f"cannot serve on {self.path}: {advice.words(error)}", advice.on(error, Doing.LISTEN)
        )


class _Routes(dict[str, Handler]):
    """Methods by path; grpclib itself answers an unknown one in a way that grpc-go misreads."""

    def get(self, path: str, default: Any = None) -> Handler:
        """The handler of the path, or one that refuses."""
        return super().get(path) or Handler(_unknown_method, Cardinality.UNARY_UNARY, None, None)


class _Server(Server):
    """grpclib's Server, with its connections remembered and closed.

    Private names of grpclib 0.4.9 in use: ``_mapping``, ``_protocol_factory`` and ``_server`` here,
    ``connection._connection`` in ``_goodbye``. The tests of this module fail if they change.
    """

    __gc_interval__ = 1  # the default keeps up to ten dead connections, each full of cycles

    def __init__(self, calls: Calls, handlers: Collection[Servable]) -> None:
        super().__init__(handlers, codec=Codec(), config=SMALL)
        self._calls = calls
        self._mapping = _Routes({path: calls.guarded(handler) for path, handler in self._mapping.items()})

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return _Served(self._calls, plain)

    def stop_accepting(self) -> None:
        """Accept no more; what was accepted a moment ago becomes a connection in the next turn.

        Closing at once would lose it without a word: asyncio then leaves its socket open (CPython issue
        109564), and the peer waits for an answer.
        """
        loop = asyncio.get_running_loop()
        if isinstance(self._server, asyncio.Server):
            for listening in self._server.sockets:
                loop.remove_reader(listening.fileno())

    def close_listener(self) -> None:
        """Take no new connections; those that exist stay."""
        if self._server is not None:
            self._server.close()

    async def hang_up(self) -> None:
        """GOAWAY to all peers, cancel what still runs, and wait, but not long."""
        for connection in tuple(self._calls.connections):
            _goodbye(connection)
        self.close()
        with anyio.move_on_after(self._calls.timeouts.grpc_server_close):
            await self.wait_closed()


class _Served(Connection):
    """One connection, known to its server as long as it is open."""

    def __init__(self, calls: Calls, plain: H2Protocol) -> None:
        super().__init__(plain.handler, plain.config, plain.h2_config)
        self._calls = calls

    def connection_made(self, transport: Any) -> None:
        """Accept root and our own user; everybody else is hung up on."""
        super().connection_made(transport)
        if not sockets.is_trusted(transport.get_extra_info("socket")):
            self.processor.close("only root may talk to this socket")
        elif self._calls.closing:
            _goodbye(self)
        else:
            self._calls.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._calls.connections.discard(self)
        self._calls.moved()


def _goodbye(protocol: H2Protocol) -> None:
    """GOAWAY, then close; handlers of this connection are cancelled."""
    if not protocol.connection.is_closing():
        protocol.connection._connection.close_connection()
        protocol.connection.flush()
    protocol.processor.close("the server has stopped")


async def _unknown_method(stream: Stream[Any, Any]) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "unknown method")
