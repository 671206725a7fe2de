# SPDX-License-Identifier: Apache-2.0
"""Rounds: a number of inputs of one target, made from a seed, each judged by itself.

A round is repeated by the seed, the name of its target and its number; then what fails is shrunk, which takes
its time and is left out while the clock runs.
"""

from __future__ import annotations

import hashlib
import re
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from tests.fuzz import bounds

ROUND = 25  # inputs: a round of the slowest target takes some seconds


class Target(NamedTuple):
    """Something that takes input. ``check`` raises what should not come; ``size`` in bytes.

    ``known``: what is said of inputs that are known not to be borne, and what it is.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]
    size: Callable[[Any], int] = len
    known: Sequence[tuple[str, str]] = ()


class Failure(NamedTuple):
    """An input that was not borne."""

    target: str
    number: int
    text: str
    shown: str


def round_of(
    target: Target, seed: int, number: int, met: Counter[str], *, shrink: bool = False
) -> Failure | None:
    """One round; None if all was borne, or is known not to be: ``met`` counts that."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)
    last: list[Any] = []

    @seeded(_mixed(seed, target.name, number))
    @settings(
        max_examples=ROUND,
        phases=phases,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=tuple(HealthCheck),
    )
    @given(target.inputs)
    def inputs(value: Any) -> None:
        last[:] = [value]
        try:
            with bounds.bounded(target.size(value)):
                target.check(value)
        except Exception as error:
            why = next((why for said, why in target.known if re.search(said, _told(error))), None)
            if why is None:
                raise
            met[f"{target.name}: {why}"] += 1

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)  # a large input is large when it is shown
            inputs()
    except Exception as error:  # noqa: BLE001 - whatever comes is what is looked for
        return Failure(target.name, number, _told(error), f"{last[0] if last else None!r:.600}")
    return None


def _mixed(seed: int, name: str, number: int) -> int:
    digest = hashlib.sha256(f"{seed} {name} {number}".encode()).digest()
    return int.from_bytes(digest[:8], "big")


def _told(error: BaseException) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/nodeagent/')[2]}:{frame.lineno}" for frame in frames]
    return f"{type(error).__name__}: {error}"[:1500] + f"\n  at {' '.join(places[-4:])}"
