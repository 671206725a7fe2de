# SPDX-License-Identifier: Apache-2.0
"""Listens for HTTP on the daemon's unix socket and on the TCP address of the settings.

Each connection carries one request and is closed after the response (``http.connection``); a handler
(``http.routes``) makes the response. A client that is slow, sends too much or does not speak HTTP is refused.
While all connections are in use, further clients wait in the queue of the socket.

The unix socket serves root and the daemon's own user. If another process listens on the unix socket, the
daemon does not replace the socket; when it exits, it removes only its own socket file. The TCP address
follows the settings; if it is in use, opening it is retried. systemd accepts clients on a socket that it
created even if the daemon does not serve it. Therefore the daemon serves the socket of systemd while it
cannot open the address in the settings.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from nodeagent.base import hints, log, sockets
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Settings
from nodeagent.model.problem import ProblemCode, note
from nodeagent.model.status import HttpStatus

CONNECTIONS = 64  # open connections per listener
_REQUEST_BYTES = 1 << 18  # of a manual request, on the unix socket
_OTHER = "choose another address with http.listen"
_HINTS = {
    errno.EADDRINUSE: f"{_OTHER}, or find the process that listens there: ss -ltnp",
    errno.EADDRNOTAVAIL: "this node has no such address: set http.listen to one of its addresses",
    errno.EACCES: f"ports below 1024 need CAP_NET_BIND_SERVICE, and SELinux may refuse others: {_OTHER}",
    errno.EAFNOSUPPORT: "the sandbox of the service permits no socket: set ListenStream= of "
    "nodeagent-http.socket to the same address (see systemctl status) and restart nodeagent "
    "(metrics.md has the drop-ins), or remove http.listen",
}

Headers = Sequence[tuple[str, str]]


class Request(NamedTuple):
    """A request: ``path`` without the query, ``host`` the header, ``client`` the IP address of a TCP client.

    ``pid``: the process of a client on the unix socket; 0 if it is in another pid namespace.
    """

    method: str
    path: str
    host: str
    client: str = ""
    pid: int = 0
    body: bytes = b""


class Response(NamedTuple):
    """A response. A ``body`` of several parts is sent part by part, until the client disconnects."""

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
    """A response with one line of text."""
    return Response(status, (("content-type", "text/plain; charset=utf-8"), *headers), f"{text}\n".encode())


async def serve_socket(sock: socket.socket, handle: Handler, timeouts: Timeouts, body_limit: int = 0) -> None:
    """Accept and answer clients of a listening socket until cancelled. ``body_limit``: bytes.

    When all connections are in use, the one that has waited longest for its request is closed: silent clients
    must not make the kubelet's probe of the daemon fail.
    """
    free = anyio.Semaphore(CONNECTIONS)
    reading: dict[anyio.CancelScope, None] = {}  # connections whose request is not complete, the oldest first

    async def answer(stream: SocketStream) -> None:
        from nodeagent.http.connection import Connection  # here: 5 ms and 0.3 MiB, with the first client

        try:
            async with stream:
                if _is_trusted(stream):
                    with contextlib.suppress(TimeoutError, anyio.BrokenResourceError):
                        connection = Connection(stream, timeouts.http_request, reading)
                        await connection.answer(handle, body_limit)
        finally:
            free.release()

    async with await SocketListener.from_socket(sock) as listener, anyio.create_task_group() as clients:
        while True:
            stream = await listener.accept()
            if free.value == 0 and (oldest := next(iter(reading), None)) is not None:
                del reading[oldest]
                oldest.cancel()
            await free.acquire()
            clients.start_soon(answer, stream, name="http client")


def _is_trusted(stream: SocketStream) -> bool:
    """False for a client on the unix socket that is neither root nor this process's user."""
    sock = stream.extra(SocketAttribute.raw_socket)
    return sock.family != socket.AF_UNIX or sockets.is_trusted(sock)


async def serve_unix(path: str, handle: Handler, timeouts: Timeouts) -> None:
    """Serve on a unix socket until cancelled.

    :raises KernelRefused: if the socket cannot be created.
    """
    try:
        file = _listen_unix(Path(path))
    except OSError as error:
        what = f"the socket {path} cannot be served: {hints.strerror(error)}"
        hint = hints.for_errno(error, "listen", "or choose another path with --status-socket")
        raise KernelRefused(what, hint, errno=error.errno or 0, path=path) from error
    try:
        await serve_socket(file.socket, handle, timeouts, _REQUEST_BYTES)
    finally:
        file.remove()


