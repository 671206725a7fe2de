# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 for the daemon's listeners: one request per connection, then the connection is closed.

``serve`` accepts connections and passes each request to a handler (``http.routes``). A client that is slow,
sends too much or does not speak HTTP is refused with a status code where that is possible; it delays no
other client. When all connections are in use, the one that has waited longest for its request is closed: a
client cannot keep others out by holding connections open. On a unix socket, users other than root and the
daemon's own are disconnected at once.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import NamedTuple

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from nodeagent.base import log, sockets
from nodeagent.base.timeouts import Timeouts

CONNECTIONS = 64  # at a time, per listener
HEAD_BYTES = 8192  # of the request line and the headers
_CHUNK = 4096
_DRAIN_BYTES = 1 << 18  # read from a refused client, so that it can read the answer

# RFC 9112 section 3; a target is never decoded
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/(\d\.\d)")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_SINGLE = ("host", "content-length")  # two of them are two meanings
_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(r"\d{1,15}", re.ASCII)
_NO_REQUEST = "this is no request of HTTP/1.1"

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
    """Raised when a request is refused; ``status`` and ``text`` are the answer."""

    def __init__(self, status: int, text: str, headers: Headers = ()) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


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

        :raises TimeoutError: if the client is too slow.
        :raises BrokenResourceError: if the client has closed the connection.
        """
        request = None
        try:
            request = await self._read(stream, reading)
            if request is None:
                return
            response = await self._handled(request)
        except HttpError as error:
            response = text_response(error.status, error.text, error.headers)
        await self._send(stream, response, request)
        await self._drain(stream)

    async def _read(self, stream: SocketStream, reading: anyio.CancelScope) -> Request | None:
        try:
            with reading, anyio.fail_after(self._timeouts.http_request):
                return await read_request(stream, self._body_limit)
        finally:
            self._reading.pop(reading, None)
        return None

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

    async def _send(self, stream: SocketStream, response: Response, request: Request | None) -> None:
        """Send a response. :raises TimeoutError: if the client does not take it."""
        headers = [*response.headers, ("connection", "close")]
        body = response.body if isinstance(response.body, bytes) else b""
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(body))))
        status = HTTPStatus(response.status)
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{name}: {value}" for name, value in headers)]
        head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")
        head_only = request is not None and request.method == "HEAD"
        with anyio.fail_after(self._timeouts.http_send):
            await stream.send(head if head_only else head + body)
        if request is not None and not head_only and not isinstance(response.body, bytes):
            await self._send_parts(stream, response.body, request.path)

    async def _send_parts(self, stream: SocketStream, parts: AsyncGenerator[bytes, None], path: str) -> None:
        """Send part after part, until they end or fail, or the client closes the connection."""
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at_close, stream, group.cancel_scope, name="http client's end")
            try:
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        with anyio.fail_after(self._timeouts.http_send):
                            await stream.send(part)
            except (TimeoutError, anyio.BrokenResourceError):
                pass
            except Exception as error:  # noqa: BLE001 - the client asks again
                log_failure(path, error)
            group.cancel_scope.cancel()

    async def _drain(self, stream: SocketStream) -> None:
        """End the connection so that the client can read the answer: closing with unread data resets it."""
        await stream.send_eof()
        rest = _DRAIN_BYTES
        with anyio.move_on_after(self._timeouts.http_close), contextlib.suppress(anyio.EndOfStream):
            while rest > 0:
                rest -= len(await stream.receive(_CHUNK))


async def _cancel_at_close(stream: SocketStream, scope: anyio.CancelScope) -> None:
    with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        await stream.receive(_CHUNK)
    scope.cancel()


async def read_request(stream: SocketStream, body_limit: int) -> Request | None:
    """The request of a client; None if the client closed the connection before its end.

    :raises HttpError: if it is no request of HTTP/1.1, or too large.
    """
    try:
        return await _receive_request(stream, body_limit)
    except anyio.EndOfStream:
        return None


async def _receive_request(stream: SocketStream, body_limit: int) -> Request:
    data = b""
    while (end := data.find(_END_OF_HEAD)) < 0 and len(data) <= HEAD_BYTES:
        if data and not data[:1].isalpha():  # such as a client of TLS, which waits for an answer
            raise HttpError(HTTPStatus.BAD_REQUEST, _NO_REQUEST)
        data += await stream.receive(_CHUNK)
    if not 0 <= end <= HEAD_BYTES:
        text = f"the request line and the headers have more than {HEAD_BYTES} bytes"
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)
    method, target, headers = _parse_head(data[:end])
    length = _body_length(headers)
    if length > body_limit:
        text = f"the body of a request has at most {body_limit} bytes here, and its length comes first"
        raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
    body = data[end + len(_END_OF_HEAD) :]
    while len(body) < length:
        body += await stream.receive(_CHUNK)
    request = Request(method, target.partition("?")[0], headers.get("host", ""), body=body[: int(length)])
    if (sock := _unix_socket(stream)) is not None:
        return request._replace(pid=sockets.peer_pid(sock))
    return request._replace(client=str(stream.extra(SocketAttribute.remote_address)[0]))


def _unix_socket(stream: SocketStream) -> socket.socket | None:
    """The socket if it is a unix socket."""
    sock = stream.extra(SocketAttribute.raw_socket)
    return sock if sock.family == socket.AF_UNIX else None


def _is_trusted(stream: SocketStream) -> bool:
    """False for a client on a unix socket that is neither root nor this process's user."""
    sock = _unix_socket(stream)
    return sock is None or sockets.is_trusted(sock)


def _parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target and headers. :raises HttpError: if they are not those of HTTP/1.1."""
    first, *lines = head.split(b"\r\n")
    request_line = _REQUEST_LINE.fullmatch(first)
    if request_line is None:
        raise HttpError(HTTPStatus.BAD_REQUEST, _NO_REQUEST)
    method, target, version = (each.decode() for each in request_line.groups())
    if not version.startswith("1."):
        raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is spoken here")
    headers = _parse_headers(lines)
    if "host" not in headers and version != "1.0":
        raise HttpError(HTTPStatus.BAD_REQUEST, "the header Host is missing")
    return method, target, headers


def _parse_headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Name in lower case → value. :raises HttpError: if a line is no header."""
    headers: dict[str, str] = {}
    for line in lines:
        header = _HEADER.fullmatch(line)
        name = "" if header is None else header[1].decode().lower()
        if header is None or (name in _SINGLE and name in headers):
            raise HttpError(HTTPStatus.BAD_REQUEST, _NO_REQUEST)
        headers[name] = header[2].decode("latin-1")
    return headers


def _body_length(headers: Mapping[str, str]) -> float:
    """Bytes of the body; infinite if the client does not say. :raises HttpError: if it is no number."""
    if "transfer-encoding" in headers:
        return math.inf
    length = headers.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise HttpError(HTTPStatus.BAD_REQUEST, _NO_REQUEST)
    return float(length)


def log_failure(path: str, error: Exception) -> None:
    """Log that a path could not be answered."""
    log.event(log.HTTP_FAILED, error, path=path, error=f"{type(error).__name__}: {error}")
