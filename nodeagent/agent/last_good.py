# SPDX-License-Identifier: Apache-2.0
"""The component that has the settings in force on disk: a start with a wrong file goes on with them."""

from __future__ import annotations

from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.config import Settings, last_good
from nodeagent.kernel.root import Root


class LastGood:
    """Writes after the start, and after each other settings."""

    name = "last good settings"

    def __init__(self, root: Root, settings: Latest[Settings]) -> None:
        self._root = root
        self._settings = settings
        self._refused = False

    async def run(self) -> None:
        """Write whenever other settings are in force, for ever."""
        seen = -1
        while True:
            seen, settings = await self._settings.newer(seen)
            await self.one_turn(settings)

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
