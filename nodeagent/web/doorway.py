# SPDX-License-Identifier: Apache-2.0
"""The address at which HTTP is served: taken, given back when the settings change, tried again while busy.

Only what is needed to listen is loaded with the daemon; who speaks HTTP is loaded when the first connection
comes. A number of connections are kept: when there are more, the one that has been silent for longest makes
room, so that nobody can keep others out by holding connections open. A socket that systemd made is there for
clients whether it is served or not, so it is answered while the wanted address cannot be had. Does not know
what is answered.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial

import anyio
from anyio.abc import SocketListener, SocketStream

from nodeagent.base import advice, log, threads
from nodeagent.base.advice import Doing
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Settings
from nodeagent.model.shares import HttpShare
from nodeagent.model.status import HttpStatus, Status

MOST = 64  # connections at a time
_OTHER = "choose another address with http.listen"
_HINTS = {
    errno.EADDRINUSE: f"{_OTHER}, or see who listens there: ss -ltnp",
    errno.EADDRNOTAVAIL: "this node has no such address: give http.listen one that it has",
    errno.EACCES: f"ports below 1024 need CAP_NET_BIND_SERVICE, and SELinux may refuse others: {_OTHER}",
    errno.EAFNOSUPPORT: "the service may make no socket itself: give nodeagent-http.socket the same "
    "ListenStream= (systemctl status says how it is) and restart "
    "nodeagent (metrics.md has the drop-ins), or take http.listen back",
}

Converse = Callable[[SocketStream, "Place"], Awaitable[None]]
"""Speaks with one client until it has gone."""


class Place:
    """The place of one connection; it can be taken away while nothing is being answered on it."""

    def __init__(self, crowd: dict[Place, None]) -> None:
        self.scope = anyio.CancelScope()
        self._crowd = crowd
        self._silent()

    def _silent(self) -> None:
        self._crowd[self] = None

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Not to be taken away inside."""
        self._crowd.pop(self, None)
        try:
            yield
        finally:
            self._silent()


class Crowd:
    """The places of all connections; ``silent`` are those that may be taken, the oldest first."""

    def __init__(self) -> None:
        self.silent: dict[Place, None] = {}
        self._taken = 0

    def has_room(self) -> bool:
        """True if one more may come; where there is none, the one that is silent for longest is ended."""
        if self._taken < MOST:
            return True
        oldest = next(iter(self.silent), None)
        if oldest is None:
            return False
        del self.silent[oldest]
        oldest.scope.cancel()
        return True

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        """A place for as long as the block lasts."""
        self._taken += 1
        place = Place(self.silent)
        try:
            with place.scope:
                yield place
        finally:
            self.silent.pop(place, None)
            self._taken -= 1


class Doorway:
    """The component that listens; ``load`` gives whoever speaks with clients as these settings say.

    A socket at the wanted address that was ``passed`` to this process is used before one of its own.
    """

    name = "http"

    def __init__(
        self,
        settings: Latest[Settings],
        load: Callable[[Http], Awaitable[Converse]],
        timeouts: Timeouts,
        passed: Sequence[socket.socket] = (),
    ) -> None:
        self._settings = settings
        self._load = load
        self._timeouts = timeouts
        self._passed = [sock for sock in passed if _names(sock)]
        self._status = HttpStatus()

    def status(self) -> HttpShare:
        """Where it is served, or why not."""
        return HttpShare(self._status)

    async def run(self) -> None:
        """Serve as the settings say, and anew after others, for ever."""
        while True:
            seen, wanted = self._settings.version, self._settings.get().http
            async with anyio.create_task_group() as serving:
                if wanted.listen:
                    serving.start_soon(self._serve, wanted, name="http listener")
                while self._settings.get().http == wanted:
                    seen, _ = await self._settings.newer(seen)
                serving.cancel_scope.cancel()

    async def _serve(self, wanted: Http) -> None:
        try:
            sock = self._had(wanted.listen) or await self._awaited(wanted)
            self._status = HttpStatus(url(sock))
            log.event(log.HTTP_SERVED, address=url(sock))
            await self._accept(sock, wanted)
        finally:
            self._status = HttpStatus()

    def _had(self, address: str) -> socket.socket | None:
        """A socket that listens there; None if it cannot be had, which is said once."""
        try:
            return _of_these(self._passed, address) or listening(address)
        except OSError as error:
            what = f"the address {address} cannot be served: {advice.words(error)}"
            self._refused(what, hint(error))
            return None

    def _refused(self, what: str, hint: str) -> None:
        instead = next(map(url, self._passed), None)
        told = f"{what}; {instead} is answered instead" if instead else what
        if self._status.error != told:
            log.event(log.HTTP_REFUSED, error=told, hint=hint)
        self._status = HttpStatus(instead, told, hint)

    async def _awaited(self, wanted: Http) -> socket.socket:
        """A socket that listens, some time later; till then clients of those passed are answered."""
        async with anyio.create_task_group() as instead:
            for sock in self._passed:
                here = wanted._replace(listen=_names(sock)[0])  # on loopback fewer may ask
                instead.start_soon(self._accept, sock.dup(), here, name="http listener")
            found = await self._had_later(wanted.listen)
            instead.cancel_scope.cancel()
        return found

    async def _had_later(self, address: str) -> socket.socket:
        while True:
            await anyio.sleep(self._timeouts.http_address_retry)
            if (sock := self._had(address)) is not None:
                return sock

    async def _accept(self, sock: socket.socket, wanted: Http) -> None:
        async with await SocketListener.from_socket(sock) as listener:
            await self._receive(listener, wanted)

    async def _receive(self, listener: SocketListener, wanted: Http) -> None:
        crowd, loading = Crowd(), anyio.Lock()
        converse: Converse | None = None

        async def one(stream: SocketStream) -> None:
            nonlocal converse
            async with stream:
                with crowd.place() as place, contextlib.suppress(anyio.BrokenResourceError):
                    async with loading:
                        converse = converse or await self._load(wanted)
                    await converse(stream, place)

        async with anyio.create_task_group() as clients:
            while True:
                stream = await listener.accept()
                if crowd.has_room():
                    clients.start_soon(one, stream, name="http client")
                else:
                    await stream.aclose()


async def answering(
    status: Callable[[], Status], alive: Callable[[], str | None], timeouts: Timeouts, http: Http
) -> Converse:
    """Whoever speaks with clients; its code is loaded now. ``alive``: what stands still, None if nothing."""
    web = await threads.call(importlib.import_module, "nodeagent.web.answers")
    return partial(web.converse, web.Answers(status, alive, http, timeouts))


def hint(error: OSError) -> str:
    """What to do about it. A sandbox answers as if the kernel did not know such sockets."""
    return _HINTS.get(error.errno or 0) or advice.on(error, Doing.LISTEN) or _OTHER


def _of_these(passed: Sequence[socket.socket], address: str) -> socket.socket | None:
    """Another descriptor of the passed socket that listens there; None if there is none."""
    return next((sock.dup() for sock in passed if address in _names(sock)), None)


def _names(sock: socket.socket) -> tuple[str, ...]:
    """Its address as a setting would write it."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return ()
    host, port = sock.getsockname()[:2]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}",)


def listening(address: str) -> socket.socket:
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
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
