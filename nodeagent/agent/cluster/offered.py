# SPDX-License-Identifier: Apache-2.0
"""The names of all resources that we have ever offered on this node, on disk; and what is kept of the Node.

Only they can be stale. The list is bounded: of more the oldest are forgotten. What cannot be written counts
until the daemon ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

import anyio

from nodeagent.agent.cluster import record
from nodeagent.agent.core import Core
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.files import StateFile
from nodeagent.cluster import capacities
from nodeagent.cluster.session import Object

PATH = "/var/lib/nodeagent/offered.json"
MOST = 256


def _names(document: dict[str, Any]) -> tuple[str, ...]:
    names = tuple(document["names"])
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is a text")
    return names


FILE: StateFile[tuple[str, ...]] = StateFile(
    (),
    _names,
    lambda names: {"names": names},
    "without it nobody knows after a restart which resources of the Node were offered here once",
    log.CLUSTER_RECORD_BROKEN,
)


class Offered:
    """The one writer of the file; ``names`` has the oldest first."""

    def __init__(self, core: Core) -> None:
        self.names: tuple[str, ...] = ()
        self._core = core
        self._path = core.root.path(PATH)
        self._loading = anyio.Lock()
        self._saved: tuple[str, ...] | None = None  # None: not read yet

    @property
    def mode(self) -> str:
        """What is to become of stale resources: report, remove, off."""
        return self._core.settings.get().cluster.stale_resources

    async def load(self) -> None:
        """Know what a daemon before this one has offered; once."""
        async with self._loading:
            if self._saved is None:
                self._saved = await threads.call(FILE.load, self._path)
                self.names = merged(self._saved, self.names)

    async def learn(self, now: Iterable[str]) -> None:
        """These are offered now."""
        await self.load()
        self.names = merged(self.names, now)
        if self.names != self._saved:
            with suppress(KernelRefused):  # said of the record beside it, which is written as well
                await threads.call(FILE.save, self._path, self.names)
            self._saved = self.names

    def of_node(self, document: Object) -> dict[str, Any]:
        """What is kept of the Node: who it is, and the counts of what was offered here, if that matters."""
        kept = record.of_node(document)
        counts = {} if self.mode == "off" else capacities.of_node(document, self.names)
        return kept | {"status": kept.get("status", {}) | counts} if counts else kept


def merged(before: Collection[str], now: Iterable[str]) -> tuple[str, ...]:
    """All names, each once, the newest last; no more than are kept. Pure."""
    new = tuple(dict.fromkeys(now))
    return (*(name for name in before if name not in new), *sorted(new))[-MOST:]
