# SPDX-License-Identifier: Apache-2.0
"""What the operator wants, kept fresh: settings from flags, environment and files, read again on change.

A new file that is bad leaves the old settings in force and says so. The KubeVirt CR and the node's labels
will be further sources of the same cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio

from nodeagent import settings
from nodeagent.base import log, threads
from nodeagent.base.errors import ConfigError
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Change, Watching
from nodeagent.model.desired import Desired
from nodeagent.settings import Settings

QUIET = 0.1  # seconds without a change that end a burst: editors write in several steps


class Desire:
    """Owns the cell of Desired and the settings in force."""

    def __init__(
        self,
        initial: Settings,
        prefix: str,
        flags: Mapping[str, str],
        environ: Mapping[str, str],
        on_change: Callable[[], None],
    ) -> None:
        self.settings = initial
        self.cell: Latest[Desired] = Latest(initial.desired, on_change)
        self.error: str | None = None
        self._prefix = prefix
        self._flags = flags
        self._environ = environ
        self._wake: Latest[None] = Latest(None)

    def watch(self, watching: Watching) -> None:
        """Wake when a configuration file changes."""
        for directory in settings.watched_paths(self._prefix):
            watching.watch(directory, self._changed, contents=True)

    def wake(self) -> None:
        """Read the configuration again soon (SIGHUP)."""
        self._wake.touch()

    async def run(self) -> None:
        """Read again whenever something has changed, for ever."""
        seen = self._wake.version
        while True:
            seen, _ = await self._wake.newer(seen)
            while True:
                with anyio.move_on_after(QUIET):
                    seen, _ = await self._wake.newer(seen)
                    continue
                break
            await self.one_turn()

    async def one_turn(self) -> None:
        """Read the configuration once; keep the old one if the new one is bad."""
        try:
            fresh = await threads.call(settings.load, self._prefix, self._flags, self._environ)
        except ConfigError as error:
            self.error = error.lines()
            log.event(log.CONFIG_REFUSED, error=error.what, hint=error.hint)
            return
        self.error = None
        both = zip(fresh.values, self.settings.values, strict=True)
        changed = [one.key for one, old in both if one.value != old.value]
        self.settings = fresh
        if not self.cell.set(fresh.desired) and changed:
            self.cell.touch()  # what is asked of the settings themselves, such as the node's labels
        if changed:
            log.event(log.CONFIG_RELOADED, changed=", ".join(changed))

    def _changed(self, _: Change) -> None:
        self._wake.touch()
