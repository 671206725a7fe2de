# SPDX-License-Identifier: Apache-2.0
"""The component that has the settings in force on disk: a start with a wrong file goes on with them."""

from __future__ import annotations

import anyio

from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.config import Settings, last_good
from nodeagent.kernel.root import Root


class LastGood:
    """Writes after the start, and after each other settings."""

    name = "last good settings"

    def __init__(self, root: Root, settings: Latest[Settings], again: float) -> None:
        """``again``: seconds from a refusal to the next try."""
        self._root = root
        self._settings = settings
        self._again = again
        self._refused = False

    async def run(self) -> None:
        """Write whenever other settings are in force, and again after a refusal, for ever."""
        while True:
            seen = self._settings.version
            await self.one_turn(self._settings.get())
            with anyio.move_on_after(self._again if self._refused else None):
                await self._settings.newer(seen)

    async def one_turn(self, settings: Settings) -> None:
        """Put them on disk, if they are not there; a refusal is told once."""
        try:
            await threads.call(last_good.keep, self._root.prefix, settings)
        except KernelRefused as error:
            if not self._refused:
                log.event(log.SETTINGS_NOT_KEPT, error=error.what, hint=error.hint)
            self._refused = True
        else:
            self._refused = False
