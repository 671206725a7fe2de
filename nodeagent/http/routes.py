# SPDX-License-Identifier: Apache-2.0
"""The paths of the daemon's HTTP, on the unix socket and by TCP, and who may use them.

On the unix socket, which only root may use, commands read the Status and the Snapshot with the settings, and
post requests by hand. By TCP there are metrics, health and the page, all of them made from the Status.

A page in a browser may be anybody's, and its name may resolve to this address (DNS rebinding): so ``Host``
must be an IP address, this host's name or localhost. Only where everybody may connect, metrics and health are
answered under any name.

The Status is taken on the event loop and written in a thread, which also imports the modules that write it: a
daemon without clients never loads them.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http
from nodeagent.http.server import Handler, HttpError, Request, Response, text_response
from nodeagent.model import plain
from nodeagent.model.status import ProcessStatus, Status

if TYPE_CHECKING:
    from nodeagent.agent.tell.basis import Basis

ManualRequests = Callable[[bytes, int], Awaitable[object]]
"""Handles the body of a request by hand of this process; returns the plain data of the answer."""

PAGES = 16  # open at a time
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?", re.ASCII)
_EVENTS = "/events"
_NO_STORE = ("cache-control", "no-store")
_PRIVATE = (  # no other page may read, frame or guess the answer
    _NO_STORE,
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
)


def find_handler(routes: Mapping[tuple[str, str], Handler], request: Request) -> Handler:
    """The handler of a method and a path. :raises HttpError: if there is none."""
    method = "GET" if request.method == "HEAD" else request.method
    if (handler := routes.get((method, request.path))) is not None:
        return handler
    methods = ", ".join(method for method, path in routes if path == request.path)
    if methods:
        text = f"{request.method} is not answered here, only {methods}"
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, text, [("allow", methods)])
    paths = ", ".join(path for _, path in routes)
    raise HttpError(HTTPStatus.NOT_FOUND, f"no such path; there are {paths}")


class LocalRoutes:
    """Status, Snapshot with the settings in force, and requests by hand (``nodeagent bind``), as JSON."""

    def __init__(
        self, status: Callable[[], Status], in_force: Callable[[], Basis], requests: ManualRequests
    ) -> None:
        self._status = status
        self._in_force = in_force
        self._requests = requests
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/status"): self._get_status,
            ("GET", "/snapshot"): self._get_snapshot,
            ("POST", "/requests"): self._post_request,
        }

    async def handle(self, request: Request) -> Response:
        """The response to any request. :raises HttpError: if it is refused."""
        return await find_handler(self._routes, request)(request)

    async def _get_status(self, _: Request) -> Response:
        return await threads.call(_status_json, self._status())

    async def _get_snapshot(self, _: Request) -> Response:
        return await threads.call(_snapshot_json, self._in_force())

    async def _post_request(self, request: Request) -> Response:
        return _json(await self._requests(request.body, request.pid))


def _status_json(status: Status) -> Response:
    return _json(plain.dump(status))


def _snapshot_json(in_force: Basis) -> Response:
    from nodeagent.agent.tell import basis

    return _json(basis.dump(in_force))


def _json(document: object) -> Response:
    body = f"{json.dumps(document)}\n".encode()
    return Response(HTTPStatus.OK, [("content-type", "application/json"), _NO_STORE], body)


class NetworkRoutes:
    """Metrics, health and the status page, for the TCP listener with the settings ``http``.

    ``stalled`` names the component that makes no progress, if there is one.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        stalled: Callable[[], str | None],
        timeouts: Timeouts,
        http: Http,
    ) -> None:
        self._status = status
        self._stalled = stalled
        self._http = http
        self._stream = StatusStream(status, timeouts)
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/"): self._get_index,
            ("GET", "/metrics"): self._get_metrics,
            ("GET", "/healthz"): self._get_healthz,
            ("GET", "/readyz"): self._get_readyz,
            ("GET", _EVENTS): self._get_events,
        }

    async def handle(self, request: Request) -> Response:
        """The response to any request. :raises HttpError: if it is refused."""
        handler = find_handler(self._routes, request)
        self._check_client(request)
        return await handler(request)

    def _check_client(self, request: Request) -> None:
        """:raises HttpError: if this client may not use the path."""
        private = request.path == _EVENTS or (request.path == "/" and self._http.page != "false")
        local = is_loopback(self._http.listen.rpartition(":")[0])
        if (private or local) and not is_known_name(request.host):
            text = "ask by an IP address, by localhost or by the name of this host"
            raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, text)
        if private and self._http.page != "everywhere" and not is_loopback(request.client):
            raise HttpError(HTTPStatus.FORBIDDEN, "the page is for clients on this node; see http.page")

    async def _get_index(self, _: Request) -> Response:
        if self._http.page == "false":
            return text_response(
                HTTPStatus.OK, "nodeagent: /metrics /healthz /readyz; the page is off: http.page"
            )
        return await threads.call(_page)

    async def _get_events(self, _: Request) -> Response:
        if self._http.page == "false":
            raise HttpError(HTTPStatus.NOT_FOUND, "the page is off: http.page")
        if self._stream.is_full:
            text = "too many pages are open"
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text, [("retry-after", "30")])
        headers = [("content-type", "text/event-stream"), *_PRIVATE]
        return Response(HTTPStatus.OK, headers, self._stream.events())

    async def _get_metrics(self, _: Request) -> Response:
        return await threads.call(_metrics, self._status())

    async def _get_healthz(self, _: Request) -> Response:
        """Fail only where a new process would help; a probe must not wait for a free thread."""
        stalled = self._stalled()
        return _probe(stalled is None, stalled or "alive")

    async def _get_readyz(self, _: Request) -> Response:
        """Fail until the host is scanned and the kubelet, if there is one, has read all lists."""
        unready = self._status().unready
        return _probe(not unready, "\n".join(unready) or "ready")


