# SPDX-License-Identifier: Apache-2.0
"""A command as a terminal of a given width shows it."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

_UNSET = ("COLUMNS", "LINES", "NO_COLOR")


def shown(command: Sequence[str], columns: int = 80, environ: Mapping[str, str] = os.environ) -> str:
    """All that the command writes to its terminal, stderr too, with the line ends of Unix. Blocks."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in environ.items() if name not in _UNSET} | {"TERM": "xterm"}
    with subprocess.Popen(
        [*command], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=kept, cwd=Path.cwd()
    ) as process:
        os.close(theirs)
        text = b"".join(iter(lambda: _some(ours), b"")).decode()
        process.wait()
    os.close(ours)
    return text.replace("\r\n", "\n")


def _some(descriptor: int) -> bytes:
    """b"" at the end, which is an error of this kind of file (EIO)."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""
