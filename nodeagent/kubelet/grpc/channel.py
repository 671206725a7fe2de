# SPDX-License-Identifier: Apache-2.0
"""The client's end of gRPC on a unix socket: a channel to a path of any length, closed properly.

All that can go wrong comes out as KubeletUnavailable: whoever calls the kubelet tries again, whatever
the cause. Knows no service: the stubs of ``kubelet.api`` take the channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio.lowlevel
from anyio import CancelScope
from grpclib.client import Channel
from grpclib.client import Stream as GrpclibStream
from grpclib.config import Configuration
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError
from grpclib.protocol import H2Protocol

from nodeagent.base import sockets
from nodeagent.base.errors import KubeletUnavailable, bounded
from nodeagent.kubelet.grpc.connection import SMALL, Connection
from nodeagent.kubelet.grpc.wire import Codec, Unreadable

FOREIGN_ERRORS = (OSError, GRPCError, ProtocolError, StreamTerminatedError, Unreadable)  # of a call


class KubeletAway(KubeletUnavailable):
    """Raised when nobody listens at the kubelet's socket: it is not there, or is being restarted."""


@contextlib.contextmanager
def _understood() -> Iterator[None]:
    """Headers are taken apart. grpclib 0.4.9 lets out what it meets where they lack a status or base64.

    :raises ProtocolError: for such headers.
    """
    try:
        yield
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"headers that are not understood: {error}") from error


class _Stream(GrpclibStream[Any, Any]):
    """A call that leaves no trace in its task.

    grpclib ends a waiting call (deadline, GOAWAY, lost connection) by cancelling the task and then raises
    its own error, without ``Task.uncancel``; cancel scopes around it would then take their own
    cancellation for somebody else's and let it escape.
    """

    async def __aenter__(self) -> _Stream:
        """Begin. grpclib gives a call up twice where a GOAWAY is followed by the loss of the connection."""
        await super().__aenter__()
        wrapper, give_up = self._wrapper, self._wrapper.cancel

        def once(error: Exception) -> None:
            if not wrapper.cancelled:
                give_up(error)

        wrapper.cancel = once  # type: ignore[method-assign]
        return self

    async def send_request(self, *, end: bool = False) -> None:
        """Begin the call.

        :raises StreamTerminatedError: for a connection that is gone, and what else grpclib raises.

        grpclib 0.4.9 takes a lost connection apart, and fails with an AttributeError where it was lost
        between the connect and the first request.
        """
        try:
            await super().send_request(end=end)
        except AttributeError as error:
            raise StreamTerminatedError("Connection lost") from error

    async def recv_message(self) -> Any:
        """The next message; None where they end, which an answer of one message must not do."""
        message = await super().recv_message()
        if message is None and not self._cardinality.server_streaming:
            raise StreamTerminatedError("an answer without a message")  # unless the trailers say more
        return message

    async def __aexit__(self, *raised: Any) -> None:
        """End the call; what grpclib raises comes out."""
        try:
            await super().__aexit__(*raised)
        finally:
            task = asyncio.current_task()
            if self._wrapper.cancel_failed is False and task is not None:
                task.uncancel()

    async def recv_initial_metadata(self) -> None:
        """Wait for the first headers. :raises ProtocolError: for such as gRPC does not have, and more."""
        with _understood():
            await super().recv_initial_metadata()

    async def recv_trailing_metadata(self) -> None:
        """Wait for the last headers. Raises as the first do."""
        with _understood():
            await super().recv_trailing_metadata()


class SocketChannel(Channel):
    """grpclib's Channel to a unix socket; ``authority`` is what the kubelet's own client says.

    Once it is closed it stays so: a call would connect grpclib's own one anew, and nobody would close it.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        authority: str = "localhost",
        codec: Codec | None = None,
        config: Configuration | None = None,
    ) -> None:
        super().__init__(path=str(path), codec=codec or Codec(), config=config)
        self._authority = authority
        self._over = False

    def close(self) -> None:
        """End it, with all calls."""
        self._over = True
        super().close()

    def request(self, name: str, *types: Any, **options: Any) -> _Stream:
        """A call: cardinality, request type and reply type; options timeout, deadline, metadata."""
        plain = super().request(name, *types, **options)
        return _Stream(
            self,
            name,
            plain._metadata,
            *types,
            codec=self._codec,
            status_details_codec=None,
            dispatch=self.__dispatch__,
            deadline=plain._deadline,
        )

    def _protocol_factory(self) -> H2Protocol:
        plain = super()._protocol_factory()
        return Connection(plain.handler, plain.config, plain.h2_config)

    async def _create_connection(self) -> H2Protocol:
        self._check_open()
        with sockets.shortened(str(self._path)) as address:
            _, protocol = await self._loop.create_unix_connection(self._protocol_factory, address)
        try:
            self._check_open()
        except ConnectionAbortedError:
            protocol.processor.close()
            raise
        return protocol

    def _check_open(self) -> None:
        if self._over:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the channel was closed")


@contextlib.contextmanager
def as_unavailable() -> Iterator[None]:
    """Connecting, and calls.

    :raises KubeletUnavailable: with the foreign error as its cause, for all that can go wrong on
        the way and for all gRPC errors, timeouts and unreadable answers.
    :raises KubeletAway: if nobody listens.
    """
    try:
        yield
    except FOREIGN_ERRORS as error:
        away = isinstance(error, FileNotFoundError | ConnectionRefusedError)
        raise (KubeletAway if away else KubeletUnavailable)(describe(error)) from error


@contextlib.asynccontextmanager
async def open_channel(path: str | Path) -> AsyncIterator[SocketChannel]:
    """A connected channel, closed at the end. Raises as ``as_unavailable`` does, in the calls as well."""
    channel = SocketChannel(path, config=SMALL)
    try:
        with as_unavailable():
            await channel.__connect__()
            yield channel
    finally:
        await closed(channel)


async def closed(channel: SocketChannel) -> None:
    """Close it, and its socket: asyncio does that in the next turn."""
    channel.close()
    with CancelScope(shield=True):
        await anyio.lowlevel.checkpoint()


def describe(error: BaseException) -> str:
    """Words for a failed call: ``NOT_FOUND: text``, ``no answer in time``, or the system's text."""
    if isinstance(error, GRPCError):
        return bounded(f"{error.status.name}: {error.message or 'no text'}")
    if isinstance(error, TimeoutError) and not error.strerror:
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
