# SPDX-License-Identifier: Apache-2.0
"""The last guard against a flood: of what is the same, a few lines in a time, and then their number. Pure.

Transitions are logged and not visits, so this holds nothing back unless something changes again and again.
What counts as the same is the caller's to say, and so is the time. A time begins with its first line.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)

MOST = 20  # lines of what is the same


class LeftOut(NamedTuple, Generic[K]):
    """Lines that were not written: of what, how many, and in how many seconds."""

    key: K
    lines: int
    seconds: float


class Limiter(Generic[K]):
    """Counts lines by key. Times are in seconds, of any clock that does not go back."""

    def __init__(self, seconds: float, most: int = MOST) -> None:
        self._most = most
        self._seconds = seconds
        self._counts: dict[K, tuple[float, int, int]] = {}  # when the time began, the lines since, the most

    def admits(self, key: K, now: float, most: int | None = None) -> bool:
        """Count one more line; False if it is to be left out. ``most``: of this key, instead of the usual."""
        began, count, most = self._counts.get(key, (now, 0, self._most if most is None else most))
        self._counts[key] = (began, count + 1, most)
        return count < most

    def over(self, now: float) -> list[LeftOut[K]]:
        """Forget the times that are over; what was left out in them."""
        found: list[LeftOut[K]] = []
        while self._counts:
            key = next(iter(self._counts))  # the oldest: each stands where its time began
            began, count, most = self._counts[key]
            if now - began < self._seconds:
                break
            del self._counts[key]
            if count > most:
                found.append(LeftOut(key, count - most, self._seconds))
        return found
