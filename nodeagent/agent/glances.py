# SPDX-License-Identifier: Apache-2.0
"""Looks at what somebody had an event made for, and wakes with what does not read as known.

``udevadm trigger`` makes an event for each device of the machine, although nothing has happened. Each costs
one cheap check, at the end of the queue: scans of real changes neither wait for it nor grow by it. Does not
read the host itself.
"""

from __future__ import annotations

import anyio

from nodeagent.agent.observe import Observer
from nodeagent.kernel.wakes import Wakes

BATCH = 64  # keys that are checked in one go


class Glances:
    """The component that checks them."""

    name = "glances"

    def __init__(self, wakes: Wakes, observer: Observer, pause: float) -> None:
        """``pause``: seconds between two rounds: the same device may be named by many events."""
        self._pause = pause
        self._wakes = wakes
        self._observer = observer

    async def run(self) -> None:
        """Check, for ever."""
        while True:
            await self._wakes.doubted()
            while keys := self._wakes.take_doubted(BATCH):
                self._observer.wake(await self._observer.strangers(keys))
            await anyio.sleep(self._pause)
