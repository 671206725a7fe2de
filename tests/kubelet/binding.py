# SPDX-License-Identifier: Apache-2.0
"""Socket files of a test's own, below temporary directories of any length."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from nodeagent.kubelet import sockets


def bound(path: Path) -> socket.socket:
    """A socket file; it listens only if told to."""
    made = socket.socket(socket.AF_UNIX)
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        made.bind(sockets.short_path(fd, path.name))
    except OSError:
        made.close()
        raise
    finally:
        os.close(fd)
    return made
