# SPDX-License-Identifier: Apache-2.0
"""Has read again soon what a driver has taken and is not done with: nobody tells when it is.

Asks a few times, ever more rarely; after that the slow timer is enough. Does not read anything itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from nodeagent.kernel.wakes import Wakes
from nodeagent.model.host import Host
from nodeagent.policy import groups


class SecondLooks:
    """Follows each scan. Used on the event loop only."""

    def __init__(self, wakes: Wakes, delays: Sequence[float]) -> None:
        """``delays``: seconds from one look to the next."""
        self._delays = delays
        self._wakes = wakes
        self._unfinished: frozenset[str] = frozenset()
        self._pauses: Iterator[float] = iter(())
        self._timer: asyncio.TimerHandle | None = None

    def after(self, host: Host) -> None:
        """A scan has ended with this Host: begin anew with what was not unfinished before it."""
        before = self._unfinished
        self._unfinished = frozenset(
            function.address for function in host.functions.values() if groups.unfinished(function)
        )
        if self._unfinished - before:
            self._pauses = iter(self._delays)
            self._wait_no_more()  # the next look may be far away by now
        if self._unfinished and self._timer is None:
            self._wait()

    def _wait(self) -> None:
        pause = next(self._pauses, None)
        if pause is not None:
            self._timer = asyncio.get_running_loop().call_later(pause, self._look)

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        for address in self._unfinished:
            self._wakes.wake(address)
