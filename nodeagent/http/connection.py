# SPDX-License-Identifier: Apache-2.0
"""One HTTP connection: reads its request and writes the response, by h11.

h11 knows the protocol and does no I/O. This is its only door; ``http.server`` loads it with the first client.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncGenerator
from http import HTTPStatus

import anyio
import h11
from anyio.abc import SocketAttribute, SocketStream

from nodeagent.base import sockets
from nodeagent.base.timeouts import Timeouts
from nodeagent.http.server import HttpError, Request, Response, log_failure

HEAD_BYTES = 8192  # of the request line and the headers
_CHUNK = 4096
_DRAIN_BYTES = 1 << 18  # read from a refused client, so that it can read the answer


class Connection:
    """The connection of one client, which is closed after one response."""

    def __init__(self, stream: SocketStream, timeouts: Timeouts) -> None:
        self._stream = stream
        self._timeouts = timeouts
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        self._head_only = False

    async def read_request(self, body_limit: int) -> Request | None:
        """The request of the client; None if the client closed the connection. ``body_limit``: bytes.

        :raises HttpError: if it is no request of HTTP/1.1, or too large.
        """
        head = await self._receive_event()
        if not isinstance(head, h11.Request):
            return None
        if not head.http_version.startswith(b"1."):
            raise HttpError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.1 is spoken here")
        self._head_only = head.method == b"HEAD"
        headers = dict(head.headers)
        if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")) > body_limit:
            text = f"the body of a request has at most {body_limit} bytes here, and its length comes first"
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        body = b""
        while isinstance(part := await self._receive_event(), h11.Data):
            body += part.data
        if not isinstance(part, h11.EndOfMessage):
            return None
        path = head.target.partition(b"?")[0].decode("latin-1")
        request = Request(head.method.decode(), path, headers.get(b"host", b"").decode("latin-1"), body=body)
        sock = self._stream.extra(SocketAttribute.raw_socket)
        if sock.family == socket.AF_UNIX:
            return request._replace(pid=sockets.peer_pid(sock))
        return request._replace(client=str(self._stream.extra(SocketAttribute.remote_address)[0]))

    async def send_response(self, response: Response, path: str) -> None:
        """Send a response; ``path`` of the request is for the log.

        :raises TimeoutError: if the client does not take it, or leaves before its end.
        """
        headers = [*response.headers, ("connection", "close")]
        if isinstance(response.body, bytes):
            headers.append(("content-length", str(len(response.body))))
        reason = HTTPStatus(response.status).phrase.encode()
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        data = self._encode(head)
        if isinstance(response.body, bytes) and not self._head_only:
            data += self._encode(h11.Data(data=response.body))
        await self._send(data)
        if not isinstance(response.body, bytes) and not self._head_only:
            await self._send_parts(response.body, path)
        await self._send(self._encode(h11.EndOfMessage()))

    async def drain(self) -> None:
        """End the connection so that the client can read the answer: closing with unread data resets it."""
        await self._stream.send_eof()
        rest = _DRAIN_BYTES
        with anyio.move_on_after(self._timeouts.http_close), contextlib.suppress(anyio.EndOfStream):
            while rest > 0:
                rest -= len(await self._stream.receive(_CHUNK))

    async def _send_parts(self, parts: AsyncGenerator[bytes, None], path: str) -> None:
        """Send part after part. A body that ends early has no last chunk, by which the client knows it.

        :raises TimeoutError: if the parts fail, or the client does not take them or has left.
        """
        complete = False
        async with anyio.create_task_group() as group:
            group.start_soon(self._cancel_at_close, group.cancel_scope, name="http client's end")
            try:
                async with contextlib.aclosing(parts):
                    async for part in parts:
                        await self._send(self._encode(h11.Data(data=part)))
                complete = True
            except (TimeoutError, anyio.BrokenResourceError):
                pass
            except Exception as error:  # noqa: BLE001 - the client asks again
                log_failure(path, error)
            group.cancel_scope.cancel()
        if not complete:
            raise TimeoutError

    async def _cancel_at_close(self, scope: anyio.CancelScope) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            await self._stream.receive(_CHUNK)
        scope.cancel()

    async def _receive_event(self) -> object:
        """The next event of h11. :raises HttpError: if the bytes are no request of HTTP/1.1."""
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                try:
                    data = await self._stream.receive(_CHUNK)
                except anyio.EndOfStream:
                    data = b""
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise HttpError(error.error_status_hint, "this is no request of HTTP/1.1") from error
        return event

    def _encode(self, event: h11.Event) -> bytes:
        return self._http.send(event) or b""

    async def _send(self, data: bytes) -> None:
        if data:
            with anyio.fail_after(self._timeouts.http_send):
                await self._stream.send(data)
