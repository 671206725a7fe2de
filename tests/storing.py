# SPDX-License-Identifier: Apache-2.0
"""systemd's store of descriptors, for a daemon that is a process of a test: sd_pid_notify_with_fds(3)."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

# becomes the daemon with the listening sockets that it gets from argv[1], as systemd passes them
BECOME = """
import fcntl, os, socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    names, fds, _, _ = socket.recv_fds(peer, 4096, 2)
for number, fd in enumerate([fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in fds]):
    os.dup2(fd, 3 + number)
named = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(fds)), "LISTEN_FDNAMES": names.decode()}
os.execvpe(sys.argv[2], sys.argv[2:], os.environ | named)
"""


class SystemdStore:
    """systemd's store of descriptors for one service."""

    def __init__(self, directory: Path) -> None:
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(directory / "notify"))
        self._notify.settimeout(0.5)
        self._pass = socket.socket(socket.AF_UNIX)
        self._pass.bind(str(directory / "pass"))
        self._pass.listen()
        self._stored: dict[str, int] = {}
        self.environ = {"NOTIFY_SOCKET": str(directory / "notify")}
        self.under = (sys.executable, "-c", BECOME, str(directory / "pass"))

    def receive(self) -> None:
        """Store the descriptors that were sent so far."""
        while len(self._stored) < 2:
            message, fds, _, _ = socket.recv_fds(self._notify, 4096, 1)
            if message.startswith(b"FDSTORE=1"):
                self._stored[message.decode().partition("FDNAME=")[2]] = fds[0]

    def serve(self) -> None:
        """Pass the descriptors to one process."""
        with self._pass.accept()[0] as peer:
            socket.send_fds(peer, [":".join(self._stored).encode()], list(self._stored.values()))

    def close(self) -> None:
        """Close everything."""
        for fd in self._stored.values():
            os.close(fd)
        self._notify.close()
        self._pass.close()
