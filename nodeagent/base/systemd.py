# SPDX-License-Identifier: Apache-2.0
"""A service's side of systemd: NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS and JOURNAL_STREAM.

Without systemd all of it does nothing.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TextIO

_FIRST = 3  # SD_LISTEN_FDS_START


def listening_sockets(environ: Mapping[str, str]) -> tuple[socket.socket, ...]:
    """The listening sockets that systemd passed to this process (sd_listen_fds(3))."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return ()
    passed = tuple(socket.socket(fileno=number) for number in range(_FIRST, _FIRST + int(count)))
    for sock in passed:
        sock.set_inheritable(False)
        sock.setblocking(False)
    return passed


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """True if the stream is the one that systemd connected to the journal, not one put in its place."""
    wanted = environ.get("JOURNAL_STREAM")
    if not wanted:
        return False
    try:
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{stat.st_dev}:{stat.st_ino}"


class Notifier:
    """Reports the state of the service (sd_notify(3)) to the socket ``address``; None: there is none.

    Messages are single datagrams to a path or an abstract address ("@…"), and never block: a message that
    cannot be sent is dropped, since nothing here depends on it. ``watchdog`` is the time in seconds after
    which systemd gives up on a silent service, or None.
    """

    def __init__(self, address: str | None, watchdog: float | None = None) -> None:
        self._address = address
        self._watchdog = watchdog

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """As systemd set it up; a watchdog for another process (``WATCHDOG_PID``) is none of ours."""
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and not address.startswith(("/", "@")):
            address = None  # vsock and such: for virtual machines, not for services
        mine = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        usec = environ.get("WATCHDOG_USEC", "")
        watchdog = int(usec) / 1_000_000 if mine and usec.isdecimal() and int(usec) > 0 else None
        return cls(address, watchdog)

    @property
    def listening(self) -> bool:
        """True if there is a socket."""
        return self._address is not None

    @property
    def watchdog_interval(self) -> float | None:
        """Seconds between two ``WATCHDOG=1``: half of what systemd allows; None without a watchdog."""
        return None if self._watchdog is None or not self.listening else self._watchdog / 2

    def notify(self, *assignments: str) -> bool:
        """Send one message, such as ``READY=1``; False if there is no socket, or it could not be sent."""
        if self._address is None:
            return False
        address = self._address
        target = b"\0" + address[1:].encode() if address.startswith("@") else address.encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(assignments).encode(), target)
        except OSError:
            return False
        return True
