# SPDX-License-Identifier: Apache-2.0
"""A measured number, and what is made of many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """One measured number."""

    name: str
    value: float
    unit: str
    target: str = ""


def percentile(times: Sequence[float], share: float) -> float:
    """The time that this share of all (0 to 1) does not exceed."""
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


def both(name: str, times: Sequence[float], p50: str = "", p99: str = "") -> list[Figure]:
    """Median and 99th percentile of times in seconds, with their targets, in milliseconds."""
    return [
        Figure(f"{name}, p50", percentile(times, 0.5) * 1e3, "ms", p50),
        Figure(f"{name}, p99", percentile(times, 0.99) * 1e3, "ms", p99),
    ]