def _page() -> Response:
    from nodeagent.render import page

    made = page.load()
    headers = [("content-type", "text/html; charset=utf-8"), ("content-security-policy", made.policy)]
    return Response(HTTPStatus.OK, [*headers, *_PRIVATE], made.html)


def _metrics(status: Status) -> Response:
    from nodeagent.render import metrics

    headers = [("content-type", metrics.CONTENT_TYPE), _NO_STORE]
    return Response(HTTPStatus.OK, headers, metrics.text(status).encode())


def _probe(good: bool, text: str) -> Response:
    return text_response(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, text, [_NO_STORE])


class StatusStream:
    """The Status as server-sent events (HTML standard): the whole document, whenever it has changed.

    While at least one page is open, the Status is taken every second, once for all pages: its parts have no
    common notification.
    """

    def __init__(self, status: Callable[[], Status], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._status = status
        self._lock = anyio.Lock()
        self._taken_at = float("-inf")
        self._last: Status | None = None
        self._event = b""
        self._open = 0

    @property
    def is_full(self) -> bool:
        """True if no further page may be opened."""
        return self._open >= PAGES

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events of one page, without end."""
        self._open += 1
        try:
            sent, sent_at = b"", anyio.current_time()
            while True:
                async with self._lock:
                    await self._take_status()
                if self._event is not sent:
                    sent, sent_at = self._event, anyio.current_time()
                    yield sent
                elif anyio.current_time() - sent_at > self._timeouts.page_keepalive:
                    sent_at = anyio.current_time()
                    yield b": nothing new\n\n"
                await anyio.sleep(self._timeouts.page_update)
        finally:
            self._open -= 1

    async def _take_status(self) -> None:
        """Make another event if the Status has changed, counters of time apart, unless a page just did so."""
        if anyio.current_time() - self._taken_at < self._timeouts.page_update / 2:
            return
        self._taken_at = anyio.current_time()
        status = self._status()
        steady = status._replace(uptime_seconds=0.0, process=ProcessStatus())
        if steady != self._last:
            self._event = await threads.call(_event, status)
            self._last = steady


def _event(status: Status) -> bytes:
    return f"data: {json.dumps(plain.dump(status))}\n\n".encode()


def is_loopback(address: str) -> bool:
    """True for an address, in brackets or not, that only this host can reach."""
    plain_address = address.strip("[]").removeprefix("::ffff:")
    return plain_address == "::1" or plain_address.startswith("127.")


def is_known_name(host: str) -> bool:
    """True if a ``Host`` header has a name that nobody else can make resolve to this host."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].strip("[]").lower()
    return name in ("localhost", socket.gethostname().lower()) or _is_address(name)


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, text)
            return True
    return False
