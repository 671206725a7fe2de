# SPDX-License-Identifier: Apache-2.0
"""Columns, colour, and long lines: folded between words, below their column, and never inside a word."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.terminal import RED, Paint, fold, table

ROW = "0000:3b:00.1  10     vfio-pci  TU106 High Definition Au..  not offered: class 0403 not discovered"


def test_what_fits_stays_as_it_is() -> None:
    assert fold("a  b\n\n" + "x" * 80, 80) == "a  b\n\n" + "x" * 80


def test_the_last_cell_of_a_row_goes_below_a_column_where_it_fits_as_a_whole() -> None:
    first, second = fold(ROW, 80).split("\n")
    assert first == ROW.partition("  not offered")[0]
    assert second == " " * ROW.index("TU106") + "not offered: class 0403 not discovered"


def test_a_cell_that_fits_nowhere_is_folded_below_itself() -> None:
    told = "0000:d8:00.0  offered as a.b/c, Unhealthy: " + "it burns " * 12
    first, second, *_ = fold(told.rstrip(), 80).split("\n")
    assert first.startswith("0000:d8:00.0  offered as")
    assert second.startswith(" " * 14 + "it burns")


def test_a_long_cell_far_to_the_right_goes_below_a_column_with_more_room() -> None:
    told = ROW.replace("not offered", "example.com/gpu: " + "it burns " * 9).rstrip()
    first, second, third, *_ = fold(told, 80).split("\n")
    assert first == ROW.partition("  not offered")[0]
    assert second.startswith(" " * ROW.index("TU106") + "example.com/gpu: it")
    assert third.startswith(" " * ROW.index("TU106") + "burns it")


def test_a_sentence_goes_on_a_little_further_in() -> None:
    told = fold("  to do: " + "look at it " * 12, 60).split("\n")
    assert all(line.startswith("    ") for line in told[1:])
    assert max(map(len, told)) <= 60


def test_a_word_that_is_too_long_stays_whole() -> None:
    name = "example.com/" + "a" * 90
    assert name in fold(f"nothing here is offered as {name}, and no rule would make it", 80)


@given(st.text(alphabet="ab -/:", max_size=300), st.integers(20, 100))
def test_nothing_is_lost_and_only_long_words_exceed(text: str, width: int) -> None:
    told = fold(text, width)
    assert told.split() == text.split()
    assert all(len(line) <= width or len(line.split()) <= 1 for line in told.split("\n"))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_columns_are_as_wide_as_their_widest_cell_and_no_line_ends_in_blanks() -> None:
    text = table(("NAME", "N", "WHAT"), [("a", "100", ""), ("longer", "1", "x")], indent="  ")
    assert text.splitlines() == ["  NAME    N    WHAT", "  a       100", "  longer  1    x"]


@pytest.mark.parametrize("row", [("1",), ("1", "2", "3")])
def test_a_row_of_another_length_is_a_mistake_of_ours(row: tuple[str, ...]) -> None:
    with pytest.raises((ValueError, IndexError)):
        table(("A", "B"), [row])


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
    paint = Paint.of(stream, environ)
    assert paint.coloured is coloured
    assert paint("x", RED) == ("\x1b[31mx\x1b[0m" if coloured else "x")
