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
from nodeagent.base import log, sealed, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.cluster import capacities
from nodeagent.cluster.session import Object

PATH = "/var/lib/nodeagent/offered.json"
MOST = 256
_HINT = "without it nobody knows after a restart which resources of the Node were offered here once"


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
                self._saved = await threads.call(_read, self._path)
                self.names = merged(self._saved, self.names)

    async def learn(self, now: Iterable[str]) -> None:
        """These are offered now."""
        await self.load()
        self.names = merged(self.names, now)
        if self.names != self._saved:
            with suppress(KernelRefused):  # said of the record beside it, which is written as well
                await threads.call(sealed.write, self._path, {"names": self.names}, _HINT)
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


def _read(path: str) -> tuple[str, ...]:
    """What is on record; nothing, and a line in the log, if that is damaged. Blocks."""
    try:
        names = (sealed.look(path) or {}).get("names", ())
    except sealed.Broken as error:
        sealed.set_aside(path)
        log.event(log.CLUSTER_RECORD_BROKEN, error=str(error))
        return ()
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()
