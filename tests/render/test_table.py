# SPDX-License-Identifier: Apache-2.0
"""Columns and colour."""

from __future__ import annotations

import io

import pytest

from nodeagent.render import table


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_blanks() -> None:
    text = table.table(("NAME", "N", "WHAT"), [("a", "100", ""), ("longer", "1", "x")], indent="  ")
    assert text.splitlines() == ["  NAME    N    WHAT", "  a       100", "  longer  1    x"]


@pytest.mark.parametrize("row", [("1",), ("1", "2", "3")])
def test_a_row_of_another_length_is_a_mistake_of_ours(row: tuple[str, ...]) -> None:
    with pytest.raises((ValueError, IndexError)):
        table.table(("A", "B"), [row])


@pytest.mark.parametrize(
    ("stream", "environ", "coloured"),
    [
        (Terminal(), {"TERM": "xterm"}, True),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "xterm", "NO_COLOR": ""}, True),
        (Terminal(), {"TERM": "dumb"}, False),
        (Terminal(), {}, False),
        (io.StringIO(), {"TERM": "xterm"}, False),
    ],
)
def test_colour_is_for_terminals_that_want_it(
    stream: io.StringIO, environ: dict[str, str], coloured: bool
) -> None:
    paint = table.Paint.of(stream, environ)
    assert paint.coloured is coloured
    assert paint("x", table.RED) == ("\x1b[31mx\x1b[0m" if coloured else "x")
