# SPDX-License-Identifier: Apache-2.0
"""A unix socket that answers every connection with one JSON document, and to root and our own user only.

Either whoever connects gets it (``serve``), or it is the answer to a question (``answer``). A socket on which
somebody listens is never taken over, and only our own is removed at the end: ``base.sockets`` knows how.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream

from nodeagent.base import advice, sockets, threads
from nodeagent.base.advice import Doing
from nodeagent.base.errors import KernelRefused

T = TypeVar("T")

LONGEST = 1 << 18  # bytes of a question


async def serve(
    path: str, take: Callable[[], T], document: Callable[[T], object], more: str, limit: float
) -> None:
    """Serve until cancelled. ``limit``: seconds for a client to read the document.

    For each connection a value is taken on the event loop; a thread makes the document of it, so it must be
    frozen.

    :raises KernelRefused: if the socket cannot be had, with what to do, and ``more``: what else may be done.
    """

    async def reply(stream: SocketStream) -> None:
        await _send(stream, await threads.call(_written, take(), document), limit)

    await _serve(path, reply, more)


async def answer(
    path: str, reply: Callable[[bytes, int], Awaitable[object]], more: str, limit: float
) -> None:
    """Serve until cancelled: a question comes whole, to its end, and the document of the reply goes back.

    ``reply`` gets the question, and the number of the process that asks. ``limit``: seconds for a client to
    send its question, and for it to read the answer.

    What is too long, or does not end in time, gets no answer; nor does who has gone meanwhile.

    :raises KernelRefused: as ``serve``.
    """

    async def to_question(stream: SocketStream) -> None:
        if (question := await _received(stream, limit)) is not None:
            asker = sockets.asker(stream.extra(SocketAttribute.raw_socket))
            await _send(stream, json.dumps(await reply(question, asker)).encode(), limit)

    await _serve(path, to_question, more)


async def _send(stream: SocketStream, document: bytes, limit: float) -> None:
    with anyio.move_on_after(limit), contextlib.suppress(anyio.BrokenResourceError):
        await stream.send(document)


async def _received(stream: SocketStream, limit: float) -> bytes | None:
    """All that comes before the other end stops to write; None if that is not in time, or too much."""
    received = b""
    with anyio.move_on_after(limit), contextlib.suppress(anyio.BrokenResourceError):
        try:
            while len(received) <= LONGEST:
                received += await stream.receive()
        except anyio.EndOfStream:
            return received
    return None


async def _serve(path: str, reply: Callable[[SocketStream], Awaitable[None]], more: str) -> None:
    async def to_trusted(stream: SocketStream) -> None:
        async with stream:
            if sockets.is_trusted(stream.extra(SocketAttribute.raw_socket)):
                await reply(stream)

    try:
        file = _listening(Path(path))
    except OSError as error:
        what = f"the socket {path} cannot be served: {advice.words(error)}"
        raise KernelRefused(
            what, advice.on(error, Doing.LISTEN, more), errno=error.errno or 0, path=path
        ) from error
    try:
        async with await SocketListener.from_socket(file.socket) as listener:
            await listener.serve(to_trusted)
    finally:
        file.remove()


def _written(value: T, document: Callable[[T], object]) -> bytes:
    return json.dumps(document(value)).encode()


def _listening(path: Path) -> sockets.SocketFile:
    """Make the socket; it gets its name only when it listens: whoever finds it can ask.

    :raises OSError: if it cannot be had.
    """
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    _must_be_free(path)
    _must_be_free(aside)
    aside.unlink(missing_ok=True)  # of one that was killed: in a container all have the same number
    file = sockets.SocketFile.bind(path.parent, aside.name)
    try:
        file.restrict()
        file.socket.listen()
        file.rename(path.name)
    except OSError:
        file.remove()
        raise
    return file


def _must_be_free(path: Path) -> None:
    """Let only a socket pass on which nobody listens: that may be replaced.

    :raises OSError: EADDRINUSE for anything else.
    """
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket or sockets.is_served(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
