# SPDX-License-Identifier: Apache-2.0
"""What the demo shows: numbered steps, what is done, what is expected, and how long that took.

Plain text that reads well in a pipe; on a terminal no wider than that, and coloured if it can. An expectation
is written before it is waited for, so that a reader always knows what the demo is waiting for. Knows nothing
of devices.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from typing import TextIO

from nodeagent.base import terminal
from nodeagent.base.terminal import BOLD, DIM, GREEN, RED, Paint, table

WIDTH = 79  # columns, where the verdict begins in a pipe
_VERDICT = len(" ok, 12345 ms ")
_INDENT = " " * 11


class Screen:
    """Writes to one stream, line by line; times are seconds since the last ``do``."""

    def __init__(self, stream: TextIO, paint: Paint, columns: int = 0) -> None:
        """``columns``: how wide the terminal is, 0 for none."""
        self._stream = stream
        self._paint = paint
        self._columns = columns
        self._steps = 0
        self._expected = ""
        self._began = self._done_at = time.monotonic()

    @property
    def where(self) -> str:
        """The present step and the last expectation, for a failure."""
        return f"step {self._steps}, expected: {self._expected or 'nothing yet'}"

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._steps += 1
        self.say(self._paint(f"\n{self._steps}. {title}", BOLD))

    def do(self, what: str) -> None:
        """Say what happens now, and start the clock."""
        self.say(terminal.folded(f"   do      {what}", self._columns))
        self._done_at = time.monotonic()

    def expect(self, what: str) -> None:
        """Say what must come of it; the verdict follows on the same line."""
        self._expected = what
        width = self._columns - _VERDICT if self._columns else WIDTH
        *others, last = terminal.folded(f"   expect  {what}", self._columns and width).split("\n")
        self._write("\n".join([*others, last.ljust(width)]))

    def kept(self) -> None:
        """It came."""
        taken = (time.monotonic() - self._done_at) * 1000
        self.say(f" {self._paint('ok', GREEN)}, {taken:.0f} ms")

    def broken(self) -> None:
        """It did not come."""
        self.say(f" {self._paint('NO', RED)}")

    def end(self) -> None:
        """Say that all went well, and how long it took."""
        self.say(self._paint(f"\nAll of it happened, in {time.monotonic() - self._began:.1f} s.", GREEN))

    def show(self, text: str) -> None:
        """Show what somebody else has to say, below what was just said."""
        self.say(self._paint(terminal.folded(textwrap.indent(text.strip("\n"), _INDENT), self._columns), DIM))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show a table."""
        self.say(table(head, rows, indent=_INDENT))

    def say(self, text: str) -> None:
        """One or more lines."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
