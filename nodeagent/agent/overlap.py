# SPDX-License-Identifier: Apache-2.0
"""Questions to the kubelet that overlap: which answer is the newest, and whether it stands yet.

Between an answer and what is made of it the host may be looked at, which takes its time. Whoever has asked
before, and is answered meanwhile, decides on what the newer one was told. Knows no answers, only when they
were asked for: seconds of the event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from nodeagent.base.latest import Latest


class Overlap:
    """The questions of one daemon."""

    def __init__(self) -> None:
        self._answered = 0.0  # when the newest was asked that was answered
        self._taken = 0.0  # when the newest was asked whose answer stands
        self._being_taken: Latest[int] = Latest(0)  # answers that do not stand yet

    def is_newest(self, asked: float) -> bool:
        """True if no newer question was answered before this one is, which is now."""
        newest = asked >= self._answered
        self._answered = max(self._answered, asked)
        return newest

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """An answer is being made to stand."""
        self._being_taken.set(self._being_taken.get() + 1)
        try:
            yield
        finally:
            self._being_taken.set(self._being_taken.get() - 1)

    def take(self, asked: float) -> bool:
        """The answer to this question stands from now on; False if that to a newer one does already."""
        newest = asked >= self._taken
        self._taken = max(self._taken, asked)
        return newest

    async def newer_stands(self, asked: float) -> None:
        """Wait until the answer to a newer question stands, or none is on its way any more."""
        while self._being_taken.get() and self._taken <= asked:
            await self._being_taken.newer(self._being_taken.version)
