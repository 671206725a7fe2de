# SPDX-License-Identifier: Apache-2.0
"""Aligned columns, and a little colour where the terminal has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TextIO

RED, GREEN, YELLOW, BOLD, DIM = "31", "32", "33", "1", "2"


class Paint:
    """Colours a text, or leaves it alone."""

    def __init__(self, coloured: bool) -> None:
        self.coloured = coloured

    @classmethod
    def of(cls, stream: TextIO, environ: dict[str, str]) -> Paint:
        """Colour on a terminal that can, unless NO_COLOR is set (no-color.org)."""
        able = stream.isatty() and environ.get("TERM", "dumb") != "dumb" and not environ.get("NO_COLOR")
        return cls(able)

    def __call__(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self.coloured else text


def table(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Columns as wide as their widest cell; the last one is not padded."""
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
