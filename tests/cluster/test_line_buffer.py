# SPDX-License-Identifier: Apache-2.0
"""Lines out of pieces, however the network has cut them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster.watch import LineBuffer


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)), st.data())
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    reader = LineBuffer(limit=1000)
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert [line for piece in pieces for line in reader.feed(piece)] == lines


def test_a_line_without_an_end_waits_for_it_and_empty_lines_are_left_out() -> None:
    reader = LineBuffer(limit=10)
    assert list(reader.feed(b"one\n\ntw")) == [b"one"]
    assert list(reader.feed(b"o\n")) == [b"two"]


@pytest.mark.parametrize("pieces", [[b"12345678901"], [b"123456", b"789012\n"], [b"1\n", b"12345678901\n"]])
def test_a_line_beyond_the_limit_is_refused(pieces: list[bytes]) -> None:
    reader = LineBuffer(limit=10)
    with pytest.raises(ClusterUnavailable, match="larger than"):
        for piece in pieces:
            list(reader.feed(piece))
