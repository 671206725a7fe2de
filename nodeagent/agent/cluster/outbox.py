# SPDX-License-Identifier: Apache-2.0
"""What is to be told and was not yet: bounded in age, in how much is taken in a time, and so in number. Pure.

The same once more is counted with what waits. The rate is that of client-go's spam filter
(tools/record/events_cache.go): 25 at once, then one in five minutes; what is beyond that is counted and left
out. Times are seconds of any clock that does not go back.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from nodeagent.agent.cluster.reasons import Notice
from nodeagent.base.timeouts import Timeouts

BURST = 25


class Letter(NamedTuple):
    """A notice, and how often it has happened since it was told, first and last; not told before ``due``."""

    notice: Notice
    often: int
    first: float
    last: float
    due: float


class Outbox:
    """``left_out``: how many notices were not told for one reason or another."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.left_out = 0
        self._letters: dict[Notice, Letter] = {}  # the next first
        self._tokens = float(BURST)
        self._filled = 0.0

    def add(self, notice: Notice, now: float, delay: float = 0.0) -> bool:
        """Take it; False if it is left out because too much is told."""
        self._forget(now)
        if not self._token(now):
            self.left_out += 1
            return False
        before = self._letters.get(notice)
        if before is not None:
            self._letters[notice] = before._replace(often=before.often + 1, last=now)
            return True
        self._letters[notice] = Letter(notice, 1, now, now, now + delay)
        return True

    def due(self, now: float) -> Letter | None:
        """The next that is due; what is too old is dropped."""
        self._forget(now)
        return next((letter for letter in self._letters.values() if letter.due <= now), None)

    @property
    def next(self) -> float:
        """When the next one is due."""
        return min((letter.due for letter in self._letters.values()), default=math.inf)

    def sent(self, letter: Letter) -> None:
        """It was told; what has happened since then waits on."""
        now = self._letters.pop(letter.notice, letter)
        if now.often > letter.often:
            more = now._replace(often=now.often - letter.often, first=now.last)
            self._letters[letter.notice] = more

    def postpone(self, letter: Letter) -> None:
        """It could not be told: all that waits goes before it."""
        if letter.notice in self._letters:
            self._letters[letter.notice] = self._letters.pop(letter.notice)

    def drop(self, letter: Letter) -> None:
        """Nobody can be told."""
        self._letters.pop(letter.notice, None)
        self.left_out += letter.often

    def _forget(self, now: float) -> None:
        age = self._timeouts.event_age
        for letter in [each for each in self._letters.values() if now - each.last > age]:
            self.drop(letter)

    def _token(self, now: float) -> bool:
        more = (now - self._filled) / self._timeouts.event_refill
        self._tokens = min(float(BURST), self._tokens + more)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
