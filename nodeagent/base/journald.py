# SPDX-License-Identifier: Apache-2.0
"""journald's native protocol: one record is one datagram of fields (systemd, JOURNAL_NATIVE_PROTOCOL).

Knows sockets and framing, nothing of events. Never blocks: when journald is away or its queue is full
``send`` says so and the caller falls back, since a full journal must not stop the event loop. The
socket is not connected, so a restarted journald is found again by itself.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE_LIMIT = 32 * 1024  # bytes; datagrams beyond some 200 KB are refused with EMSGSIZE
_CUT = " … (cut)".encode()


def frame(fields: Mapping[str, str | int]) -> bytes:
    """The datagram of a record: ``KEY=value`` lines, and length-prefixed values where a value has lines.

    Keys are upper-case letters, digits and underscores; longer values than VALUE_LIMIT bytes are cut.
    """
    return b"".join(_field(key, str(value)) for key, value in fields.items())


def _field(key: str, value: str) -> bytes:
    data = value.encode("utf-8", "backslashreplace")
    if len(data) > VALUE_LIMIT:
        data = data[: VALUE_LIMIT - len(_CUT)].decode("utf-8", "ignore").encode() + _CUT
    if b"\n" not in data:
        return key.encode() + b"=" + data + b"\n"
    return key.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


class Journal:
    """A way to journald; opens no file until the first record."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def send(self, fields: Mapping[str, str | int]) -> bool:
        """Send one record; False if journald is away, busy (EAGAIN) or refuses it."""
        try:
            self._socket.sendto(frame(fields), self._path)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Give the socket back."""
        self._socket.close()
