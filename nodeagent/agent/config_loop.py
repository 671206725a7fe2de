# SPDX-License-Identifier: Apache-2.0
"""What the operator wants, kept fresh: settings from flags, environment and files, read again on change.

Files that the configuration names count as well. A new file that is bad leaves the old settings in force
and says so; while that is so, all is read again from time to time, for the cause may be anywhere. The
KubeVirt CR and the node's labels will be further sources of the same cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import anyio

from nodeagent import config
from nodeagent.base import log, threads
from nodeagent.base.errors import ConfigError
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Change, Watcher
from nodeagent.config import Log, Settings, table
from nodeagent.model.desired import Desired

QUIET = 0.1  # seconds without a change that end a burst: editors write in several steps
AGAIN = 30.0  # seconds until a refused configuration is read again


class ConfigLoop:
    """Owns the cell of Desired and the settings in force."""

    def __init__(
        self,
        initial: Settings,
        prefix: str,
        flags: Mapping[str, str],
        environ: Mapping[str, str],
        on_change: Callable[[], None],
        set_log: Callable[[Log], None] = lambda _: None,
        again: float = AGAIN,
    ) -> None:
        self.settings = initial
        self.cell: Latest[Desired] = Latest(initial.desired, on_change)
        self.error: str | None = None
        self._prefix = prefix
        self._flags = flags
        self._environ = environ
        self._set_log = set_log
        self._again = again
        self._watcher: Watcher | None = None
        self._watched: frozenset[str] = frozenset()
        self._wake: Latest[None] = Latest(None)

    def watch(self, watcher: Watcher) -> None:
        """Wake when a file of the configuration changes, from now on."""
        self._watcher = watcher
        self._follow()

    def wake(self) -> None:
        """Read the configuration again soon (SIGHUP)."""
        self._wake.touch()

    async def run(self) -> None:
        """Read again whenever something has changed, for ever."""
        seen = 0  # what changed between the first reading and now counts, too
        while True:
            with anyio.move_on_after(self._again if self.error is not None else None):
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
            fresh = await threads.call(config.load, self._prefix, self._flags, self._environ)
        except ConfigError as error:
            self._refused(error)
            return
        self.error = None
        for warning in fresh.warnings:
            if warning not in self.settings.warnings:
                log.event(log.CONFIG_WARNING, text=warning)
        both = zip(fresh.values, self.settings.values, strict=True)
        changed = [_told(one.key) for one, old in both if one.value != old.value]
        if fresh.log != self.settings.log:
            self._set_log(fresh.log)
        self.settings = fresh
        if self._follow():
            self.wake()  # what changed there before it was watched
        if not self.cell.set(fresh.desired) and changed:
            self.cell.touch()  # what is asked of the settings themselves, such as the node's labels
        if changed:
            log.event(log.CONFIG_RELOADED, changed=", ".join(changed))

    def _refused(self, error: ConfigError) -> None:
        if self.error != error.lines():
            log.event(log.CONFIG_REFUSED, error=error.what, hint=error.hint)
        self.error = error.lines()

    def _follow(self) -> bool:
        """Watch what the settings say; True if there is any directory that was not watched before."""
        if self._watcher is None:
            return False
        wanted, before = frozenset(self.settings.watched), self._watched
        for directory in wanted - before:
            self._watcher.watch(directory, self._changed, contents=True)
        for directory in before - wanted:
            self._watcher.unwatch(directory, self._changed)
        self._watched = wanted
        return bool(wanted - before)

    def _changed(self, _: Change) -> None:
        self._wake.touch()


def _told(key: str) -> str:
    """A changed setting, with what a person may not expect of it."""
    return key + table.note(table.BY_KEY[key], " (", ")")
