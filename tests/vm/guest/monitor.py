# SPDX-License-Identifier: Apache-2.0
"""QEMU's monitor, reached from inside over the third serial line: plugs, unplugs, injects errors.

The monitor is made for people: it echoes what is typed, and shows a prompt when it is done.
"""

from __future__ import annotations

import os
import select
import termios
import time
import tty

_LINE = "/dev/ttyS2"
_PROMPT = b"(qemu) "
_PATIENCE = 20.0


class Monitor:
    """One conversation; commands block for some milliseconds."""

    def __init__(self) -> None:
        self._fd = os.open(_LINE, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(self._fd, termios.TCSANOW)
        self._synchronise()

    def _synchronise(self) -> None:
        """The first line after the boot may be swallowed: ask until a prompt comes."""
        for _ in range(5):
            os.write(self._fd, b"\n")
            if self._until_prompt(3.0) is not None:
                return
        raise TimeoutError("QEMU's monitor gives no prompt")

    def command(self, text: str) -> str:
        """Run one command; what it printed. Raises TimeoutError."""
        self._drain()
        os.write(self._fd, text.encode() + b"\n")
        said = self._until_prompt(_PATIENCE)
        if said is None:
            raise TimeoutError(f"QEMU's monitor does not end: {text}")
        return said

    def _drain(self) -> None:
        while self._readable(0.2):
            os.read(self._fd, 4096)

    def _until_prompt(self, seconds: float) -> str | None:
        said, deadline = b"", time.monotonic() + seconds
        while not said.rstrip(b"\0").endswith(_PROMPT):
            if not self._readable(deadline - time.monotonic()):
                return None
            said += os.read(self._fd, 4096)
        return said.decode(errors="replace")

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], max(seconds, 0))[0])
