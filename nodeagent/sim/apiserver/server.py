# SPDX-License-Identifier: Apache-2.0
"""A fake API server for the tests and the demo: real HTTP or HTTPS on a loopback port.

It lists, watches, gets, creates, replaces, patches and deletes objects of a few kinds as the real one does,
requires a token if any is configured, records the requests, and can misbehave (``faults``). Tests and the
demo change objects with the methods of ``store``. A request is processed in the order of a real API server:
authentication, authorization, response. ``slices`` validates ResourceSlices.
"""

from __future__ import annotations

import json
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import anyio
from aiohttp import web

from nodeagent.sim.apiserver.requests import (
    USER,
    ApiError,
    ApiRequest,
    Denied,
    answer_about_server,
    bookmark,
    is_absent,
    line,
)
from nodeagent.sim.apiserver.slices import admit_slice
from nodeagent.sim.apiserver.store import (
    RESOURCE_SLICES,
    Object,
    Store,
    Unpatchable,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
)
from nodeagent.sim.faults import Faults

_END = 0.05  # seconds that request handlers get at a stop
BOOKMARKS = 60.0  # seconds between two bookmarks of a watch
_LAST = 2.0  # seconds between the last bookmark and the end of a watch
_LONGEST = 1800.0
_PATCHES: dict[str, Callable[[Object, object], Object]] = {
    "application/json-patch+json": apply_json_patch,
    "application/merge-patch+json": apply_merge_patch,
    "application/strategic-merge-patch+json": apply_strategic_patch,
}


class RequestRecord(NamedTuple):
    """One request; ``when`` is on the event loop's clock, ``query`` is the unparsed query."""

    when: float
    method: str
    path: str
    query: str
    authorization: str

    @property
    def watches(self) -> bool:
        """Return True if the request is a watch."""
        return "watch=true" in self.query


@dataclass(slots=True)
class Statistics:
    """The requests since the object was created, over all restarts."""

    requests: list[RequestRecord] = field(default_factory=list)
    streams: int = 0  # currently open watches
    sent: int = 0  # bytes of response bodies


@dataclass(slots=True)
class Refusal:
    """The fault ``status``: an HTTP status for the next requests, with Retry-After if ``seconds`` is set.

    ``method`` and ``namespace`` limit the fault to matching requests; ``message`` is the text in the Status.
    """

    code: int
    times: float = float("inf")
    after: int = 0
    method: str = ""
    namespace: str = ""
    message: str = ""

    def meets(self, method: str, namespace: str) -> bool:
        """Return True if the fault applies to the request, and its number of requests is not used up."""
        return self.times > 0 and self.method in ("", method) and self.namespace in ("", namespace)


