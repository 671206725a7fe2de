# SPDX-License-Identifier: Apache-2.0
"""journald's native protocol: one record is one datagram of fields (systemd, JOURNAL_NATIVE_PROTOCOL).

Knows sockets and framing, nothing of events. A record that no datagram can take goes as a sealed memory file,
whose descriptor is all that is sent. Never blocks: when journald is away or its queue is full ``send`` says
so and the caller falls back, since a full journal must not stop the event loop. The socket is not
connected, so a restarted journald is found again by itself.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Value = str | int | Sequence[str]

_TOO_LARGE = (errno.EMSGSIZE, errno.ENOBUFS)  # beyond SO_SNDBUF, some 200 KB; no room for one so large
_SEALS = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
)  # journald asks for all


def frame(fields: Mapping[str, Value]) -> bytes:
    """The bytes of a record: ``KEY=value`` lines, and length-prefixed values where a value has lines.

    Keys are upper-case letters, digits and underscores. Several values of one key are several fields.
    """
    return b"".join(_field(key, value) for key, values in fields.items() for value in _each(values))


def _each(values: Value) -> Iterator[str]:
    if isinstance(values, str | int):
        yield str(values)
    else:
        yield from values


def _field(key: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if b"\n" not in data:
        return key.encode() + b"=" + data + b"\n"
    return key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


class Journal:
    """A way to journald; opens nothing before the first record, in the thread that sends it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened: socket.socket | None = None

    def send(self, fields: Mapping[str, Value]) -> bool:
        """Send one record; False if journald is away, busy (EAGAIN) or refuses it."""
        data = frame(fields)
        try:
            self._socket().sendto(data, self._path)
        except OSError as error:
            return error.errno in _TOO_LARGE and self._send_file(data)
        return True

    def _send_file(self, data: bytes) -> bool:
        """Send the record in memory that can be changed by nobody any more; False as ``send``."""
        try:
            fd = os.memfd_create("nodeagent-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
                rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
                self._socket().sendmsg([], [rights], 0, self._path)  # socket.send_fds drops the path (3.11)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the socket back."""
        if self._opened is not None:
            self._opened.close()

    def _socket(self) -> socket.socket:
        if self._opened is None:
            self._opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._opened.setblocking(False)
        return self._opened
