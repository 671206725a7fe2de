# SPDX-License-Identifier: Apache-2.0
"""Sockets that systemd has opened for this process (sd_listen_fds(3)): a sandbox may forbid to make them.

Knows numbers of descriptors and whose they are, nothing of what is served there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

FIRST = 3  # SD_LISTEN_FDS_START


def numbers(environ: Mapping[str, str]) -> range:
    """The descriptors that were passed; none, if they are another process's (``LISTEN_PID``)."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return range(0)
    return range(FIRST, FIRST + int(count))


def passed(environ: Mapping[str, str]) -> tuple[socket.socket, ...]:
    """The listening sockets that were passed."""
    sockets = tuple(socket.socket(fileno=number) for number in numbers(environ))
    for sock in sockets:
        sock.set_inheritable(False)
        sock.setblocking(False)
    return sockets
