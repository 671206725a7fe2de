# SPDX-License-Identifier: Apache-2.0
"""Follows the objects of one path for ever: one list, then one stream of events after the other.

The stream is asked to end after five minutes, so that a connection which is dead without a word is found.
After its end the next one goes on from the last version; a version that is too old asks for a list again.
Each failure pauses, longer each time (``pauses``), and only a stream that has lasted ends that row: so no
server makes this loop busy. Nothing is polled. Knows no kind of object.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import anyio

from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.cluster import pauses, refusals
from nodeagent.cluster.contact import Contact, Known
from nodeagent.cluster.kept import Keep, Kept, whole
from nodeagent.cluster.lines import Lines
from nodeagent.cluster.refusals import Expired
from nodeagent.cluster.session import Session, parsed

_ANY_VERSION = "0"  # a list from the server's cache: what is missing in it comes as events


class Resource(NamedTuple):
    """``path`` of a collection, what people call its objects, a field selector, and what is kept of each."""

    path: str
    plural: str
    selector: str = ""
    keep: Keep = whole


class Chance(NamedTuple):
    """``spread``: seconds over which the first requests of many nodes are spread. ``clock``: since 1970."""

    spread: float = 0.0
    random: Callable[[], float] = random.random
    clock: Callable[[], float] = time.time


class Watch:
    """A component that publishes what is ``known`` of one resource."""

    def __init__(self, session: Session, resource: Resource, chance: Chance | None = None) -> None:
        self.name = f"watch of {resource.plural}"
        self._session = session
        self._resource = resource
        self._chance = chance or Chance()
        self._contact = Contact(resource.plural, self._chance.clock)
        self._kept = Kept(resource.keep)
        self._attempt = 0  # failures since a stream has lasted
        self._expired = False  # since then

    @property
    def known(self) -> Latest[Known]:
        """The cell."""
        return self._contact.known

    async def run(self) -> None:
        """Follow, until cancelled."""
        await anyio.sleep(self._chance.spread * self._chance.random())
        while True:
            pause = await self.turn()
            await anyio.sleep(pause)

    async def turn(self) -> float:
        """One list, if one is due, and one stream to its end; the seconds to pause after it."""
        try:
            if self._kept.version is None:
                await self._list()
            return await self._stream()
        except ClusterUnavailable as error:
            return self._failed(error)

    def _failed(self, error: ClusterUnavailable) -> float:
        if isinstance(error, Expired):
            self._kept.expire()
            if not self._expired:
                self._expired = True
                return 0.0  # nothing is wrong: it was away for long, or sends no bookmarks
        self._contact.failed(error)
        attempt, self._attempt = self._attempt, self._attempt + 1
        return pauses.after(error, attempt, self._chance.random(), self._session.timeouts)

    async def _list(self) -> None:
        parameters = self._selected()
        if self._kept.objects is None:
            parameters.append(("resourceVersion", _ANY_VERSION))
        self._kept.replace(await self._session.get(self._resource.path, parameters))
        self._contact.tell(self._kept.objects)
        self._contact.begun()

    async def _stream(self) -> float:
        """Seconds to pause after its end. :raises ClusterUnavailable: if it ends soon, or as none should."""
        timeouts = self._session.timeouts
        lasts = timeouts.watch_stream * (1.0 - self._chance.random() / 5)
        parameters = self._watched(lasts)
        silence = lasts + timeouts.watch_stream_end
        async with self._session.stream(self._resource.path, parameters, silence) as pieces:
            opened = anyio.current_time()
            steady = asyncio.get_running_loop().call_later(timeouts.watch_stream_steady, self._hold)
            try:
                await self._read(pieces)
            finally:
                steady.cancel()
        lasted = anyio.current_time() - opened
        if lasted < timeouts.watch_stream_steady:
            raise refusals.broken_off()
        if lasted > lasts - timeouts.watch_stream_end:
            return 0.0
        return timeouts.watch_restart_spread * self._chance.random()

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        lines = Lines(self._session.most)  # half a line at the end comes again, whole, with the next stream
        async for piece in pieces:
            for line in lines.feed(piece):
                self._kept.apply(parsed(line))
            self._contact.tell(self._kept.objects)

    def _hold(self) -> None:
        """A stream that has lasted so long is a good one."""
        self._attempt, self._expired = 0, False
        self._contact.held()

    def _selected(self) -> list[tuple[str, str]]:
        return [("fieldSelector", self._resource.selector)] if self._resource.selector else []

    def _watched(self, lasts: float) -> list[tuple[str, str]]:
        return [
            *self._selected(),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._kept.version or _ANY_VERSION),
            ("timeoutSeconds", f"{lasts:.0f}"),
        ]
