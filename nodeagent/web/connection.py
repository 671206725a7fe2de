# SPDX-License-Identifier: Apache-2.0
"""One client over HTTP/1.1: requests are read, answered one after the other, and all of it has a limit.

h11 knows the protocol and does no I/O; this is its only door. A request is a line and headers: one with a
body is refused. Whoever is slow, says too much or speaks something else is answered where that is possible,
and the connection ends. Knows nothing of what is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import NamedTuple

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream

from nodeagent.base.timeouts import Timeouts

MOST_HEAD = 8192  # bytes of a request
MOST_REQUESTS = 1000  # on one connection
_CHUNK = 4096
_LINGER_BYTES = 1 << 18  # of its request that a refused client may still send: else it never sees why

Headers = Sequence[tuple[str, str]]
Answering = Callable[[], AbstractContextManager[None]]


class Request(NamedTuple):
    """What is asked. ``path`` is without the query; ``host`` as the client wrote it; ``peer`` its address."""

    method: str
    path: str
    host: str
    peer: str


class Response(NamedTuple):
    """What is answered; a ``body`` of several parts is sent as they come, until the client has gone."""

    status: int
    headers: Headers
    body: bytes | AsyncGenerator[bytes, None]


Answer = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """Raised when a client does not keep to the protocol, or to the limits; ``status`` says to it which."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status
        self.what = what


def plain(status: int, text: str, headers: Headers = ()) -> Response:
    """A line of text for people."""
    return Response(status, (("content-type", "text/plain; charset=utf-8"), *headers), f"{text}\n".encode())


def _begin(status: int, headers: Headers) -> h11.Response:
    return h11.Response(status_code=status, headers=list(headers), reason=HTTPStatus(status).phrase.encode())


class Conversation:
    """One connection."""

    def __init__(
        self, stream: SocketStream, answer: Answer, answering: Answering, timeouts: Timeouts
    ) -> None:
        """While a request is being answered, the client is inside ``answering``."""
        self._timeouts = timeouts
        self._stream = stream
        self._answer = answer
        self._answering = answering
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)

    async def run(self) -> None:
        """Until the client has gone or is to go. :raises BrokenResourceError: if it went in the middle."""
        with contextlib.suppress(TimeoutError):  # whoever is slow is not waited for once more
            for _ in range(MOST_REQUESTS):
                if not await self._one():
                    break
            await self._end()

    async def _one(self) -> bool:
        """One request and its answer; False if it was the last.

        :raises TimeoutError: if the client is too slow.
        """
        try:
            request = await self._request()
            if request is None:
                return False
            with self._answering():
                await self._respond(await self._answer(request), request.method == "HEAD")
        except BadRequest as bad:
            await self._refuse(bad)
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def _request(self) -> Request | None:
        """The next request; None if there is none.

        :raises BadRequest: if it is none of HTTP, or has a body.
        :raises TimeoutError: if it does not come.
        """
        try:
            with anyio.fail_after(self._timeouts.http_idle) as limit:
                event = await self._event(limit)
            if not isinstance(event, h11.Request):
                return None
            if not event.http_version.startswith(b"1."):
                raise BadRequest(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is spoken here")
            if not isinstance(self._http.next_event(), h11.EndOfMessage):
                raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "a request has no body here")
        except h11.RemoteProtocolError as error:
            raise BadRequest(error.error_status_hint, "this is no request of HTTP/1.1") from error
        return _asked(event, self._stream)

    async def _event(self, limit: anyio.CancelScope) -> object:
        """The next event of h11; from its first byte on it has less time."""
        begun = bool(self._http.trailing_data[0])
        if begun:
            limit.deadline = anyio.current_time() + self._timeouts.http_request
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._received()
            if not begun:
                begun, limit.deadline = True, anyio.current_time() + self._timeouts.http_request
            self._http.receive_data(data)
        return event

    async def _received(self) -> bytes:
        try:
            return await self._stream.receive(_CHUNK)
        except anyio.EndOfStream:
            return b""

    async def _respond(self, response: Response, head: bool) -> None:
        """Send an answer. :raises TimeoutError: if the client does not take it."""
        body = response.body
        headers = [*response.headers]
        if isinstance(body, bytes):
            headers.append(("content-length", str(len(body))))
        await self._send(_begin(response.status, headers))
        if isinstance(body, bytes):
            if body and not head:
                await self._send(h11.Data(data=body))
        elif not head:
            await self._send_parts(body)
        await self._send(h11.EndOfMessage())

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Send part after part, until there is none or the client says anything, such as that it goes.

        :raises TimeoutError: if it takes no more.
        """
        taken = False
        async with anyio.create_task_group() as group:
            group.start_soon(self._until_said, group.cancel_scope, name="http client's end")
            with contextlib.suppress(TimeoutError, anyio.BrokenResourceError):
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        await self._send(h11.Data(data=part))
                taken = True
            group.cancel_scope.cancel()
        if not taken:
            raise TimeoutError

    async def _until_said(self, scope: anyio.CancelScope) -> None:
        with contextlib.suppress(anyio.BrokenResourceError):
            self._http.receive_data(await self._received())
        scope.cancel()

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            with anyio.fail_after(self._timeouts.http_send):
                await self._stream.send(data)

    async def _refuse(self, bad: BadRequest) -> None:
        """Say what is wrong, if nothing was answered yet; the connection ends in any case."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._respond(plain(bad.status, bad.what, [("connection", "close")]), head=False)

    async def _end(self) -> None:
        """End it so that the client can read what was sent: closing what was not read resets a connection."""
        await self._stream.send_eof()
        left = _LINGER_BYTES
        with anyio.move_on_after(self._timeouts.http_close):
            while left > 0 and (data := await self._received()):
                left -= len(data)


def _asked(event: h11.Request, stream: SocketStream) -> Request:
    headers = dict(event.headers)
    path, _, _ = event.target.partition(b"?")
    address = stream.extra(SocketAttribute.remote_address, "")
    peer = address[0] if isinstance(address, tuple) else ""
    host = headers.get(b"host", b"")
    return Request(event.method.decode(), path.decode("latin-1"), host.decode("latin-1"), str(peer))
