# SPDX-License-Identifier: Apache-2.0
"""Where HTTP is served: the daemon's unix socket, and the TCP address of the settings.

The unix socket is never taken over from a process that listens on it, and only our own file is removed. The
TCP address is changed with the settings and retried while it is in use.

A socket that systemd made accepts clients whether the daemon serves it or not. So it is served while the
address of the settings cannot be opened.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
from anyio.abc import SocketListener

from nodeagent.base import hints, log, sockets
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Settings
from nodeagent.http.server import Handler, Server
from nodeagent.model.status import HttpStatus

_REQUEST_BYTES = 1 << 18  # of a request by hand, on the unix socket
_OTHER = "choose another address with http.listen"
_HINTS = {
    errno.EADDRINUSE: f"{_OTHER}, or see who listens there: ss -ltnp",
    errno.EADDRNOTAVAIL: "this node has no such address: give http.listen one that it has",
    errno.EACCES: f"ports below 1024 need CAP_NET_BIND_SERVICE, and SELinux may refuse others: {_OTHER}",
    errno.EAFNOSUPPORT: "the service may make no socket itself: give nodeagent-http.socket the same "
    "ListenStream= (systemctl status says how it is) and restart "
    "nodeagent (metrics.md has the drop-ins), or take http.listen back",
}


async def serve_unix(path: str, handle: Handler, timeouts: Timeouts) -> None:
    """Serve at a unix socket until cancelled.

    :raises KernelRefused: if the socket cannot be made.
    """
    try:
        file = _listen_unix(Path(path))
    except OSError as error:
        what = f"the socket {path} cannot be served: {hints.strerror(error)}"
        hint = hints.for_errno(error, "listen", "or choose another place with --status-socket")
        raise KernelRefused(what, hint, errno=error.errno or 0, path=path) from error
    try:
        async with await SocketListener.from_socket(file.socket) as listener:
            await Server(handle, timeouts, _REQUEST_BYTES).serve(listener)
    finally:
        file.remove()


def _listen_unix(path: Path) -> sockets.SocketFile:
    """A socket that listens at the path.

    :raises OSError: if it cannot be made; EADDRINUSE if a process listens there, or it is another file.
    """
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    if path.is_socket() and not sockets.is_served(path):
        path.unlink()  # of a daemon that was killed
    file = sockets.SocketFile.bind(path.parent, path.name)
    try:
        file.socket.listen()
    except OSError:
        file.remove()
        raise
    return file


class NetworkListener:
    """The component that serves ``http.listen``; ``handler`` returns the handler for these settings.

    A socket with that address that was ``passed`` to this process is used before one of its own.
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
        self._passed = [sock for sock in passed if _address(sock)]
        self.status = HttpStatus()  # with the address that is served, or why none is

    async def run(self) -> None:
        """Serve the address of the settings until cancelled."""
        while True:
            version, wanted = self._settings.version, self._settings.get().http
            async with anyio.create_task_group() as serving:
                if wanted.listen:
                    serving.start_soon(self._serve, wanted, name="http listener")
                while self._settings.get().http == wanted:
                    version, _ = await self._settings.newer(version)
                serving.cancel_scope.cancel()

    async def _serve(self, wanted: Http) -> None:
        try:
            sock = self._open(wanted.listen) or await self._retry(wanted)
            self.status = HttpStatus(url(sock))
            log.event(log.HTTP_SERVED, address=url(sock))
            await self._accept(sock, wanted)
        finally:
            self.status = HttpStatus()

    def _open(self, address: str) -> socket.socket | None:
        """A socket that listens there; None if there is none, which is logged once."""
        try:
            return self._passed_socket(address) or listen(address)
        except OSError as error:
            what = f"the address {address} cannot be served: {hints.strerror(error)}"
            self._report(what, hint(error))
            return None

    def _passed_socket(self, address: str) -> socket.socket | None:
        return next((sock.dup() for sock in self._passed if _address(sock) == address), None)

    def _report(self, what: str, hint: str) -> None:
        instead = next(map(url, self._passed), None)
        error = f"{what}; {instead} is answered instead" if instead else what
        if self.status.error != error:
            log.event(log.HTTP_REFUSED, error=error, hint=hint)
        self.status = HttpStatus(instead, error, hint)

    async def _retry(self, wanted: Http) -> socket.socket:
        """A socket that listens, some time later; until then the sockets of systemd are served."""
        async with anyio.create_task_group() as instead:
            for sock in self._passed:
                http = wanted._replace(listen=_address(sock))  # on loopback fewer clients may ask
                instead.start_soon(self._accept, sock.dup(), http, name="http listener")
            opened = await self._open_later(wanted.listen)
            instead.cancel_scope.cancel()
        return opened

    async def _open_later(self, address: str) -> socket.socket:
        while True:
            await anyio.sleep(self._timeouts.http_address_retry)
            if (opened := self._open(address)) is not None:
                return opened

    async def _accept(self, sock: socket.socket, http: Http) -> None:
        async with await SocketListener.from_socket(sock) as listener:
            await Server(self._handler(http), self._timeouts).serve(listener)


def hint(error: OSError) -> str:
    """What to do about it. A sandbox answers as if the kernel did not know such sockets."""
    return _HINTS.get(error.errno or 0) or hints.for_errno(error, "listen") or _OTHER


def _address(sock: socket.socket) -> str:
    """Its address in the form of the setting; "" if it is none of TCP."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """A socket that listens at ``host:port``. :raises OSError: if the address cannot be had."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # [::] takes IPv4 as well
        sock.bind((host.strip("[]"), int(port)))
        sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def url(sock: socket.socket) -> str:
    """Where a client on this host finds the socket."""
    return f"http://{_address(sock)}/"
