# SPDX-License-Identifier: Apache-2.0
"""Watches a collection of objects: one list request, then one event stream after another. Nothing is polled.

The client requests the server to end each stream after five minutes, so a dead connection is detected. The
next stream continues from the last resource version; if that is too old, the objects are listed again. After
each failure the pause grows, until a stream has lasted for a while; so a failing server gets few requests.
After a failure the last known objects stay available. ``agent.cluster.follow`` uses this module and
interprets the objects.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import anyio

from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.cluster import api
from nodeagent.cluster.api import Expired, Object, Session, TooLarge

_ANY_VERSION = "0"  # a list from the server's cache; the stream adds objects that it lacks

Trim = Callable[[Object], Object]


def without_managed_fields(document: Object) -> Object:
    """Return the object without its ``managedFields``, which need much memory."""
    metadata = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
    return document | {"metadata": metadata}


class Resource(NamedTuple):
    """A collection to watch: its URL ``path``, the plural of its kind for messages, and a field selector.

    ``trim`` returns the part of an object that is stored; a change of any other part causes no notification.
    """

    path: str
    plural: str
    selector: str = ""
    trim: Trim = without_managed_fields


@dataclass(frozen=True, slots=True)
class WatchState:
    """The state of a watch of the API server. ``objects`` are the watched objects by ``namespace/name``; None
    before the first response.

    ``answers``: whether the API server answers, so that the objects are current; None before the first
    request. ``at`` is the time when ``answers`` last changed, in seconds since 1970. ``error`` and ``hint``
    explain a failure.
    """

    objects: Mapping[str, Object] | None = None
    answers: bool | None = None
    at: float = 0.0
    error: str = ""
    hint: str = ""


class Watch:
    """A component that publishes the ``state`` of one watch."""

    def __init__(
        self,
        session: Session,
        resource: Resource,
        spread: float = 0.0,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the watch; the first requests of many nodes are spread over ``spread`` seconds."""
        self.name = f"watch of {resource.plural}"
        self.state: Latest[WatchState] = Latest(WatchState())
        self._session = session
        self._resource = resource
        self._spread = spread
        self._jitter = jitter
        self._clock = clock
        self._store = Store(resource.trim)
        self._failures = 0  # since a stream has lasted long enough
        self._expired = False  # failures since then
        self._logged_hints: set[str] = set()  # failures since the last response

    async def run(self) -> None:
        """Watch until cancelled."""
        await anyio.sleep(self._spread * self._jitter())
        while True:
            pause = await self._list_and_stream()
            await anyio.sleep(pause)

    async def _list_and_stream(self) -> float:
        """List the objects if needed, then read one stream to its end; return the seconds to pause."""
        try:
            if self._store.version is None:
                await self._list()
            return await self._stream()
        except Expired as error:
            self._store.version = None
            if self._expired:
                return self._note_failure(error)
            self._expired = True
            return 0.0  # no failure: the connection was down for long, or the server sends no bookmarks
        except ClusterUnavailable as error:
            return self._note_failure(error)

    async def _list(self) -> None:
        parameters = self._selector()
        if self._store.objects is None:
            parameters.append(("resourceVersion", _ANY_VERSION))
        self._store.replace(await self._session.get(self._resource.path, parameters))
        self._publish_objects()
        # after a failure, only a stream that lasts long enough resets the back-off
        if self.state.get().answers is None:
            self._set_answers(answers=True)

    async def _stream(self) -> float:
        """Return the seconds to pause after the end of a stream.

        :raises ClusterUnavailable: if it ends too soon.
        """
        timeouts = self._session.timeouts
        lasts = timeouts.watch_stream * (1.0 - self._jitter() / 5)
        parameters = [
            *self._selector(),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._store.version or _ANY_VERSION),
            ("timeoutSeconds", f"{lasts:.0f}"),
        ]
        silence = lasts + timeouts.watch_stream_end
        async with self._session.stream(self._resource.path, parameters, silence) as pieces:
            opened = anyio.current_time()
            steady = asyncio.get_running_loop().call_later(
                timeouts.watch_stream_steady, self._note_lasting_stream
            )
            try:
                await self._read(pieces)
            finally:
                steady.cancel()
        lasted = anyio.current_time() - opened
        if lasted < timeouts.watch_stream_steady:
            raise ClusterUnavailable("the API server ends each stream of events at once")
        if lasted > lasts - timeouts.watch_stream_end:
            return 0.0
        return timeouts.watch_restart_spread * self._jitter()

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        buffer = LineBuffer(self._session.max_answer)  # the next stream repeats an event that was cut off
        async for piece in pieces:
            for line in buffer.feed(piece):
                self._store.apply(api.parse(line))
            self._publish_objects()

    def _selector(self) -> list[tuple[str, str]]:
        return [("fieldSelector", self._resource.selector)] if self._resource.selector else []

    # The state, and the log

    def _publish_objects(self) -> None:
        self.state.set(replace(self.state.get(), objects=self._store.objects))

    def _note_lasting_stream(self) -> None:
        self._failures, self._expired = 0, False
        if not self.state.get().answers:
            if self._logged_hints:
                log.event(log.CLUSTER_WATCH_RECOVERED, object=self._resource.plural)
                self._logged_hints.clear()
            self._set_answers(answers=True)

    def _note_failure(self, error: ClusterUnavailable) -> float:
        """Log the first failure, and each later failure with a new hint; return the seconds to pause."""
        if error.hint not in self._logged_hints and (error.hint or not self._logged_hints):
            log.event(
                log.CLUSTER_WATCH_FAILED, object=self._resource.plural, error=error.what, hint=error.hint
            )
            self._logged_hints.add(error.hint)
        if self.state.get().answers is not False:
            self._set_answers(answers=False)
        self.state.set(replace(self.state.get(), error=error.what, hint=error.hint))
        self._failures += 1
        return api.retry_delay(error, self._failures - 1, self._jitter(), self._session.timeouts)

    def _set_answers(self, *, answers: bool) -> None:
        self.state.set(WatchState(self.state.get().objects, answers, self._clock()))


