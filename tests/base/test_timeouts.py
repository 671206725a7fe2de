# SPDX-License-Identifier: Apache-2.0
"""Time limits: growing delays, scaling, and the environment variable for it."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.base.errors import ConfigError
from nodeagent.base.timeouts import SCALE, Backoff, Timeouts


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


def test_scaling_multiplies_every_duration() -> None:
    plain: tuple[Any, ...] = Timeouts()
    scaled: tuple[Any, ...] = Timeouts().scaled(0.5)
    for name, before, after in zip(Timeouts._fields, plain, scaled, strict=True):
        if isinstance(before, Backoff):
            assert after == Backoff(before.first / 2, before.limit / 2, before.factor), name
        elif isinstance(before, tuple):
            assert after == tuple(each / 2 for each in before), name
        else:
            assert after == pytest.approx(before / 2), name


def test_every_duration_is_positive() -> None:
    for name, value in zip(Timeouts._fields, Timeouts(), strict=True):
        assert min(value if isinstance(value, tuple) else (value,)) > 0, name


@pytest.mark.parametrize("environ", [{}, {SCALE: ""}, {SCALE: "1"}])
def test_without_a_scale_the_values_stay(environ: dict[str, str]) -> None:
    assert Timeouts.from_environ(environ) == Timeouts()


def test_the_scale_is_read_from_the_environment() -> None:
    assert Timeouts.from_environ({SCALE: "0.3"}) == Timeouts().scaled(0.3)


@pytest.mark.parametrize("text", ["0", "-1", "fast", "nan", "inf", "0x1"])
def test_a_scale_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Timeouts.from_environ({SCALE: text})
    assert refused.value.lines().splitlines() == [
        f"{SCALE}: {text!r} is not a positive number",
        "unset it, or set it to a number such as 0.3",
    ]


def test_limits_that_contain_each_other_keep_their_order() -> None:
    timeouts = Timeouts()
    assert timeouts.former_holder_close < timeouts.allocate_answer
    assert timeouts.usb_node_creation < timeouts.allocate_answer
    assert timeouts.usb_holder_close < timeouts.usb_node_creation
    assert timeouts.pod_resources_rpc < timeouts.check_step
    assert timeouts.pod_resources_in_allocate < timeouts.former_holder_close
    assert timeouts.change_request_answer < timeouts.daemon_answer
