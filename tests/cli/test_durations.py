# SPDX-License-Identifier: Apache-2.0
"""Spans of time as people say them."""

from __future__ import annotations

import pytest

from nodeagent.cli import status


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60.0, "1 min"),
        (61.4, "1 min 1 s"),
        (3600.0, "1 h"),
        (3659.0, "1 h"),
        (11_520.0, "3 h 12 min"),
        (86_400.0, "1 d"),
        (86_400.0 * 40 + 7200, "40 d 2 h"),
    ],
)
def test_the_two_largest_units_are_said(seconds: float, words: str) -> None:
    assert status.format_duration(seconds) == words
