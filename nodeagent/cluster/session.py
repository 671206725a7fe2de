# SPDX-License-Identifier: Apache-2.0
"""One client of the API server: plain paths and dicts, bounded in time and size, with one kind of error.

Each answer is read up to a limit, and what a foreign server says is cut short before anyone is shown it.
Knows no kind of object and keeps nothing; to try again is the caller's business.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

import anyio

from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import client, door, refusals
from nodeagent.cluster.client import Current
from nodeagent.cluster.credentials import Credentials
from nodeagent.cluster.refusals import TooLarge

Object = dict[str, Any]
Parameters = Sequence[tuple[str, str]]

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
MOST = 4 * 2**20  # bytes of one answer; etcd takes objects of 1.5 MiB


@dataclass(slots=True)
class Traffic:
    """What was asked, and how many bytes of bodies were read, since the session was made."""

    requests: int = 0
    received: int = 0


class _Request(NamedTuple):
    method: str
    path: str
    parameters: Parameters = ()
    body: Any = None
    kind: str = "application/json"

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Session:
    """The client, while the context lasts; what it raises is ``ClusterUnavailable`` alone."""

    def __init__(self, credentials: Credentials, timeouts: Timeouts, *, most: int = MOST) -> None:
        self.traffic = Traffic()
        self.most = most
        self.timeouts = timeouts
        self._current = Current(credentials, timeouts.credential_program)

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._current.close()

    async def get(self, path: str, parameters: Parameters = ()) -> Object:
        """The object or the list of that path. :raises ClusterUnavailable: if there is no answer."""
        return await self._answer(_Request("GET", path, parameters))

    async def patch(self, path: str, body: Any, kind: str = JSON_PATCH) -> Object:
        """The object after the patch. :raises ClusterUnavailable: if it was not taken, as far as is known."""
        return await self._answer(_Request("PATCH", path, body=body, kind=kind))

    async def create(self, path: str, body: Object) -> Object:
        """The object as it was made. :raises ClusterUnavailable: if it was not made, as far as is known."""
        return await self._answer(_Request("POST", path, body=body))

    @asynccontextmanager
    async def stream(
        self, path: str, parameters: Parameters, silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of an answer without an end, until the server is silent for that many seconds.

        :raises ClusterUnavailable: if it does not begin soon, breaks off, or is silent for too long.
        """
        request = _Request("GET", path, parameters)
        with client.understood(str(request)):
            with anyio.fail_after(self.timeouts.api_connect + self.timeouts.api_silence):
                response = await self._ask(request, silence)
            try:
                yield self._pieces(response)
            finally:
                response.close()

    async def _answer(self, request: _Request) -> Object:
        with client.understood(str(request)), anyio.fail_after(self.timeouts.api_answer):
            response = await self._ask(request, self.timeouts.api_silence)
            try:
                text = await self._text(request, response)
            finally:
                response.close()  # one that was read to its end has given its connection back before
        return parsed(text)

    async def _ask(self, request: _Request, silence: float) -> Any:
        async with self._current.use() as used:
            self.traffic.requests += 1
            try:
                response = await used.call_api(
                    request.path,
                    request.method,
                    query_params=list(request.parameters),
                    header_params={"Content-Type": request.kind, "Accept": "application/json"},
                    body=request.body,
                    auth_settings=["BearerToken"],  # without it no Authorization header is sent
                    _preload_content=False,
                    _request_timeout=(self.timeouts.api_connect, silence),
                )
            except door.kubernetes().tls_errors:
                self._current.drop(used)  # another certificate may be in place by now
                raise
            if response.status < 300:
                return response
            text = await response.content.read(refusals.MOST)
            response.close()
            if response.status == refusals.UNAUTHORIZED:
                self._current.drop(used)  # the next request reads the credentials again
        after = response.headers.get("Retry-After", "")
        raise refusals.of(str(request), response.status, text, after)

    async def _text(self, request: _Request, response: Any) -> bytes:
        pieces, size = [], 0
        async for piece in self._pieces(response):
            pieces.append(piece)
            size += len(piece)
            if size > self.most:
                raise TooLarge(f"the answer to {request}", self.most)
        return b"".join(pieces)

    async def _pieces(self, response: Any) -> AsyncIterator[bytes]:
        async for piece in response.content.iter_any():
            self.traffic.received += len(piece)
            yield piece


def parsed(text: bytes) -> Object:
    """A JSON object. :raises ClusterUnavailable: if it is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refusals.unreadable("no JSON") from error
    if not isinstance(value, dict):
        raise refusals.unreadable("no JSON object")
    return value
