# SPDX-License-Identifier: Apache-2.0
"""The paths of the daemon's HTTP server, on the unix socket and by TCP, and which clients may use them.

Only root may use the unix socket. Through this socket, commands read the Status and the Snapshot with the
settings, and post manual requests. TCP serves metrics, health and the status page, which are all made from
the Status.

A browser may send requests of any web page to this server, because the page's host name may resolve to this
address (DNS rebinding). Therefore the ``Host`` header of a request must be an IP address, the name of this
host or localhost. Requests for metrics and health may have any name in ``Host`` if the settings admit all
clients.

The Status is collected on the event loop and formatted in a thread. The thread also imports the formatting
modules, so a daemon without clients never loads them.
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
    from nodeagent.agent.reporting.basis import Basis

ManualRequests = Callable[[bytes, int], Awaitable[object]]
"""Handles the body of a manual request that this process (pid) sent; returns the plain data of the answer."""

_INDEX = text_response(
    HTTPStatus.OK, "nodeagent: /metrics /healthz /readyz; the status page is off: http.page"
)
PAGES = 16  # status pages that may be open at a time
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]+)(:\d{1,5})?", re.ASCII)
_NO_STORE = ("cache-control", "no-store")
_PRIVATE = (  # no other page may read, frame or guess the response
    _NO_STORE,
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
)


def check_path(request: Request, methods: Mapping[str, str]) -> None:
    """Check the path and the method of a request.

    :raises HttpError: if ``methods`` (path → method) does not have them.
    """
    method = methods.get(request.path)
    if method is None:
        raise HttpError(HTTPStatus.NOT_FOUND, f"no such path; there are {', '.join(methods)}")
    if method != ("GET" if request.method == "HEAD" else request.method):
        text = f"the method {request.method} is not allowed, only {method}"
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, text, [("allow", method)])


def local_routes(
    status: Callable[[], Status], in_force: Callable[[], Basis], requests: ManualRequests
) -> Handler:
    """Serve the Status, the Snapshot with settings, and manual requests (``nodeagent bind``), as JSON."""

    async def handle(request: Request) -> Response:
        check_path(request, {"/status": "GET", "/snapshot": "GET", "/requests": "POST"})
        match request.path:
            case "/status":
                return await threads.call(_status_json, status())
            case "/snapshot":
                return await threads.call(_snapshot_json, in_force())
            case _:
                return _json(await requests(request.body, request.pid))

    return handle


def _status_json(status: Status) -> Response:
    return _json(plain.dump(status))


def _snapshot_json(in_force: Basis) -> Response:
    from nodeagent.agent.reporting import basis

    return _json(basis.dump(in_force))


def _json(document: object) -> Response:
    body = f"{json.dumps(document)}\n".encode()
    return Response(HTTPStatus.OK, [("content-type", "application/json"), _NO_STORE], body)


def network_routes(
    status: Callable[[], Status], stalled: Callable[[], str | None], timeouts: Timeouts, http: Http
) -> Handler:
    """Serve metrics, health and the status page on TCP, as the settings ``http`` say.

    ``stalled`` returns the name of the component that makes no progress, or None. Probes are answered on the
    event loop, because they must not wait for a free thread.
    """
    stream = StatusStream(status, timeouts)
    paths = dict.fromkeys(("/", "/metrics", "/healthz", "/readyz", "/events"), "GET")

    async def handle(request: Request) -> Response:
        check_path(request, paths)
        _check_client(request, http)
        match request.path:
            case "/":
                return _INDEX if http.page == "false" else await threads.call(_page)
            case "/metrics":
                return await threads.call(_metrics, status())
            case "/healthz":  # fails only if a restart would help
                component = stalled()
                return _probe(component is None, component or "alive")
            case "/readyz":  # fails until the host is scanned and the kubelet has read all device lists
                unready = status().unready
                return _probe(not unready, "\n".join(unready) or "ready")
            case _:
                return _events(stream, http)

    return handle


def _check_client(request: Request, http: Http) -> None:
    """Check that this client may use the path. :raises HttpError: if it may not."""
    private = request.path == "/events" or (request.path == "/" and http.page != "false")
    local = is_loopback(http.listen.rpartition(":")[0])
    if (private or local) and not is_known_name(request.host):
        text = "use an IP address, localhost or the name of this host in the URL"
        raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, text)
    if private and http.page != "everywhere" and not is_loopback(request.client):
        raise HttpError(HTTPStatus.FORBIDDEN, "the page is only for clients on this node: see http.page")


def _events(stream: StatusStream, http: Http) -> Response:
    if http.page == "false":
        raise HttpError(HTTPStatus.NOT_FOUND, "the status page is off: http.page")
    if stream.is_full:
        text = "too many status pages are open"
        raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, text, [("retry-after", "30")])
    return Response(HTTPStatus.OK, [("content-type", "text/event-stream"), *_PRIVATE], stream.events())


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

    While at least one page is open, the Status is collected every second, once for all pages, because no
    event in the daemon reports every change of the Status.
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
        """True if no more pages may be opened."""
        return self._open >= PAGES

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The endless stream of events for one open status page."""
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
        """Create a new event if the Status has changed, unless another open page has just created it."""
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
    """True for a loopback address, with or without brackets."""
    plain_address = address.strip("[]").removeprefix("::ffff:")
    return plain_address == "::1" or plain_address.startswith("127.")


def is_known_name(host: str) -> bool:
    """True if the ``Host`` header has a name that no other server can make resolve to this host."""
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
