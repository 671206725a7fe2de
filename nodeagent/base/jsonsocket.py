# SPDX-License-Identifier: Apache-2.0
"""A unix socket that answers every connection with one JSON document, and to root and our own user only.

The path may be longer than a unix socket address: it is reached through a descriptor of its directory. A
socket on which somebody listens is never taken over, and only our own is removed at the end.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream

from nodeagent.base.errors import KernelRefused

LIMIT = 5.0  # seconds for one answer


async def serve(path: str, answer: Callable[[], object], ready: Callable[[], None] = lambda: None) -> None:
    """Serve until cancelled; raises KernelRefused if the socket cannot be made or somebody else has it."""
    target = Path(path)
    try:
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        await _serve_in(f"/proc/self/fd/{directory}/{target.name}", path, answer, ready)
    finally:
        os.close(directory)


async def _serve_in(short: str, path: str, answer: Callable[[], object], ready: Callable[[], None]) -> None:
    async def reply(stream: SocketStream) -> None:
        async with stream:
            if _peer(stream.extra_attributes[anyio.abc.SocketAttribute.raw_socket]()) in (0, os.geteuid()):
                with anyio.move_on_after(LIMIT), contextlib.suppress(anyio.BrokenResourceError):
                    await stream.send(json.dumps(answer()).encode())

    aside = f"{short}.{os.getpid()}"
    try:
        _must_be_free(Path(short))
        # Shielded: else the file stays behind, bound, and not yet known to be ours.
        with anyio.CancelScope(shield=True):
            listener = await anyio.create_unix_listener(aside, mode=0o600)
            _publish(aside, short)
    except OSError as error:
        raise _refused(path, error) from error
    ours = _identity(Path(short))
    try:
        ready()
        async with listener:
            await listener.serve(reply)
    finally:
        _forget_own(Path(short), ours)


def _publish(aside: str, short: str) -> None:
    """Give the socket its name only now that it listens: whoever finds it can ask."""
    Path(aside).rename(short)


def _must_be_free(path: Path) -> None:
    """Raise OSError (EADDRINUSE) for anything but a socket on which nobody listens, which may be replaced."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket or _is_served(path):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _forget_own(path: Path, ours: tuple[int, int] | None) -> None:
    """Remove the socket unless it is another's by now."""
    if ours is not None and _identity(path) == ours:
        path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def ask(path: str) -> Any:
    """The document that a server at ``path`` gives; blocks; raises OSError or ValueError."""
    directory = os.open(Path(path).parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.settimeout(LIMIT)
            client.connect(f"/proc/self/fd/{directory}/{Path(path).name}")
            chunks = list(iter(lambda: client.recv(65536), b""))
    finally:
        os.close(directory)
    return json.loads(b"".join(chunks))


def _peer(raw: Any) -> int:
    _, uid, _ = struct.unpack("iII", raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _refused(path: str, error: OSError) -> KernelRefused:
    return KernelRefused(
        f"the status socket {path} cannot be served: {error.strerror or error}",
        "make its directory writable, or choose another with --status-socket",
        errno=error.errno or 0,
        path=path,
    )
