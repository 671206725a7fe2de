# SPDX-License-Identifier: Apache-2.0
"""Of what is the same a few lines pass in a time; the rest is counted, and told once."""

from __future__ import annotations

from nodeagent.base.lograte import LeftOut, Limiter


def test_a_few_pass_and_the_rest_is_counted() -> None:
    limiter = Limiter[str](most=3, seconds=10)
    assert [limiter.admits("a", now) for now in range(5)] == [True, True, True, False, False]
    assert limiter.over(9.9) == []
    assert limiter.over(10) == [LeftOut("a", 2, 10)]
    assert limiter.over(10) == [], "told once"


def test_after_its_time_a_line_passes_again() -> None:
    limiter = Limiter[str](most=1, seconds=10)
    assert [limiter.admits("a", 0), limiter.admits("a", 5)] == [True, False]
    limiter.over(10)
    assert limiter.admits("a", 10)


def test_what_is_not_the_same_has_a_count_of_its_own() -> None:
    limiter = Limiter[str](most=1, seconds=10)
    assert [limiter.admits(key, 0) for key in ("a", "b", "a", "b")] == [True, True, False, False]
    assert limiter.admits("c", 9)
    assert limiter.over(10) == [LeftOut("a", 1, 10), LeftOut("b", 1, 10)]
    assert not limiter.admits("c", 18)


def test_where_nothing_was_left_out_nothing_is_told_or_kept() -> None:
    limiter = Limiter[str](most=1, seconds=10)
    assert limiter.admits("a", 0)
    assert limiter.over(100) == []
    assert limiter.admits("a", 101)


def test_what_is_to_be_rare_has_a_number_of_its_own() -> None:
    limiter: Limiter[str] = Limiter(60.0)
    assert [limiter.admits("rare", 0.0, 1) for _ in range(3)] == [True, False, False]
    assert limiter.over(60.0) == [LeftOut("rare", 2, 60.0)]
