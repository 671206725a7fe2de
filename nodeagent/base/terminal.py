# SPDX-License-Identifier: Apache-2.0
"""Formats text for terminals: aligned columns, lines folded between words, colour.

Commands and the demo use it. A folded line continues below its column, or slightly indented. Words are
never split, so that names can be copied; a name longer than the line exceeds the width of the terminal.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

_GAP = re.compile(r"(?<=\S)  +(?=\S)")  # between the cells of a table
_NARROW = 24  # narrowest column in which text is folded
_ROOMY = 40  # a column at least this wide is preferred for folded text
_FURTHER = 2  # indent of continuation lines
_NARROWEST = 40  # narrowest terminal for which tables are folded

RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Return the rows as columns, each as wide as its widest cell; the last column is not padded."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        indent
        + "  ".join(
            cell if column == len(head) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def find_width(stream: TextIO | None, environ: Mapping[str, str]) -> int:
    """Return the width of the terminal; 0 if the stream is not a terminal, or its width is unusable."""
    if stream is None or not stream.isatty():
        return 0
    try:
        wide = int(environ.get("COLUMNS") or os.get_terminal_size(stream.fileno()).columns)
    except (OSError, ValueError):
        return 0
    return wide if wide >= _NARROWEST else 0


def fold(text: str, width: int) -> str:
    """Return the text in lines of at most ``width`` columns, except for longer words; 0: unchanged."""
    if not width:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fold(line, width))


def _fold(line: str, width: int) -> Iterator[str]:
    if len(line) <= width:
        yield line
        return
    *others, last = [0, *(gap.end() for gap in _GAP.finditer(line))]
    cell, starts = line[last:], others[1:]
    longest = max(map(len, cell.split()), default=0)
    whole = next((each for each in reversed(starts) if each + len(cell) <= width), None)
    if whole is None and last and width - last >= max(_NARROW, longest):
        yield from _wrap(line, width, last)
        return
    roomy = (each for each in reversed(starts) if width - each >= max(_ROOMY, longest))
    below = whole or next(roomy, None)
    if below is None:
        yield from _wrap(line, width, len(line) - len(line.lstrip()) + _FURTHER)
        return
    yield from _fold(line[:last].rstrip(), width)
    yield from _wrap(" " * below + cell, width, below)


def _wrap(line: str, width: int, further: int) -> list[str]:
    return textwrap.wrap(
        line, width, subsequent_indent=" " * further, break_long_words=False, break_on_hyphens=False
    )


class Paint:
    """Colours text, if enabled."""

    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    @classmethod
    def of(cls, stream: TextIO, environ: dict[str, str]) -> Paint:
        """Return a Paint with colour if the stream is a colour terminal and NO_COLOR is unset
        (no-color.org).
        """
        able = stream.isatty() and environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")
        return cls(able)

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.coloured else text
