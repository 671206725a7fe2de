# SPDX-License-Identifier: Apache-2.0
"""Socket files of a test's own, below temporary directories of any length."""

from __future__ import annotations

import socket
from pathlib import Path

from nodeagent.base import sockets


def bound(path: Path) -> socket.socket:
    """A socket file; it listens only if told to."""
    made = socket.socket(socket.AF_UNIX)
    try:
        with sockets.shortened(path) as address:
            made.bind(address)
    except OSError:
        made.close()
        raise
    return made
