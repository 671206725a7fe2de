# SPDX-License-Identifier: Apache-2.0
"""A watch of the stand-in API server: events from a version on, bookmarks, and the end that was asked for.

As the real one does, it sends a bookmark every minute and one right before the end. Its faults are those of
``standin``.
"""

from __future__ import annotations

import math

import anyio
from aiohttp import web

from nodeagent.sim.apiserver.requests import Asked, Failure, bookmark, line
from nodeagent.sim.apiserver.store import Store
from nodeagent.sim.faults import Faults

BOOKMARKS = 60.0  # seconds between two
_LAST = 2.0  # seconds before the end for the last one
_LONGEST = 1800.0


class Stream:
    """One watch; ``sent`` counts the bytes of its events."""

    def __init__(self, store: Store, faults: Faults, asked: Asked, response: web.StreamResponse) -> None:
        self._store = store
        self._faults = faults
        self._asked = asked
        self._response = response
        self._version = 0
        self.sent = 0

    async def run(self) -> None:
        """Tell, until the time that was asked for is over, or a fault ends it."""
        plural = self._asked.kind.plural
        if self._faults.get("eof", plural):
            return
        if self._faults.get("expired", plural) or not await self._begin():
            await self._write(line("ERROR", Failure(410, "too old resource version").status))
            return
        if self._faults.get("half-line", plural):
            await self._write(bookmark(self._asked.kind, self._version)[:20])
            return
        await self._follow()

    async def _begin(self) -> bool:
        """Where to begin; False if that is forgotten."""
        version = int(self._asked.query.get("resourceVersion") or 0)
        self._version = version or self._store.version
        if not version:
            for each in self._store.all(self._asked.kind):
                await self._tell("ADDED", each)
        return self._store.since(self._asked.kind, self._version) is not None

    async def _follow(self) -> None:
        lasts = float(self._asked.query.get("timeoutSeconds", _LONGEST))
        end = anyio.current_time() + lasts
        marks = self._asked.query.get("allowWatchBookmarks") == "true"
        mark = min(anyio.current_time() + BOOKMARKS, end - _LAST) if marks else math.inf
        while anyio.current_time() < end or self._hangs:
            seen = self._store.changes.version
            if not self._hangs:
                await self._news()
                if anyio.current_time() >= mark:
                    await self._write(bookmark(self._asked.kind, self._version))
                    mark = math.inf if mark >= end - _LAST else min(mark + BOOKMARKS, end - _LAST)
            limit = math.inf if self._hangs else min(mark, end) - anyio.current_time()
            with anyio.move_on_after(max(limit, 0)):
                await self._store.changes.newer(seen)

    @property
    def _hangs(self) -> bool:
        return bool(self._faults.get("hang", self._asked.kind.plural))

    async def _news(self) -> None:
        for change in self._store.since(self._asked.kind, self._version) or ():
            await self._tell(change.type, change.object)
        self._version = self._store.version

    async def _tell(self, type_: str, given: dict[str, object]) -> None:
        if self._asked.selects(given):
            await self._write(line(type_, given))

    async def _write(self, data: bytes) -> None:
        self.sent += len(data)
        await self._response.write(data)
