# SPDX-License-Identifier: Apache-2.0
"""Puts on disk what was heard of the cluster, after it is in force: nobody waits for the disk.

A write that fails is tried again; one that hangs holds up the next write, and nothing else. What it keeps it
does not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio

from nodeagent.agent.cluster import record
from nodeagent.agent.cluster.record import Record
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.latest import Latest


class Keeper:
    """The one writer of the file. ``saved`` is what is in it, ``unsaved`` why what was heard since is not."""

    def __init__(self, path: str, changed: Callable[[], None], again: float) -> None:
        """``changed`` is called when ``saved`` or ``unsaved`` changes.

        ``again``: seconds from a refusal to the next try.
        """
        self._again = again
        self.saved = Record()
        self.unsaved = ""
        self._path = path
        self._changed = changed
        self._wanted: Latest[Record] = Latest(self.saved)

    async def load(self) -> Record:
        """What was heard before this life: what has not got to disk then is news once more."""
        self.saved = await threads.call(record.FILE.load, self._path)
        self._wanted.set(self.saved)
        return self.saved

    def keep(self, kubevirt: Mapping[str, Any] | None, labels: Mapping[str, str] | None) -> None:
        """Have this on disk soon, if it is not there."""
        wanted = self._wanted.get()
        if (kubevirt, labels) != (wanted.kubevirt, wanted.labels):
            self._wanted.set(Record(kubevirt, labels, time.time()))

    async def run(self) -> None:
        """Write whatever is to be kept, for ever."""
        seen = -1
        while True:
            with anyio.move_on_after(self._again if self.unsaved else None):
                seen, _ = await self._wanted.newer(seen)
            await self._write(self._wanted.get())

    async def _write(self, now: Record) -> None:
        if (now.kubevirt, now.labels) == (self.saved.kubevirt, self.saved.labels):
            if self.unsaved:  # it was another one for a while
                self.unsaved = ""
                self._changed()
            return
        try:
            await threads.call(record.FILE.save, self._path, now)
        except KernelRefused as error:
            unsaved = f"what the cluster says is not kept for a reboot: {error.what}"
            if unsaved != self.unsaved:
                log.event(log.CLUSTER_NOT_KEPT, error=error.what, hint=error.hint)
            self.unsaved = unsaved
        else:
            self.saved, self.unsaved = now, ""
        self._changed()
