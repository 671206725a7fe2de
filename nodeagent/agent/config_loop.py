# SPDX-License-Identifier: Apache-2.0
"""Reads the settings from flags, environment and files, and reads them again when a file changes.

Files that the configuration names are also read again. If a file is invalid, the last valid settings stay in
force and the error is logged; everything is read again periodically until it is valid, since the cause may be
in any file. ``SpecMerger`` merges the settings with the KubeVirt CR and the labels of the Node. If the
settings have not changed, no reader is woken.
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
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.status import ConfigurationStatus
from nodeagent.policy import merge


class ConfigLoop:
    """Publishes the settings in force. ``problem``: why newer settings were rejected."""

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
        """Watch the files from now on. ``set_log`` is called with changed log settings.

        ``refused``: why the last valid settings are in force instead of the files.
        """
        self.settings = settings
        self.problem = None if refused is None else _describe(refused)
        self.read: Latest[int] = Latest(0)  # the number of finished reads
        self._sources = sources
        self._timeouts = timeouts
        self._watcher = watcher
        self._set_log = set_log
        self._wake: Latest[None] = Latest(None)
        self._status = ConfigurationStatus(since=time.time(), refused=int(refused is not None))
        self._begun = 0  # the number of started reads
        if self._watcher.watch_only(settings.get().watched, self._on_change, contents=True):
            self.wake()  # for changes between the read and the watch

    @property
    def status(self) -> ConfigurationStatus:
        """When these settings came into force, and why newer ones are not in force."""
        return self._status._replace(problem=self.problem)

    def wake(self) -> None:
        """Read the configuration again soon (on SIGHUP)."""
        self._wake.touch()

    async def run(self) -> None:
        """Read the settings again whenever a file has changed, for ever."""
        seen = 0  # includes changes between the first read and now
        while True:
            limit = self._timeouts.refused_config_retry if self.problem is not None else None
            with anyio.move_on_after(limit):
                seen, _ = await self._wake.newer(seen)
            seen = await self._quiet(seen)
            self._begun += 1
            await self.one_turn()
            self.read.set(self._begun)

    async def reload(self) -> None:
        """Read the configuration again, and wait for the end of a read that starts after this call."""
        wanted = self._begun + 1
        self.wake()
        while self.read.get() < wanted:
            await self.read.newer(self.read.version)

    async def one_turn(self) -> None:
        """Read the configuration once; keep the present one if the new one is invalid."""
        try:
            fresh = await threads.call(config.load, self._sources)
        except ConfigError as error:
            self._refuse(error)
            return
        self._take(fresh)
        if self._watcher.watch_only(fresh.watched, self._on_change, contents=True):
            self.wake()  # for changes before the watch

    async def _quiet(self, seen: int) -> int:
        """Wait until no file has changed for a moment; return the version number of the last change."""
        while True:
            with anyio.move_on_after(self._timeouts.config_burst_gap):
                seen, _ = await self._wake.newer(seen)
                continue
            return seen

    def _take(self, fresh: Settings) -> None:
        """Put new settings into force, and log the changed ones."""
        before = self.settings.get()
        if self.settings.set(fresh):
            self._status = self._status._replace(generation=self._status.generation + 1, since=time.time())
        for warning in fresh.warnings:
            if warning not in before.warnings:
                log.event(log.CONFIG_WARNING, text=warning)
        if fresh.log != before.log:
            self._set_log(fresh.log)
        changed = _changed(before, fresh)
        if self.problem is not None:
            self.problem = None
            text = "the new settings are in force" if changed else "no setting has changed"
            log.event(log.CONFIG_VALID, text=text)
        if changed:
            log.event(log.CONFIG_RELOADED, changed=", ".join(changed))

    def _refuse(self, error: ConfigError) -> None:
        problem = _describe(error)
        if self.problem != problem:
            log.event(log.CONFIG_REFUSED, error=error.what, hint=f"{error.hint}{config.more(error)}")
            self._status = self._status._replace(refused=self._status.refused + 1)
        self.problem = problem

    def _on_change(self, _: Change) -> None:
        self._wake.touch()


def _describe(error: ConfigError) -> Problem:
    """Return the first configuration error as a Problem, whose hint also contains the other errors."""
    first, _, rest = error.lines().partition("\n")
    return wrong(ProblemCode.CONFIGURATION, "", first, rest)


def _changed(before: Settings, fresh: Settings) -> list[str]:
    """The keys of changed settings, each with a note if the change has an unexpected effect."""
    both = zip(before.values, fresh.values, strict=True)
    keys = [new.key for old, new in both if old.value != new.value]
    return [key + config.BY_KEY[key].note(" (", ")") for key in keys]


class LastGood:
    """Saves the settings in force to disk: a daemon that starts with an invalid file uses them."""

    name = "last good settings"

    def __init__(self, root: Root, settings: Latest[Settings], again: float) -> None:
        """``again``: seconds from a failed write to the next attempt."""
        self._root = root
        self._settings = settings
        self._again = again
        self._refused = False

    async def run(self) -> None:
        """Save the settings when they change, and retry after a failed write, for ever."""
        while True:
            seen = self._settings.version
            await self.one_turn(self._settings.get())
            with anyio.move_on_after(self._again if self._refused else None):
                await self._settings.newer(seen)

    async def one_turn(self, settings: Settings) -> None:
        """Save the settings if the file differs; a failure is logged once."""
        try:
            await threads.call(last_good.keep, self._root.prefix, settings)
        except KernelRefused as error:
            if not self._refused:
                log.event(log.CONFIG_NOT_SAVED, error=error.what, hint=error.hint)
            self._refused = True
        else:
            self._refused = False


class SpecMerger:
    """Merges the settings and the cluster's configuration into ``Snapshot.spec``, as its only writer."""

    name = "spec"

    def __init__(
        self, settings: Latest[Settings], cluster: Latest[ClusterConfig], snapshots: Snapshots
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._snapshots = snapshots

    async def run(self) -> None:
        """Merge and publish now, and whenever the settings or the cluster's configuration change."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._cluster.follow, lambda _: self._publish(), name="cluster")
            group.start_soon(self._settings.follow, lambda _: self._publish(), name="settings")

    def _publish(self) -> None:
        cr, labels = self._cluster.get()
        spec = merge.merge(self._settings.get().configuration, cr, labels)
        self._snapshots.publish(replace(self._snapshots.now, spec=spec))