class Store:
    """The objects and their resource version; None if a list request is needed first. Does no I/O.

    Of objects from the server, only names and versions are checked.
    """

    def __init__(self, trim: Trim) -> None:
        self.version: str | None = None
        self.objects: Mapping[str, Object] | None = None
        self._trim = trim

    def replace(self, answer: Object) -> None:
        """Store a list.

        :raises ClusterUnavailable: if the response is not a list; the store is then unchanged.
        """
        version = _version(answer)
        self.objects = {key: self._trim(each) for key, each in by_key(answer).items()}
        self.version = version

    def apply(self, event: Object) -> None:
        """Apply one event of the watch stream to the stored objects.

        :raises Expired: if the event reports that the version is too old.
        :raises ClusterUnavailable: if the event reports another error, or is invalid.
        """
        kind, given = event.get("type"), event.get("object")
        if not isinstance(given, dict):
            raise api.unreadable("an event without an object")
        if kind == "ERROR":
            code, text = given.get("code"), str(given.get("message", "")).encode()
            raise api.error_of_status("a watch", code if isinstance(code, int) else 0, text)
        version = _version(given)
        if kind in ("ADDED", "MODIFIED"):
            self.objects = {**(self.objects or {}), _key(given): self._trim(given)}
        elif kind == "DELETED":
            deleted = _key(given)
            self.objects = {key: each for key, each in (self.objects or {}).items() if key != deleted}
        elif kind != "BOOKMARK":
            raise api.unreadable("an event of an unknown type")
        self.version = version


def by_key(answer: Object) -> dict[str, Object]:
    """Return the objects of a list by ``namespace/name``.

    :raises ClusterUnavailable: if the response is not a list.
    """
    items = answer.get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise api.unreadable("no list of objects")
    return {_key(item): item for item in items}


def _key(given: Object) -> str:
    """Return ``namespace/name``, or ``name``."""
    metadata = _metadata(given)
    name, namespace = metadata.get("name"), metadata.get("namespace", "")
    if not (isinstance(name, str) and name and isinstance(namespace, str)):
        raise api.unreadable("an object without a name")
    return f"{namespace}/{name}" if namespace else name


def _version(given: Object) -> str:
    version = _metadata(given).get("resourceVersion")
    if not (isinstance(version, str) and version):
        raise api.unreadable("an object without a version")
    return version


def _metadata(given: Object) -> dict[str, Any]:
    metadata = given.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


class LineBuffer:
    """Splits the chunks of a stream into lines of limited length. Does no I/O."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()  # the incomplete last line

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Return the non-empty lines that end in this chunk, without their line ends.

        :raises TooLarge: if a line is longer than the limit; the stream cannot be used after that.
        """
        *ended, rest = piece.split(b"\n")
        for end in ended:
            self._add(end)
            line = bytes(self._begun)
            self._begun.clear()
            if line:
                yield line
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if len(self._begun) + len(part) > self._limit:
            raise TooLarge("an event of the API server", self._limit)
        self._begun += part
