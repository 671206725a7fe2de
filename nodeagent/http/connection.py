# SPDX-License-Identifier: Apache-2.0
"""One HTTP connection: reads a request, calls the handler, sends the response.

h11 implements the protocol without I/O, and only this module uses it. ``http.server`` loads this module with
the first client.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator
from http import HTTPStatus

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream

from nodeagent.base import log, sockets
from nodeagent.http.server import Handler, HttpError, Request, Response

HEAD_BYTES = 8192  # the limit of the request line and the headers
_CHUNK = 4096


class Connection:
    """The connection of one client. ``time_limit``: seconds for the request, and for each part of the
    response.

    ``reading`` has the cancel scopes of connections whose request is not complete; cancelling it closes the
    connection.
    """

    def __init__(
        self, stream: SocketStream, time_limit: float, reading: dict[anyio.CancelScope, None]
    ) -> None:
        self._stream = stream
        self._time_limit = time_limit
        self._reading = reading
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._path = ""  # the path of the request, for the log
        self._head_only = False

    async def answer(self, handle: Handler, body_limit: int) -> None:
        """Read one request and answer it. ``body_limit``: bytes.

        :raises TimeoutError: if the client is too slow.
        :raises BrokenResourceError: if the client has closed the connection.
        """
        request, scope = None, anyio.CancelScope()
        self._reading[scope] = None
        try:
            with scope, anyio.fail_after(self._time_limit):
                request = await self._read_request(body_limit)
        except HttpError as error:
            await self._send_response(error.response)
            await self._discard_rest()
            return
        finally:
            self._reading.pop(scope, None)
        if request is not None:
            await self._send_response(await self._call(handle, request))

    async def _call(self, handle: Handler, request: Request) -> Response:
        """Return the handler's response. A handler that fails does not disturb other requests."""
        try:
            return await handle(request)
        except HttpError as error:
            return error.response
        except Exception as error:  # noqa: BLE001 - the client gets a response, the log has the error
            self._log(error)
            text = "the request failed; see the log of nodeagent"
            return HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, text).response

    async def _read_request(self, body_limit: int) -> Request | None:
        """Read the request; None if the client closed the connection before its end.

        :raises HttpError: if it is not HTTP/1.1, or too large.
        """
        head = await self._receive_event()
        if not isinstance(head, h11.Request):
            return None
        if not head.http_version.startswith(b"1."):
            raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is supported")
        self._head_only = head.method == b"HEAD"
        headers = dict(head.headers)
        if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > body_limit:
            text = f"the body is limited to {body_limit} bytes and needs a Content-Length"
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        body = b""
        while isinstance(part := await self._receive_event(), h11.Data):
            body += part.data
        if not isinstance(part, h11.EndOfMessage):
            return None
        self._path = head.target.partition(b"?")[0].decode("latin-1")
        host = headers.get(b"host", b"").decode("latin-1")
        request = Request(head.method.decode(), self._path, host, body=body)
        sock = self._stream.extra(SocketAttribute.raw_socket)
        if sock.family == socket.AF_UNIX:
            return request._replace(pid=sockets.peer_pid(sock))
        return request._replace(client=str(self._stream.extra(SocketAttribute.remote_address)[0]))

    async def _discard_rest(self) -> None:
        """Receive the rest of a refused request: the kernel resets a connection with unread data."""
        await self._stream.send_eof()
        with anyio.move_on_after(self._time_limit), contextlib.suppress(anyio.EndOfStream):
            while True:
                await self._stream.receive(_CHUNK)

    async def _receive_event(self) -> object:
        """Return the next event of the h11 connection. :raises HttpError: if the bytes are not HTTP/1.1."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                try:
                    data = await self._stream.receive(_CHUNK)
                except anyio.EndOfStream:
                    data = b""
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise HttpError(error.error_status_hint, "this is not an HTTP/1.1 request") from error
        return event

    async def _send_response(self, response: Response) -> None:
        headers = [*response.headers, ("connection", "close")]
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        reason = HTTPStatus(response.status).phrase.encode()
        head = self._encode(h11.Response(status_code=response.status, headers=headers, reason=reason))
        if self._head_only:
            await self._send(head)
        elif isinstance(response.body, bytes):
            await self._send(head + self._encode(h11.Data(data=response.body)))
        else:
            await self._send(head)
            await self._send_parts(response.body)

    async def _send_parts(self, parts: AsyncGenerator[bytes, None]) -> None:
        """Send the parts of an endless response until the client disconnects."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_at_close, group.cancel_scope, name="http client's end")
            async with contextlib.aclosing(parts):
                try:
                    async for part in parts:
                        await self._send(self._encode(h11.Data(data=part)))
                except (TimeoutError, anyio.BrokenResourceError):
                    pass
                except Exception as error:  # noqa: BLE001 - the client connects again
                    self._log(error)
            group.cancel_scope.cancel()

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await self._stream.receive(_CHUNK)
        scope.cancel()

    def _encode(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    async def _send(self, data: bytes) -> None:
        with anyio.fail_after(self._time_limit):
            await self._stream.send(data)

    def _log(self, error: Exception) -> None:
        log.event(log.HTTP_FAILED, error, path=self._path, error=f"{type(error).__name__}: {error}")
