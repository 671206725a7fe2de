# SPDX-License-Identifier: Apache-2.0
"""Growing delays with a limit."""

from __future__ import annotations

import pytest

from nodeagent.base.supervise import Backoff


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(-1, 0.5), (0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (1000, 5.0)]
)
def test_delays_double_up_to_the_limit(attempt: int, seconds: float) -> None:
    assert Backoff(first=0.5, limit=5.0).delay(attempt) == seconds


def test_another_factor_grows_faster() -> None:
    assert [Backoff(first=1, limit=50, factor=10).delay(attempt) for attempt in (0, 1, 2)] == [1, 10, 50]


def test_jitter_takes_away_up_to_a_half() -> None:
    backoff = Backoff(first=2.0, limit=8.0)
    assert [backoff.delay(1, jitter) for jitter in (0.0, 0.5, 1.0)] == [4.0, 3.0, 2.0]
    assert backoff.delay(9, 1.0) == 4.0
