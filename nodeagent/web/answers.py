# SPDX-License-Identifier: Apache-2.0
"""What is answered to whom: the paths, and the rules that keep strangers out. All of it renders a Status.

A page in a browser may be of anybody, and its name may be made to lead here (DNS rebinding): so ``Host`` must
be an address, this host's name or localhost. Only where everybody may ask anyway do metrics and health take
any name. Values are taken on the event loop and written out in a thread.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from http import HTTPStatus

from anyio.abc import SocketStream

from nodeagent.base import log, threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http
from nodeagent.model.status import Status
from nodeagent.render import health, metrics, page
from nodeagent.render.health import Health
from nodeagent.web.connection import Conversation, Request, Response, plain
from nodeagent.web.doorway import Place
from nodeagent.web.live import Live

Alive = Callable[[], str | None]
"""What stands still in this process; None if nothing does."""

ALLOWED = ("GET", "HEAD")
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?", re.ASCII)
EVENTS = "/events"
NO_STORE = ("cache-control", "no-store")

PRIVATE = (
    NO_STORE,
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
)
"""Of what no other page may read, frame or guess at."""


class Answers:
    """All paths of one daemon, as long as ``http`` is in force."""

    def __init__(self, status: Callable[[], Status], alive: Alive, http: Http, timeouts: Timeouts) -> None:
        self.timeouts = timeouts
        self._status = status
        self._alive = alive
        self._http = http
        self._live = Live(status, timeouts)
        self._paths: dict[str, Callable[[], Awaitable[Response]]] = {
            "/": self._index,
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
            EVENTS: self._events,
        }

    async def answer(self, request: Request) -> Response:
        """The answer to any request."""
        if request.method not in ALLOWED:
            text = f"{request.method} is not answered here"
            return plain(HTTPStatus.METHOD_NOT_ALLOWED, text, [("allow", ", ".join(ALLOWED))])
        path = self._paths.get(request.path)
        if path is None:
            return plain(HTTPStatus.NOT_FOUND, f"nothing is here; there are {', '.join(self._paths)}")
        if (refused := self._refused(request)) is not None:
            return refused
        try:
            return await path()
        except Exception as error:  # noqa: BLE001 - one path that fails leaves the others alone
            _complain(request.path, error)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "this cannot be told; the log says why")

    def _refused(self, request: Request) -> Response | None:
        """Why this client may not have that; None if it may."""
        private = request.path == EVENTS or (request.path == "/" and self._http.page != "false")
        local = is_loopback(self._http.listen.rpartition(":")[0])
        if (private or local) and not known_name(request.host):
            text = "ask by an IP address, by localhost or by the name of this host"
            return plain(HTTPStatus.MISDIRECTED_REQUEST, text)
        if private and self._http.page != "everywhere" and not is_loopback(request.peer):
            return plain(HTTPStatus.FORBIDDEN, "the page is for clients on this node; see http.page")
        return None

    async def _index(self) -> Response:
        if self._http.page == "false":
            return plain(HTTPStatus.OK, "nodeagent: /metrics /healthz /readyz; the page is off: http.page")
        made = await threads.call(page.load)
        headers = [("content-type", "text/html; charset=utf-8"), ("content-security-policy", made.policy)]
        return Response(HTTPStatus.OK, [*headers, *PRIVATE], made.html)

    async def _events(self) -> Response:
        if self._http.page == "false":
            return plain(HTTPStatus.NOT_FOUND, "the page is off: http.page")
        if self._live.full:
            return plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open", [("retry-after", "30")])
        headers = [("content-type", "text/event-stream"), *PRIVATE]
        return Response(HTTPStatus.OK, headers, _guarded(self._live.events()))

    async def _metrics(self) -> Response:
        text = await threads.call(metrics.text, self._status())
        return Response(HTTPStatus.OK, [("content-type", metrics.CONTENT_TYPE), NO_STORE], text.encode())

    async def _healthz(self) -> Response:
        return _health(health.alive(self._alive()))

    async def _readyz(self) -> Response:
        return _health(health.ready(self._status()))


def _complain(path: str, error: Exception) -> None:
    log.event(log.HTTP_FAILED, error, path=path, error=f"{type(error).__name__}: {error}")


async def _guarded(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The events, up to one that fails: then they end, and the page asks again."""
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                yield event
    except Exception as error:  # noqa: BLE001 - as above
        _complain(EVENTS, error)


def _health(verdict: Health) -> Response:
    return plain(HTTPStatus.OK if verdict.good else HTTPStatus.SERVICE_UNAVAILABLE, verdict.text, [NO_STORE])


def is_loopback(address: str) -> bool:
    """True for an address that only this host can reach, or come from; in brackets or not."""
    plain_address = address.strip("[]").removeprefix("::ffff:")
    return plain_address == "::1" or plain_address.startswith("127.")


def known_name(host: str) -> bool:
    """True if a ``Host`` header holds what no stranger can make lead here."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower()
    return name in ("localhost", socket.gethostname().lower()) or is_address(name)


def is_address(text: str) -> bool:
    """True for an IP address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text)
        except OSError:
            continue
        return True
    return False


async def converse(answers: Answers, stream: SocketStream, place: Place) -> None:
    """Speak with one client until it has gone. :raises BrokenResourceError: if it went in the middle."""
    await Conversation(stream, answers.answer, place.answering, answers.timeouts).run()
