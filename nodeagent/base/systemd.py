# SPDX-License-Identifier: Apache-2.0
"""The interface of a service to systemd: NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS and JOURNAL_STREAM.

systemd passes listening sockets to the service: those of its socket units, and those that the previous
process of the service has stored (``DescriptorStore``). Clients that connect while the service restarts wait
for the next process.

Without systemd, the functions do nothing.
"""

from __future__ import annotations

import array
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

_FIRST = 3  # SD_LISTEN_FDS_START


def listening_sockets(environ: Mapping[str, str]) -> tuple[tuple[str, socket.socket], ...]:
    """Return the sockets that systemd passed to this process, each with its name (sd_listen_fds(3))."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return ()
    passed = tuple(socket.socket(fileno=number) for number in range(_FIRST, _FIRST + int(count)))
    for sock in passed:
        sock.set_inheritable(False)
        sock.setblocking(False)
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    return tuple(zip((*names, *[""] * len(passed)), passed, strict=False))


def is_journal(environ: Mapping[str, str], stream: TextIO) -> bool:
    """Return True if the stream is the one that systemd connected to the journal."""
    wanted = environ.get("JOURNAL_STREAM")
    if not wanted:
        return False
    try:
        stat = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return wanted == f"{stat.st_dev}:{stat.st_ino}"


class Notifier:
    """Reports the state of the service (sd_notify(3)) to the socket ``address``; None: there is no socket.

    Messages are single datagrams to a path or an abstract address ("@…"), and never block: a message that
    cannot be sent is dropped, since nothing depends on it. ``watchdog`` is the time in seconds after which
    systemd restarts a silent service, or None.
    """

    def __init__(self, address: str | None, watchdog: float | None = None) -> None:
        self._address = address
        self._watchdog = watchdog

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Notifier:
        """Return the notifier for systemd's variables; a watchdog for another process (``WATCHDOG_PID``) is
        ignored.
        """
        address = environ.get("NOTIFY_SOCKET") or None
        if address is not None and not address.startswith(("/", "@")):
            address = None  # vsock and other addresses are used in VMs, not for services
        mine = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        usec = environ.get("WATCHDOG_USEC", "")
        watchdog = int(usec) / 1_000_000 if mine and usec.isdecimal() and int(usec) > 0 else None
        return cls(address, watchdog)

    @property
    def listening(self) -> bool:
        """Return True if there is a socket."""
        return self._address is not None

    @property
    def watchdog_interval(self) -> float | None:
        """Return the seconds between two ``WATCHDOG=1``: half of systemd's limit; None without a watchdog."""
        return None if self._watchdog is None or not self.listening else self._watchdog / 2

    def notify(self, *assignments: str, stored: socket.socket | None = None) -> bool:
        """Send one message, such as ``READY=1``; return False if there is no socket, or sending fails.

        ``stored``: a socket that is sent with the message.
        """
        if self._address is None:
            return False
        address = self._address
        target = b"\0" + address[1:].encode() if address.startswith("@") else address.encode()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)
                sent = [] if stored is None else [array.array("i", [stored.fileno()])]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, each) for each in sent]
                sock.sendmsg(["\n".join(assignments).encode()], rights, 0, target)
        except OSError:
            return False
        return True


class DescriptorStore:
    """Unix sockets that systemd keeps for the next process (FileDescriptorStoreMax= of the unit)."""

    def __init__(self, notifier: Notifier, passed: Sequence[tuple[str, socket.socket]]) -> None:
        """Use the sockets that systemd ``passed`` to this process."""
        self._notifier = notifier
        self._passed = {name: sock for name, sock in passed if sock.family == socket.AF_UNIX}

    def take(self, name: str) -> socket.socket | None:
        """Return the socket that a previous process has stored under this name, if any."""
        return self._passed.pop(name, None)

    def keep(self, name: str, sock: socket.socket) -> bool:
        """Store a socket; return False if there is no systemd."""
        return self._notifier.notify("FDSTORE=1", f"FDNAME={name}", stored=sock)

    def drop(self, name: str) -> None:
        """Remove a socket from the store, and close it if it was not taken."""
        if (sock := self._passed.pop(name, None)) is not None:
            sock.close()
        self._notifier.notify("FDSTOREREMOVE=1", f"FDNAME={name}")

    def drop_all(self) -> None:
        """Remove and close the sockets that were not taken."""
        for name in tuple(self._passed):
            self.drop(name)


NO_STORE = DescriptorStore(Notifier(None), ())
