# SPDX-License-Identifier: Apache-2.0
"""The settings in force: read from flags, environment and files, and read again when a file changes.

Files that the configuration names count as well. An invalid file leaves the last valid settings in force, and
is logged; until it is valid, everything is read again from time to time, since the cause may be anywhere.
``SpecMerger`` merges the settings with the KubeVirt CR and the labels of the node. Equal settings wake no
reader.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import anyio

from nodeagent import config
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import ConfigError, KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.base.watch import Change, DirectoryWatcher
from nodeagent.config import Log, Settings, Sources, last_good
from nodeagent.kernel.root import Root
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.status import ConfigurationStatus
from nodeagent.policy import merge


class ConfigLoop:
    """Writes the settings in force. ``error``: why newer ones were refused, in lines for people."""

    name = "configuration"

    def __init__(
        self,
        settings: Latest[Settings],
        sources: Sources,
        watcher: DirectoryWatcher,
        set_log: Callable[[Log], None],
        timeouts: Timeouts,
        refused: ConfigError | None = None,
    ) -> None:
        """Files that change from now on count. ``set_log`` is told other settings of the log.

        ``refused``: why the settings are not those of the files, but the last good ones.
        """
        self.settings = settings
        self.error: str | None = refused.lines() if refused is not None else None
        self.read: Latest[int] = Latest(0)  # how many readings have ended
        self._sources = sources
        self._timeouts = timeouts
        self._watcher = watcher
        self._set_log = set_log
        self._wake: Latest[None] = Latest(None)
        self._status = ConfigurationStatus(since=time.time(), refused=int(refused is not None))
        self._begun = 0  # readings
        if self._watcher.watch_only(settings.get().watched, self._on_change, contents=True):
            self.wake()  # what has changed since it was read

    @property
    def status(self) -> ConfigurationStatus:
        """Since when these settings are in force, and why newer ones are not."""
        return self._status._replace(error=self.error)

    def wake(self) -> None:
        """Read the configuration again soon (SIGHUP)."""
        self._wake.touch()

    async def run(self) -> None:
        """Read again whenever something has changed, for ever."""
        seen = 0  # what changed between the first reading and now counts, too
        while True:
            limit = self._timeouts.refused_config_retry if self.error is not None else None
            with anyio.move_on_after(limit):
                seen, _ = await self._wake.newer(seen)
            seen = await self._quiet(seen)
            self._begun += 1
            await self.one_turn()
            self.read.set(self._begun)

    async def reload(self) -> None:
        """Read the configuration again, and wait until a read that starts after this call has ended."""
        wanted = self._begun + 1
        self.wake()
        while self.read.get() < wanted:
            await self.read.newer(self.read.version)

    async def one_turn(self) -> None:
        """Read the configuration once; keep the old one if the new one is bad."""
        try:
            fresh = await threads.call(config.load, self._sources)
        except ConfigError as error:
            self._refuse(error)
            return
        self._take(fresh)
        if self._watcher.watch_only(fresh.watched, self._on_change, contents=True):
            self.wake()  # what changed there before it was watched

    async def _quiet(self, seen: int) -> int:
        """Wait until nothing has changed for a moment; the version of the last change."""
        while True:
            with anyio.move_on_after(self._timeouts.config_burst_gap):
                seen, _ = await self._wake.newer(seen)
                continue
            return seen

    def _take(self, fresh: Settings) -> None:
        """Put new settings in force, and say what is new."""
        before = self.settings.get()
        if self.settings.set(fresh):
            self._status = self._status._replace(generation=self._status.generation + 1, since=time.time())
        for warning in fresh.warnings:
            if warning not in before.warnings:
                log.event(log.CONFIG_WARNING, text=warning)
        if fresh.log != before.log:
            self._set_log(fresh.log)
        changed = _changed(before, fresh)
        if self.error is not None:
            self.error = None
            log.event(log.CONFIG_VALID, text="they are in force" if changed else "nothing in them is new")
        if changed:
            log.event(log.CONFIG_RELOADED, changed=", ".join(changed))

    def _refuse(self, error: ConfigError) -> None:
        if self.error != error.lines():
            log.event(log.CONFIG_REFUSED, error=error.what, hint=f"{error.hint}{config.more(error)}")
            self._status = self._status._replace(refused=self._status.refused + 1)
        self.error = error.lines()

    def _on_change(self, _: Change) -> None:
        self._wake.touch()


def _changed(before: Settings, fresh: Settings) -> list[str]:
    """The keys with other values, each with a note on unexpected effects."""
    both = zip(before.values, fresh.values, strict=True)
    keys = [new.key for old, new in both if old.value != new.value]
    return [key + config.BY_KEY[key].note(" (", ")") for key in keys]


class LastGood:
    """Keeps the settings in force on disk: a start with a wrong file goes on with them."""

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
        """Put them on disk, if they are not there; a refusal is logged once."""
        try:
            await threads.call(last_good.keep, self._root.prefix, settings)
        except KernelRefused as error:
            if not self._refused:
                log.event(log.CONFIG_NOT_SAVED, error=error.what, hint=error.hint)
            self._refused = True
        else:
            self._refused = False


class SpecMerger:
    """Merges the Spec from the settings and the cluster; the one writer of ``Snapshot.spec``."""

    name = "spec"

    def __init__(
        self, settings: Latest[Settings], cluster: Latest[ClusterConfig], snapshots: Snapshots
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._snapshots = snapshots

    async def run(self) -> None:
        """Merge and publish now, and whenever the settings or the cluster say something else, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cluster.follow, lambda _: self._publish(), name="cluster")
            group.start_soon(self._settings.follow, lambda _: self._publish(), name="settings")

    def _publish(self) -> None:
        cr, labels = self._cluster.get()
        spec = merge.merge(self._settings.get().configuration, cr, labels)
        self._snapshots.publish(replace(self._snapshots.now, spec=spec))
