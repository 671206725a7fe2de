# SPDX-License-Identifier: Apache-2.0
"""Unix sockets as files: binding, publishing, probing, removing, and who is on the other end.

Every path goes through a descriptor of the directory (/proc/self/fd/N/name), so that a prefix may be longer
than the 107 bytes of a unix socket address. A socket file is removed only while it is ours.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path


class SocketFile:
    """A bound socket and its name in a directory that is held by a descriptor."""

    def __init__(self, directory: int, name: str, sock: socket.socket, identity: tuple[int, int]) -> None:
        self.socket = sock
        self._directory = directory
        self._name = name
        self._identity = identity

    @classmethod
    def bind(cls, directory: Path, name: str) -> SocketFile:
        """Make the file, mode 0600; nobody listens yet. :raises OSError: if it cannot be made."""
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

    def rename(self, name: str) -> None:
        """Publish under another name, over what is there. :raises OSError: if that fails."""
        if name != self._name:
            os.rename(self._name, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
            self._name = name

    def is_at(self, path: Path) -> bool:
        """True if ``path`` is this socket."""
        try:
            return _identity(path.lstat()) == self._identity
        except OSError:
            return False

    def close(self) -> None:
        """Close, and leave the file, as a process does that dies."""
        os.close(self._directory)
        self.socket.close()

    def remove(self) -> None:
        """Unlink the name unless it is another's by now, and close."""
        with contextlib.suppress(OSError):
            present = os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
            if _identity(present) == self._identity:
                os.unlink(self._name, dir_fd=self._directory)
        self.close()


def is_served(path: str | Path) -> bool:
    """True if somebody listens at the path, False whatever hinders it. One non-blocking connect."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            with shortened(path) as address:
                probe.connect(address)
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


@contextlib.contextmanager
def shortened(path: str | Path) -> Iterator[str]:
    """The path, as one that fits into a socket address (unix(7)).

    :raises OSError: if its directory is absent.
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
    """Pid, uid and gid of the other end (SO_PEERCRED of unix(7))."""
    pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid, gid


def peer_pid(sock: socket.socket) -> int:
    """The pid of the other end; 0 if it is not in our pid namespace."""
    return _credentials(sock)[0]


def is_trusted(sock: socket.socket) -> bool:
    """True if root or our own user is on the other end."""
    return _credentials(sock)[1] in (0, os.geteuid())
