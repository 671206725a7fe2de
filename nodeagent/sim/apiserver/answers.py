# SPDX-License-Identifier: Apache-2.0
"""The answers of the stand-in API server, one for each method and path, and what was asked of it.

The order is that of the real one: who asks, what for, then the answer. Its faults are told in ``standin``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import anyio
from aiohttp import web

from nodeagent.sim.apiserver import patches, reviews
from nodeagent.sim.apiserver.requests import Asked, Failure
from nodeagent.sim.apiserver.store import Object, Store
from nodeagent.sim.apiserver.streams import Stream
from nodeagent.sim.faults import Faults

_PATCHES: dict[str, Callable[[Object, object], Object]] = {
    "application/json-patch+json": patches.operate,
    "application/merge-patch+json": patches.merge,
    "application/strategic-merge-patch+json": patches.strategic,
}


class Seen(NamedTuple):
    """One request; ``when`` is the loop's time, ``query`` is as it was sent."""

    when: float
    method: str
    path: str
    query: str
    authorization: str

    @property
    def watches(self) -> bool:
        """True for a watch."""
        return "watch=true" in self.query


@dataclass(slots=True)
class Statistics:
    """What was asked since the object was made, over all restarts."""

    requests: list[Seen] = field(default_factory=list)
    streams: int = 0  # open now
    sent: int = 0  # bytes of bodies


@dataclass(slots=True)
class Refusal:
    """The fault ``status``: that code for the next requests, with Retry-After if it has seconds.

    ``method``, ``namespace``: only for requests of that method, or there; ``message``: what it says.
    """

    code: int
    times: float = float("inf")
    after: int = 0
    method: str = ""
    namespace: str = ""
    message: str = ""

    def meets(self, method: str, namespace: str) -> bool:
        """True if it is for such a request, and not for more of them already."""
        return self.times > 0 and self.method in ("", method) and self.namespace in ("", namespace)


class Answers:
    """``tokens``: who may ask; nobody is refused if it is empty.

    ``denied``: what all of them may not do. ``absent``: groups of the API that nobody has installed.
    """

    def __init__(self, store: Store, faults: Faults) -> None:
        self.statistics = Statistics()
        self.tokens: set[str] = set()
        self.denied: set[reviews.Denied] = set()
        self.absent: set[str] = set()
        self._store = store
        self._faults = faults

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of all requests."""
        authorization = request.headers.get("Authorization", "")
        self.statistics.requests.append(
            Seen(anyio.current_time(), request.method, request.path, request.query_string, authorization)
        )
        self._store.changes.touch()  # for whoever waits for requests
        try:
            return await self._answer(request, authorization)
        except Failure as refused:
            headers = {"Retry-After": str(refused.after)} if refused.after else {}
            return self._json(refused.status, refused.code, headers)

    async def _answer(self, request: web.BaseRequest, authorization: str) -> web.StreamResponse:
        plural = request.path.split("/")[-1]
        await anyio.sleep(self._faults.get("slow", plural) or 0)
        if self.tokens and authorization.removeprefix("Bearer ") not in self.tokens:
            raise Failure(401)
        body = await request.json() if request.can_read_body else None
        itself = reviews.about_itself(request.method, request.path, body, self.denied, self.absent)
        if itself is not None:
            self._fail(plural, request.method)
            itself |= self._faults.get("review", plural) or {}
            return self._json(itself, 201 if request.method == "POST" else 200)
        asked = Asked.of(request.path, request.query)
        self._refuse(asked, request.method)
        if self._faults.get("drop", asked.kind.plural) and request.transport is not None:
            request.transport.abort()
        if self._faults.get("garbage", asked.kind.plural):
            return web.Response(text="<html>not what you think</html>\n", content_type="application/json")
        match request.method, bool(asked.name):
            case "GET", True:
                return self._json(self._found(asked))
            case "GET", False if request.query.get("watch") == "true":
                return await self._watched(request, asked)
            case "GET", False:
                return self._json(self._list(asked))
            case "POST", False:
                return self._json(self._created(asked, body), 201)
            case "PATCH", True:
                return self._json(self._patched(asked, request.content_type, body))
        raise Failure(405)

    def _refuse(self, asked: Asked, method: str) -> None:
        verb, resource = asked.right(method)
        if (verb, resource) in self.denied:
            raise Failure(403, f'{resource} is forbidden: User "{reviews.USER}" cannot {verb} them')
        if reviews.is_absent(asked.kind, self.absent):
            raise Failure(404, "the server could not find the requested resource")
        self._fail(asked.kind.plural, method, asked.namespace)

    def _fail(self, plural: str, method: str, namespace: str = "") -> None:
        refusal = self._faults.get("status", plural)
        if refusal is not None and refusal.meets(method, namespace):
            refusal.times -= 1
            raise Failure(refusal.code, refusal.message, after=refusal.after)

    def _json(self, value: Object, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        body = json.dumps(value, separators=(",", ":")).encode()
        self.statistics.sent += len(body)
        return web.Response(body=body, status=code, content_type="application/json", headers=headers)

    async def _watched(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = Stream(self._store, self._faults, asked, response)
        self._streams(1)
        try:
            await stream.run()
        finally:
            self.statistics.sent += stream.sent
            self._streams(-1)
        return response

    def _streams(self, more: int) -> None:
        self.statistics.streams += more
        self._store.changes.touch()

    def _found(self, asked: Asked) -> Object:
        found = self._store.get(asked.kind, asked.name, asked.namespace)
        if found is None:
            raise Failure(404, f'{asked.kind.plural} "{asked.name}" not found')
        return found

    def _list(self, asked: Asked) -> Object:
        items = [each for each in self._store.all(asked.kind) if asked.selects(each)]
        version = {"resourceVersion": str(self._store.version)}
        return {"apiVersion": asked.kind.api, "kind": f"{asked.kind.name}List"} | {
            "metadata": version,
            "items": items,
        }

    def _created(self, asked: Asked, given: Any) -> Object:
        metadata = given["metadata"] | ({"namespace": asked.namespace} if asked.namespace else {})
        if (
            "name" not in metadata
        ):  # https://kubernetes.io/docs/reference/using-api/api-concepts/#generated-values
            metadata["name"] = f"{metadata['generateName']}{self._store.version:x}"
        if self._store.get(asked.kind, metadata["name"], asked.namespace) is not None:
            raise Failure(409, f'{asked.kind.plural} "{metadata["name"]}" already exists')
        return self._store.put(asked.kind, given | {"metadata": metadata})

    def _patched(self, asked: Asked, kind: str, patch: object) -> Object:
        old = self._found(asked)
        try:
            new = _PATCHES[kind](old, patch)
        except KeyError:
            raise Failure(415, f"patches of the kind {kind} are not understood here") from None
        except patches.Unpatchable as error:
            raise Failure(422, str(error)) from error
        if asked.of_status:
            new = old | {"status": new.get("status", {})}  # nothing else can be changed there
        return self._store.put(asked.kind, new)
