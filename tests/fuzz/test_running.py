# SPDX-License-Identifier: Apache-2.0
"""The fuzzer notices what it is there for, and repeats itself."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from tests.fuzz import mutations, targets
from tests.fuzz.running import Target, round_of

_BYTES = mutations.damaged([b"some words of input"], [b"token"])


def failure_of(check: Callable[[bytes], None]) -> str:
    """What a round says of a target that does this with each input."""
    failure = round_of(Target("one", _BYTES, check), 1, 0, Counter())
    return "" if failure is None else failure.text


def busy(_: bytes) -> None:
    """Takes a second of the processor, however fast that is."""
    end = time.process_time() + 1.0
    while time.process_time() < end:
        pass


def large(_: bytes) -> None:
    """Takes 80 MiB for a moment."""
    bytearray(b"x") * (80 << 20)


def lost(_: bytes) -> None:
    """As asyncio says of a task whose error nobody fetches."""
    logging.getLogger("asyncio").error("Task exception was never retrieved")


def refused(_: bytes) -> None:
    """An error that nobody declared."""
    raise KeyError("token")


@pytest.mark.parametrize(
    ("check", "said"),
    [(busy, " s for "), (large, " MiB for "), (lost, "never retrieved"), (refused, "KeyError: 'token'")],
)
def test_what_is_not_borne_is_a_failure(check: Callable[[bytes], None], said: str) -> None:
    assert said in failure_of(check)


def test_what_is_borne_is_none() -> None:
    assert failure_of(lambda _: None) == ""


def test_a_round_is_repeated_by_its_seed_and_its_number() -> None:
    def inputs(seed: int, number: int) -> list[bytes]:
        seen: list[bytes] = []
        round_of(Target("one", _BYTES, seen.append), seed, number, Counter())
        return seen

    assert inputs(1, 0) == inputs(1, 0)
    assert len({tuple(inputs(seed, number)) for seed, number in ((1, 0), (1, 1), (2, 0))}) == 3


def test_what_is_known_is_counted_and_hides_nothing_else() -> None:
    def check(number: int) -> None:
        raise AssertionError("old" if number < 9 else "news")

    met: Counter[str] = Counter()
    target = Target("one", st.integers(0, 9), check, lambda _: 1, known=[("old", "is known")])
    failure = round_of(target, 1, 0, met)
    assert failure is not None and "news" in failure.text
    assert met.keys() == {"one: is known"}


def test_each_target_has_a_name_of_its_own() -> None:
    names = [target.name for target in targets.everything()]
    assert names
    assert len(names) == len(set(names))
