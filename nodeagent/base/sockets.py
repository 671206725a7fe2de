# SPDX-License-Identifier: Apache-2.0
"""Unix socket files: bind, publish, probe and remove them, identify the peer, and send one HTTP request.

Paths are resolved through a descriptor of the directory (/proc/self/fd/N/name), so that they may be longer
than the 107 bytes of a unix socket address. A socket file is removed only while it belongs to this process.
Commands query the daemon with ``ask``, which imports neither an event loop nor ``http.client`` (35 ms).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class SocketFile:
    """A bound socket and its file name in a directory that is kept open."""

    def __init__(self, directory: int, name: str, sock: socket.socket, identity: tuple[int, int]) -> None:
        self.socket = sock
        self._directory = directory
        self._name = name
        self._identity = identity

    @classmethod
    def bind(cls, directory: Path, name: str) -> SocketFile:
        """Create the socket file with mode 0600, without listening.

        :raises OSError: if it cannot be created.
        """
        with contextlib.ExitStack() as undo:
            fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            undo.callback(os.close, fd)
            sock = undo.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            )
            os.fchmod(sock.fileno(), 0o600)  # the file gets the mode of the socket's inode: unix_bind_bsd
            sock.bind(_through(fd, name))
            identity = _identity(os.stat(name, dir_fd=fd, follow_symlinks=False))
            undo.pop_all()
        return cls(fd, name, sock, identity)

    @classmethod
    def adopt(cls, directory: Path, name: str, sock: socket.socket) -> SocketFile:
        """Return the file of a socket that is bound to it already.

        :raises OSError: if the file does not exist.
        """
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            identity = _identity(os.stat(name, dir_fd=fd, follow_symlinks=False))
        except OSError:
            os.close(fd)
            raise
        return cls(fd, name, sock, identity)

    def rename(self, name: str) -> None:
        """Rename the socket file, replacing any other file of that name. :raises OSError: if that fails."""
        if name != self._name:
            os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._name = name

    def is_at(self, path: Path) -> bool:
        """Return True if ``path`` is this socket."""
        try:
            return _identity(path.lstat()) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close the socket but keep its file, as after a crash."""
        os.close(self._directory)
        self.socket.close()

    def remove(self) -> None:
        """Close the socket, and unlink its file unless another socket has replaced it."""
        with contextlib.suppress(OSError):
            present = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
            if _identity(present) == self._identity:
                os.unlink(self._name, dir_fd=self._directory)
        self.close()


def is_served(path: str | Path) -> bool:
    """Return True if a process listens at the path, False for any error. Makes one non-blocking connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            with shortened(path) as address:
                probe.connect(address)
        except BlockingIOError:
            return True  # a process listens, but its queue is full
        except OSError:
            return False
    return True


@contextlib.contextmanager
def shortened(path: str | Path) -> Iterator[str]:
    """Yield the path in a form that fits into a socket address (unix(7)).

    :raises OSError: if the directory does not exist.
    """
    path = Path(path)
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _through(fd, path.name)
    finally:
        os.close(fd)


def _through(directory: int, name: str) -> str:
    return f"/proc/self/fd/{directory}/{name}"


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the peer (SO_PEERCRED of unix(7))."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def peer_pid(sock: socket.socket) -> int:
    """Return the pid of the peer; 0 if it is not in this pid namespace."""
    return _credentials(sock)[0]


def is_trusted(sock: socket.socket) -> bool:
    """Return True if the peer runs as root or as the user of this process."""
    return _credentials(sock)[1] in (0, os.geteuid())


def ask(path: str, target: str, limit: float, body: bytes | None = None) -> Any:
    """Return the JSON document at ``target`` of the HTTP server at ``path``; a ``body`` is sent with POST.

    Blocks.

    Waits up to ``limit`` seconds for each part of the response.

    :raises OSError: if no server answers.
    :raises ValueError: if the response is not JSON, for example from a daemon of another version.
    """
    head = (
        f"{'GET' if body is None else 'POST'} {target} HTTP/1.1\r\nhost: localhost\r\n"
        f"content-length: {len(body or b'')}\r\nconnection: close\r\n\r\n"
    )
    response = _exchange(path, limit, head.encode() + (body or b""))
    if not response:  # the daemon is ending, or refuses this user
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    status = _STATUS_LINE.match(response)
    if status is None:
        raise ValueError("it is not HTTP")
    document = response.partition(b"\r\n\r\n")[2]
    if status[1] != b"200":
        raise ValueError(document.decode(errors="replace").strip())
    return json.loads(document)


def _exchange(path: str, limit: float, request: bytes) -> bytes:
    """Send the request and receive until the server closes, possibly before it has read everything."""
    response = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(limit)
        with shortened(path) as address:
            client.connect(address)
        with contextlib.suppress(BrokenPipeError):
            client.sendall(request)
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                response += part
    return response
