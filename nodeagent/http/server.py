# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 for the daemon's listeners: one request per connection, then the connection is closed.

A ``Server`` passes each request to a handler (``http.routes``). A client that is slow, sends too much or does
not speak HTTP is refused with a status code where that is possible; it delays no other client. When all
connections are in use, the one that has waited longest for its request is closed: a client cannot keep others
out by holding connections open. On a unix socket, users other than root and the daemon's own are disconnected
at once. ``http.connection`` speaks the protocol.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import NamedTuple

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from nodeagent.base import log, sockets
from nodeagent.base.timeouts import Timeouts

CONNECTIONS = 64  # at a time, per listener

Headers = Sequence[tuple[str, str]]


class Request(NamedTuple):
    """``path`` has no query; ``host`` is the header; ``client`` is the IP address of a client by TCP.

    ``pid`` is the process of a client on a unix socket, 0 if it is not in this pid namespace.
    """

    method: str
    path: str
    host: str
    client: str = ""
    pid: int = 0
    body: bytes = b""


class Response(NamedTuple):
    """A ``body`` of several parts is sent part by part, until the client closes the connection."""

    status: int
    headers: Headers
    body: bytes | AsyncGenerator[bytes, None]


Handler = Callable[[Request], Awaitable[Response]]


class HttpError(Exception):
    """Raised when a request is refused; carries the response."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.response = text_response(status, text, headers)


def text_response(status: int, text: str, headers: Headers = ()) -> Response:
    """A line of text for people."""
    return Response(status, (("content-type", "text/plain; charset=utf-8"), *headers), f"{text}\n".encode())


class Server:
    """Answers the clients of one listener with one handler. ``body_limit``: bytes of a request's body."""

    def __init__(self, handle: Handler, timeouts: Timeouts, body_limit: int = 0) -> None:
        self._handle = handle
        self._timeouts = timeouts
        self._body_limit = body_limit
        self._open = 0
        self._reading: dict[anyio.CancelScope, None] = {}  # connections without a full request, oldest first

    async def serve(self, listener: SocketListener) -> None:
        """Accept and answer clients until cancelled."""
        async with anyio.create_task_group() as clients:
            while True:
                stream = await listener.accept()
                if _is_trusted(stream) and self._has_room():
                    self._open += 1
                    reading = anyio.CancelScope()
                    self._reading[reading] = None
                    clients.start_soon(self._serve_client, stream, reading, name="http client")
                else:
                    await stream.aclose()

    def _has_room(self) -> bool:
        """True if one more client can be served; the one that has waited longest may make room."""
        if self._open < CONNECTIONS:
            return True
        oldest = next(iter(self._reading), None)
        if oldest is None:
            return False
        del self._reading[oldest]
        oldest.cancel()
        return True

    async def _serve_client(self, stream: SocketStream, reading: anyio.CancelScope) -> None:
        try:
            async with stream:
                with contextlib.suppress(TimeoutError, anyio.BrokenResourceError):
                    await self._answer(stream, reading)
        finally:
            self._open -= 1

    async def _answer(self, stream: SocketStream, reading: anyio.CancelScope) -> None:
        """Read one request and answer it.

        :raises TimeoutError: if the client is too slow, or leaves before the end of the response.
        :raises BrokenResourceError: if the client has closed the connection.
        """
        from nodeagent.http.connection import Connection  # here: 5 ms and 0.3 MiB, with the first client

        connection = Connection(stream, self._timeouts)
        request = None
        try:
            try:
                with reading, anyio.fail_after(self._timeouts.http_request):
                    request = await connection.read_request(self._body_limit)
            finally:
                self._reading.pop(reading, None)
            if request is None:
                return
            response = await self._handled(request)
        except HttpError as error:
            response = error.response
        await connection.send_response(response, request.path if request else "")
        await connection.drain()

    async def _handled(self, request: Request) -> Response:
        """The handler's response. A request that fails leaves the others alone."""
        try:
            return await self._handle(request)
        except HttpError:
            raise
        except Exception as error:
            log_failure(request.path, error)
            raise HttpError(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this cannot be answered; the log says why"
            ) from error


def _is_trusted(stream: SocketStream) -> bool:
    """False for a client on a unix socket that is neither root nor this process's user."""
    sock = stream.extra(SocketAttribute.raw_socket)
    return sock.family != socket.AF_UNIX or sockets.is_trusted(sock)


def log_failure(path: str, error: Exception) -> None:
    """Log that a path could not be answered."""
    log.event(log.HTTP_FAILED, error, path=path, error=f"{type(error).__name__}: {error}")
