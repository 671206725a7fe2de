# SPDX-License-Identifier: Apache-2.0
"""A door on loopback, and a client that says exactly what a test wants, bytes by bytes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.abc

from nodeagent import config
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http, Settings, Sources
from nodeagent.web.connection import Answer, Conversation, Request, Response, plain
from nodeagent.web.doorway import Converse, Doorway

SOME_PORT = "127.0.0.1:0"


def settings(listen: str = SOME_PORT, page: str = "false") -> Settings:
    """Settings with this address."""
    return config.load(Sources("/nowhere", {"http.listen": listen, "http.page": page}, {}))


async def echo(request: Request) -> Response:
    """An answer that tells what was understood."""
    return plain(200, f"{request.method} {request.path} {request.host} {request.peer}")


class Door:
    """A running Doorway."""

    def __init__(self, doorway: Doorway, cell: Latest[Settings], loaded: list[Http]) -> None:
        self.doorway = doorway
        self.settings = cell
        self.loaded = loaded  # by what settings clients were to be answered

    @property
    def port(self) -> int:
        """Where it listens."""
        return int((self.doorway.status().status.address or "").rstrip("/").rpartition(":")[2])

    async def client(self) -> Client:
        """A new connection to it."""
        return Client(await anyio.connect_tcp("127.0.0.1", self.port))

    async def ask(self, text: str) -> str:
        """What is answered to these lines on a connection of their own, until it ends."""
        client = await self.client()
        await client.say(text)
        return await client.rest()


class Client:
    """The other end of a connection."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self.stream = stream

    async def say(self, text: str) -> None:
        """Send these lines; ``\\n`` stands for the end of a line in HTTP."""
        await self.stream.send(text.replace("\n", "\r\n").encode("latin-1"))

    async def hear(self, wanted: str) -> str:
        """All that comes, up to the first that contains this."""
        heard = ""
        with anyio.fail_after(30):
            while wanted not in heard:
                heard += (await self.stream.receive()).decode()
        return heard

    async def rest(self) -> str:
        """All that comes until the connection ends; then it is closed."""
        heard = ""
        async with self.stream:
            with anyio.fail_after(300):
                try:
                    while True:
                        heard += (await self.stream.receive()).decode()
                except anyio.EndOfStream:
                    return heard


@asynccontextmanager
async def door(
    answer: Answer = echo, wanted: Settings | None = None, passed: Sequence[socket.socket] = ()
) -> AsyncIterator[Door]:
    """A Doorway that listens, with this answer to everything."""

    loaded: list[Http] = []

    async def load(http: Http) -> Converse:
        loaded.append(http)
        return lambda stream, place: Conversation(stream, answer, place.answering, Timeouts()).run()

    cell = Latest(wanted or settings())
    doorway = Doorway(cell, load, Timeouts(), passed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(doorway.run)
        await anyio.wait_all_tasks_blocked()
        yield Door(doorway, cell, loaded)
        tasks.cancel_scope.cancel()
