# SPDX-License-Identifier: Apache-2.0
"""A listener on loopback, and a client that sends exactly the bytes of a test."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from nodeagent import config
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Settings, Sources
from nodeagent.http.server import Handler, NetworkListener, Request, Response, serve_unix, text_response

DEFAULT = Timeouts()
SOME_PORT = "127.0.0.1:0"


def settings(listen: str = SOME_PORT, page: str = "false") -> Settings:
    """Settings with this address."""
    return config.load(Sources("/nowhere", {"http.listen": listen, "http.page": page}, {}))


async def echo(request: Request) -> Response:
    """A response that repeats the request."""
    return text_response(200, f"{request.method} {request.path} {request.host} {request.client}")


class Serving:
    """A running NetworkListener."""

    def __init__(self, listener: NetworkListener, cell: Latest[Settings], handled: list[Http]) -> None:
        self.listener = listener
        self.settings = cell
        self.handled = handled  # the settings for which a handler was made

    @property
    def port(self) -> int:
        """Where it listens."""
        return int((self.listener.status.address or "").rstrip("/").rpartition(":")[2])

    async def client(self) -> Client:
        """A new connection to it."""
        return Client(await anyio.connect_tcp("127.0.0.1", self.port))

    async def ask(self, text: str) -> str:
        """Everything that is answered to these lines on a connection of their own."""
        client = await self.client()
        await client.send(text)
        return await client.rest()


class Client:
    """The other end of a connection."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream

    async def send(self, text: str) -> None:
        """Send these lines; ``\\n`` stands for the end of a line in HTTP."""
        await self.stream.send(text.replace("\n", "\r\n").encode("latin-1"))

    async def receive_until(self, wanted: str) -> str:
        """Everything that comes, up to the first part that contains this."""
        received = ""
        with anyio.fail_after(30):
            while wanted not in received:
                received += (await self.stream.receive()).decode()
        return received

    async def rest(self) -> str:
        """Everything that comes until the connection ends; then it is closed."""
        received = ""
        async with self.stream:
            with anyio.fail_after(300):
                try:
                    while True:
                        received += (await self.stream.receive()).decode()
                except anyio.EndOfStream:
                    return received


async def serve_document(path: str, document: Callable[[], object]) -> None:
    """Answer each request at this unix socket with the JSON document of that moment, until cancelled."""

    async def handle(_: Request) -> Response:
        return Response(200, (), json.dumps(document()).encode())

    await serve_unix(path, handle, Timeouts())


@asynccontextmanager
async def serving(
    handle: Handler = echo,
    wanted: Settings | None = None,
    passed: Sequence[socket.socket] = (),
    timeouts: Timeouts = DEFAULT,
) -> AsyncIterator[Serving]:
    """A NetworkListener with this handler."""
    handled: list[Http] = []

    def handler(http: Http) -> Handler:
        handled.append(http)
        return handle

    cell = Latest(wanted or settings())
    listener = NetworkListener(cell, handler, timeouts, passed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.run)
        await anyio.wait_all_tasks_blocked()
        yield Serving(listener, cell, handled)
        tasks.cancel_scope.cancel()