def _listen_unix(path: Path) -> sockets.SocketFile:
    """Return a socket that listens at the path.

    :raises OSError: if it cannot be created; EADDRINUSE if a process listens there, or the path is another
    file.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.is_socket() and not sockets.is_served(path):
        path.unlink()  # the socket of a daemon that was killed
    file = sockets.SocketFile.bind(path.parent, path.name)
    try:
        file.socket.listen()
    except OSError:
        file.remove()
        raise
    return file


class NetworkListener:
    """The component that serves ``http.listen``; ``handler`` returns the handler for given settings.

    If systemd has ``passed`` a socket with that address to this process, no new socket is opened.
    """

    name = "http"

    def __init__(
        self,
        settings: Latest[Settings],
        handler: Callable[[Http], Handler],
        timeouts: Timeouts,
        passed: Sequence[socket.socket] = (),
    ) -> None:
        self._settings = settings
        self._handler = handler
        self._timeouts = timeouts
        self._passed = {_address(sock): sock for sock in reversed(passed) if _address(sock)}
        self.status = HttpStatus()  # the served address, or why there is none

    async def run(self) -> None:
        """Serve the address of the settings until cancelled."""
        while True:
            version, http = self._settings.version, self._settings.get().http
            self.status = HttpStatus()
            async with anyio.create_task_group() as serving:
                if http.listen:
                    serving.start_soon(self._serve, http, name="http listener")
                while self._settings.get().http == http:
                    version, _ = await self._settings.newer(version)
                serving.cancel_scope.cancel()

    async def _serve(self, http: Http) -> None:
        """Serve the address; until it can be opened, serve the sockets of systemd."""
        if (sock := self._open(http.listen)) is None:
            sock = await self._serve_passed_until_opened(http)
        self.status = HttpStatus(url(sock))
        log.event(log.HTTP_SERVED, address=url(sock))
        await serve_socket(sock, self._handler(http), self._timeouts)

    async def _serve_passed_until_opened(self, http: Http) -> socket.socket:
        async with anyio.create_task_group() as instead:
            for address, passed in self._passed.items():
                there = http._replace(listen=address)  # a loopback address has stricter checks of clients
                instead.start_soon(serve_socket, passed.dup(), self._handler(there), self._timeouts)
            sock = await self._open_later(http.listen)
            instead.cancel_scope.cancel()
        return sock

    async def _open_later(self, address: str) -> socket.socket:
        while True:
            await anyio.sleep(self._timeouts.http_address_retry)
            if (sock := self._open(address)) is not None:
                return sock

    def _open(self, address: str) -> socket.socket | None:
        """Return a socket that listens at the address; None if it cannot be opened, which is logged once."""
        try:
            return self._passed[address].dup() if address in self._passed else listen(address)
        except OSError as error:
            text = f"the address {address} cannot be served: {hints.strerror(error)}"
            instead = next(map(url, self._passed.values()), None)
            if instead:
                text = f"{text}; {instead} is served instead"
            problem = note(ProblemCode.HTTP, text, hint(error))
            if self.status.problem != problem:
                log.event(log.HTTP_REFUSED, error=text, hint=problem.hint)
            self.status = HttpStatus(instead, problem)
            return None


def hint(error: OSError) -> str:
    """The fix for an address that cannot be opened.

    If systemd's sandbox forbids the socket, the kernel reports EAFNOSUPPORT, as if it lacked the address
    family.
    """
    return _HINTS.get(error.errno or 0) or hints.for_errno(error, "listen") or _OTHER


def _address(sock: socket.socket) -> str:
    """The socket's address in the form of the setting; "" if it is no TCP socket."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """Return a socket that listens at ``host:port``. :raises OSError: if the address cannot be opened."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] accepts IPv4, too
        sock.bind((host.strip("[]"), int(port)))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def url(sock: socket.socket) -> str:
    """The URL of the socket for a client on this host."""
    return f"http://{_address(sock)}/"