class FakeApiServer:
    """A fake API server, used as an async context manager that starts and stops it.

    ``tokens``: the accepted tokens; if empty, all tokens are accepted. ``denied``: verbs and resources that
    all users are denied ("patch", "nodes/status"). ``absent``: API groups that are not installed.

    A fault affects all kinds (``name``) or one (``name:plural``): ``status`` (a ``Refusal``), ``garbage``,
    ``drop`` (close the connection without a response), ``slow`` (seconds before each response); for watches
    only: ``eof`` (at once), ``half-line``, ``expired`` (an ERROR event of 410), ``hang`` (send nothing
    more); for reviews: ``review`` (fields that replace those of the response); for ResourceSlices:
    ``gates`` (names of disabled feature gates, whose fields are dropped).
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.store = Store()
        self.faults = Faults(self.store.changes)
        self.statistics = Statistics()
        self.tokens: set[str] = set()
        self.denied: set[Denied] = set()
        self.absent: set[str] = set()
        self._tls = tls
        self._port = 0
        self._runner: web.ServerRunner | None = None

    async def __aenter__(self) -> FakeApiServer:
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.stop()

    @property
    def url(self) -> str:
        """Return the URL, which stays the same after a restart."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; after a restart, on the same port as before."""
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(server, shutdown_timeout=_END)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close all connections and stop listening; objects and versions are kept."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def kubeconfig(self, path: Path, token: str = "", authority: str = "") -> str:
        """Write a kubeconfig for this server and return its path; ``authority`` is the trusted
        certificate's path.
        """
        cluster = {"server": self.url} | ({"certificate-authority": authority} if authority else {})
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": token} if token else {}}],
        }
        path.write_text(json.dumps(config))
        return str(path)

    async def until(self, predicate: Callable[[], bool], timeout: float = 5.0) -> None:  # noqa: ASYNC109 (as FakeKubelet.until)
        """Wait until the predicate holds; it is evaluated after each request or change.

        :raises TimeoutError: after ``timeout`` seconds.
        """
        with anyio.fail_after(timeout):
            while True:
                seen = self.store.changes.version
                if predicate():
                    return
                await self.store.changes.newer(seen)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        authorization = request.headers.get("Authorization", "")
        self.statistics.requests.append(
            RequestRecord(
                anyio.current_time(), request.method, request.path, request.query_string, authorization
            )
        )
        self.store.changes.touch()  # wakes the tasks that wait in ``until``
        try:
            return await self._answer(request, authorization)
        except ApiError as refused:
            headers = {"Retry-After": str(refused.after)} if refused.after else {}
            return self._json(refused.status, refused.code, headers)

    async def _answer(self, request: web.BaseRequest, authorization: str) -> web.StreamResponse:
        plural = request.path.split("/")[-1]
        await anyio.sleep(self.faults.get("slow", plural) or 0)
        if self.tokens and authorization.removeprefix("Bearer ") not in self.tokens:
            raise ApiError(401)
        body = await request.json() if request.can_read_body else None
        itself = answer_about_server(request.method, request.path, body, self.denied, self.absent)
        if itself is not None:
            self._fail(plural, request.method)
            itself |= self.faults.get("review", plural) or {}
            return self._json(itself, 201 if request.method == "POST" else 200)
        target = ApiRequest.parse(request.path, request.query)
        self._refuse(target, request.method)
        if self.faults.get("drop", target.kind.plural) and request.transport is not None:
            request.transport.abort()
        if self.faults.get("garbage", target.kind.plural):
            return web.Response(text="<html>not what you think</html>\n", content_type="application/json")
        match request.method, bool(target.name):
            case "GET", True:
                return self._json(self._find(target))
            case "GET", False if request.query.get("watch") == "true":
                return await self._watch(request, target)
            case "GET", False:
                return self._json(self._list(target))
            case "POST", False:
                return self._json(self._create(target, body), 201)
            case "PATCH", True:
                return self._json(self._patch(target, request.content_type, body))
            case "PUT", True:
                return self._json(self._replace(target, body))
            case "DELETE", True:
                return self._json(self._delete(target, body or {}))
        raise ApiError(405)

    def _refuse(self, target: ApiRequest, method: str) -> None:
        verb, resource = target.verb_and_resource(method)
        if (verb, resource) in self.denied:
            raise ApiError(403, f'{resource} is forbidden: User "{USER}" cannot {verb} them')
        if is_absent(target.kind, self.absent):
            raise ApiError(404, "the server could not find the requested resource")
        self._fail(target.kind.plural, method, target.namespace)

    def _fail(self, plural: str, method: str, namespace: str = "") -> None:
        refusal = self.faults.get("status", plural)
        if refusal is not None and refusal.meets(method, namespace):
            refusal.times -= 1
            raise ApiError(refusal.code, refusal.message, after=refusal.after)

    def _json(self, value: Object, code: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        body = json.dumps(value, separators=(",", ":")).encode()
        self.statistics.sent += len(body)
        return web.Response(body=body, status=code, content_type="application/json", headers=headers)

    async def _watch(self, request: web.BaseRequest, target: ApiRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        stream = _Watch(self.store, self.faults, target, response)
        self._count_stream(1)
        try:
            await stream.run()
        finally:
            self.statistics.sent += stream.sent
            self._count_stream(-1)
        return response

    def _count_stream(self, more: int) -> None:
        self.statistics.streams += more
        self.store.changes.touch()

    def _find(self, target: ApiRequest) -> Object:
        found = self.store.get(target.kind, target.name, target.namespace)
        if found is None:
            raise ApiError(404, f'{target.kind.plural} "{target.name}" not found')
        return found

    def _list(self, target: ApiRequest) -> Object:
        items = [each for each in self.store.all(target.kind) if target.selects(each)]
        version = {"resourceVersion": str(self.store.version)}
        return {"apiVersion": target.kind.api, "kind": f"{target.kind.name}List"} | {
            "metadata": version,
            "items": items,
        }

    def _create(self, target: ApiRequest, given: Any) -> Object:
        metadata = given["metadata"] | ({"namespace": target.namespace} if target.namespace else {})
        if "name" not in metadata:  # kubernetes.io/docs/reference/using-api/api-concepts/#generated-values
            metadata["name"] = f"{metadata['generateName']}{self.store.version:x}"
        if self.store.get(target.kind, metadata["name"], target.namespace) is not None:
            raise ApiError(409, f'{target.kind.plural} "{metadata["name"]}" already exists')
        if target.query.get("dryRun") == "All" and target.kind is RESOURCE_SLICES:
            return admit_slice(given, None, self.faults.get("gates", target.kind.plural) or ())
        return self._put(target, given | {"metadata": metadata})

    def _replace(self, target: ApiRequest, given: Any) -> Object:
        old = self._find(target)
        self._check_version(old, given["metadata"].get("resourceVersion"))
        return self._put(target, given, old)

    def _delete(self, target: ApiRequest, options: Any) -> Object:
        old = self._find(target)
        self._check_version(old, options.get("preconditions", {}).get("resourceVersion"))
        self.store.delete(target.kind, target.name, target.namespace)
        return old

    def _check_version(self, old: Object, version: str | None) -> None:
        if version not in (None, old["metadata"]["resourceVersion"]):
            raise ApiError(
                409, "the object has been modified; please apply your changes to the latest version"
            )

    def _put(self, target: ApiRequest, new: Object, old: Object | None = None) -> Object:
        if target.kind is RESOURCE_SLICES:
            new = admit_slice(new, old, self.faults.get("gates", target.kind.plural) or ())
        return self.store.put(target.kind, new)

    def _patch(self, target: ApiRequest, kind: str, patch: object) -> Object:
        old = self._find(target)
        try:
            new = _PATCHES[kind](old, patch)
        except KeyError:
            raise ApiError(415, f"patches of the kind {kind} are not understood here") from None
        except Unpatchable as error:
            raise ApiError(422, str(error)) from error
        if target.of_status:
            new = old | {"status": new.get("status", {})}  # the status subresource changes nothing else
        return self._put(target, new, old)


class _Watch:
    """Sends watch events from a version on, with bookmarks: one a minute, and one just before the end.

    ``sent`` counts the bytes of the events.
    """

    def __init__(
        self, store: Store, faults: Faults, target: ApiRequest, response: web.StreamResponse
    ) -> None:
        self._store = store
        self._faults = faults
        self._target = target
        self._response = response
        self._version = 0
        self.sent = 0

    async def run(self) -> None:
        """Send watch events until the requested time is over, or a fault ends the watch."""
        plural = self._target.kind.plural
        if self._faults.get("eof", plural):
            return
        if self._faults.get("expired", plural) or not await self._begin():
            await self._write(line("ERROR", ApiError(410, "too old resource version").status))
            return
        if self._faults.get("half-line", plural):
            await self._write(bookmark(self._target.kind, self._version)[:20])
            return
        await self._follow()

    async def _begin(self) -> bool:
        """Send all objects if no version was requested; return False if the events since the version are
        compacted.
        """
        version = int(self._target.query.get("resourceVersion") or 0)
        self._version = version or self._store.version
        if not version:
            for each in self._store.all(self._target.kind):
                await self._send("ADDED", each)
        return self._store.since(self._target.kind, self._version) is not None

    async def _follow(self) -> None:
        lasts = float(self._target.query.get("timeoutSeconds", _LONGEST))
        end = anyio.current_time() + lasts
        marks = self._target.query.get("allowWatchBookmarks") == "true"
        mark = min(anyio.current_time() + BOOKMARKS, end - _LAST) if marks else math.inf
        while anyio.current_time() < end or self._hangs:
            seen = self._store.changes.version
            if not self._hangs:
                await self._send_changes()
                if anyio.current_time() >= mark:
                    await self._write(bookmark(self._target.kind, self._version))
                    mark = math.inf if mark >= end - _LAST else min(mark + BOOKMARKS, end - _LAST)
            limit = math.inf if self._hangs else min(mark, end) - anyio.current_time()
            with anyio.move_on_after(max(limit, 0)):
                await self._store.changes.newer(seen)

    @property
    def _hangs(self) -> bool:
        return bool(self._faults.get("hang", self._target.kind.plural))

    async def _send_changes(self) -> None:
        for change in self._store.since(self._target.kind, self._version) or ():
            await self._send(change.type, change.object)
        self._version = self._store.version

    async def _send(self, type_: str, given: dict[str, object]) -> None:
        if self._target.selects(given):
            await self._write(line(type_, given))

    async def _write(self, data: bytes) -> None:
        self.sent += len(data)
        await self._response.write(data)
