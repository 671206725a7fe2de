# SPDX-License-Identifier: Apache-2.0
"""The fake API server as bytes on a socket: the answers, the streams, and each fault."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream

from nodeagent.sim.apiserver.server import FakeApiServer, Refusal
from nodeagent.sim.apiserver.store import KUBEVIRTS, NODES, VMIS
from tests import virtual

ALL = "/apis/kubevirt.io/v1/kubevirts"
ONE = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts/kubevirt"
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"


def named(name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name} | ({"namespace": namespace} if namespace else {})} | more


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        made.store.put(KUBEVIRTS, named("kubevirt", "kubevirt", spec={}))
        yield made


async def sent(
    server: FakeApiServer, method: str, path: str, body: Any = None, *headers: str
) -> SocketStream:
    host, _, port = server.url.removeprefix("http://").partition(":")
    stream = await anyio.connect_tcp(host, int(port))
    text = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(text)}"]
    await stream.send("\r\n".join([*lines, *headers, "", ""]).encode() + text)
    return stream


async def received(stream: SocketStream) -> bytes:
    """All, until the server closes."""
    taken = b""
    async with stream:
        try:
            async for piece in stream:
                taken += piece
        except anyio.BrokenResourceError:
            return taken
    return taken


async def asked(
    server: FakeApiServer, method: str, path: str, body: Any = None, *headers: str
) -> tuple[int, dict[str, Any]]:
    """Status and JSON."""
    answer = await received(await sent(server, method, path, body, *headers))
    head, _, text = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(text)


class Events:
    """The events of a watch as they come, without what HTTP puts around them."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        self._text = b""

    async def next(self) -> dict[str, Any]:
        while b"}\n" not in self._text:
            self._text += await self._stream.receive()
        text, _, self._text = self._text.partition(b"}\n")
        event: dict[str, Any] = json.loads(text[text.index(b'{"type"') :] + b"}")
        return event


@asynccontextmanager
async def watching(server: FakeApiServer, path: str, query: str = "") -> AsyncIterator[Events]:
    async with await sent(server, "GET", f"{path}?watch=true{query}") as stream:
        yield Events(stream)


async def test_a_list_of_all_namespaces_has_a_version_and_plain_objects(server: FakeApiServer) -> None:
    server.store.put(KUBEVIRTS, named("other", "elsewhere"))
    code, answer = await asked(server, "GET", ALL)
    assert (code, answer["kind"], answer["metadata"]) == (200, "KubeVirtList", {"resourceVersion": "3"})
    assert [each["metadata"]["namespace"] for each in answer["items"]] == ["elsewhere", "kubevirt"]
    _, answer = await asked(server, "GET", "/apis/kubevirt.io/v1/namespaces/elsewhere/kubevirts")
    assert len(answer["items"]) == 1


async def test_one_object_is_got_by_its_name(server: FakeApiServer) -> None:
    code, answer = await asked(server, "GET", ONE)
    assert (code, answer["apiVersion"], answer["kind"]) == (200, "kubevirt.io/v1", "KubeVirt")
    server.store.put(VMIS, named("vm", "default"))
    code, answer = await asked(
        server, "GET", "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances/vm"
    )
    assert (code, answer["kind"]) == (200, "VirtualMachineInstance")


@pytest.mark.parametrize(
    "path", [f"{ONE}x", "/apis/kubevirt.io/v1/things", "/", "/api/v1/namespaces/x/nodes"]
)
async def test_what_is_not_there_is_a_404_with_a_status(server: FakeApiServer, path: str) -> None:
    code, answer = await asked(server, "GET", path)
    assert (code, answer["kind"], answer["code"], answer["reason"]) == (404, "Status", 404, "NotFound")


async def test_a_field_selector_chooses(server: FakeApiServer) -> None:
    for name in ("a", "b"):
        server.store.put(NODES, named(name))
    _, answer = await asked(server, "GET", "/api/v1/nodes?fieldSelector=metadata.name%3Db")
    assert [each["metadata"]["name"] for each in answer["items"]] == ["b"]


async def test_an_event_is_created_once(server: FakeApiServer) -> None:
    path = "/api/v1/namespaces/default/events"
    code, answer = await asked(server, "POST", path, named("it"))
    assert (code, answer["metadata"]["namespace"], answer["kind"]) == (201, "default", "Event")
    code, _ = await asked(server, "POST", path, named("it"))
    assert code == 409


async def test_both_kinds_of_patches_work_and_a_wrong_one_changes_nothing(server: FakeApiServer) -> None:
    server.store.put(NODES, named("n", status={"capacity": {"example.com/a": "1", "cpu": "4"}}))
    path = "/api/v1/nodes/n/status"
    test = {"op": "test", "path": "/status/capacity/cpu", "value": "5"}
    removal = {"op": "remove", "path": "/status/capacity/example.com~1a"}
    kind = f"Content-Type: {JSON_PATCH}"
    code, _ = await asked(server, "PATCH", path, [removal, test], kind)
    assert code == 422
    assert (await asked(server, "GET", "/api/v1/nodes/n"))[1]["status"]["capacity"]["example.com/a"] == "1"
    code, answer = await asked(server, "PATCH", path, [test | {"value": "4"}, removal], kind)
    assert (code, answer["status"]["capacity"]) == (200, {"cpu": "4"})
    merge = {"metadata": {"labels": {"zone": "x"}}, "status": None}
    code, answer = await asked(server, "PATCH", "/api/v1/nodes/n", merge, f"Content-Type: {MERGE_PATCH}")
    assert (code, answer["metadata"]["labels"], "status" in answer) == (200, {"zone": "x"}, False)
    code, _ = await asked(server, "PATCH", path, merge, "Content-Type: application/json")
    assert code == 415


async def test_a_watch_tells_what_comes_after_its_version(server: FakeApiServer) -> None:
    version = server.store.version
    server.store.put(KUBEVIRTS, named("kubevirt", "kubevirt", spec={"a": 1}))
    async with watching(server, ALL, f"&resourceVersion={version}") as events:
        assert (await events.next())["type"] == "MODIFIED"
        server.store.put(NODES, named("nobody asked"))
        server.store.put(KUBEVIRTS, named("other", "kubevirt"))
        event = await events.next()
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "other")
        server.store.delete(KUBEVIRTS, "other", "kubevirt")
        event = await events.next()
        assert event["object"]["metadata"]["resourceVersion"] == str(server.store.version)
        assert event["type"] == "DELETED"


async def test_a_watch_without_a_version_begins_with_all_that_is_there(server: FakeApiServer) -> None:
    async with watching(server, ALL, "&resourceVersion=0") as events:
        assert (await events.next())["type"] == "ADDED"


async def test_a_version_that_is_forgotten_is_an_error_event_of_410(server: FakeApiServer) -> None:
    version = server.store.version
    server.store.put(KUBEVIRTS, named("other", "kubevirt"))
    server.store.compact()
    async with watching(server, ALL, f"&resourceVersion={version}") as events:
        event = await events.next()
        assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


@virtual.TIME
async def test_bookmarks_come_every_minute_and_the_stream_ends_as_asked(server: FakeApiServer) -> None:
    began = anyio.current_time()
    async with watching(
        server, ALL, f"&resourceVersion={server.store.version}&allowWatchBookmarks=true&timeoutSeconds=150"
    ) as events:
        times = []
        for _ in range(3):
            event = await events.next()
            times.append(round(anyio.current_time() - began))
            assert (event["type"], event["object"]["metadata"]) == ("BOOKMARK", {"resourceVersion": "2"})
        assert times == [60, 120, 148]
        with pytest.raises(anyio.EndOfStream):
            await events.next()
        assert round(anyio.current_time() - began) == 150


async def test_only_who_has_a_token_is_answered(server: FakeApiServer) -> None:
    server.tokens.add("right")
    for token, expected in (("right", 200), ("wrong", 401)):
        code, _ = await asked(server, "GET", ALL, None, f"Authorization: Bearer {token}")
        assert code == expected
    assert [seen.authorization for seen in server.statistics.requests] == ["Bearer right", "Bearer wrong"]


async def test_a_status_is_given_as_often_as_it_is_told(server: FakeApiServer) -> None:
    server.faults.set("status:kubevirts", Refusal(503, times=2, after=9))
    answer = await received(await sent(server, "GET", ALL))
    assert answer.startswith(b"HTTP/1.1 503")
    assert b"Retry-After: 9\r\n" in answer
    assert [(await asked(server, "GET", ALL))[0] for _ in range(2)] == [503, 200]


async def test_a_fault_of_one_kind_leaves_the_others_alone(server: FakeApiServer) -> None:
    server.faults.set("status:nodes", Refusal(500))
    assert (await asked(server, "GET", ALL))[0] == 200
    assert (await asked(server, "GET", "/api/v1/nodes"))[0] == 500


@pytest.mark.parametrize(
    ("fault", "path", "begins", "holds"),
    [
        ("garbage", ALL, b"HTTP/1.1 200 OK", b"not what you think"),
        ("drop", ALL, b"", b""),
        ("eof", f"{ALL}?watch=true", b"HTTP/1.1 200 OK", b"\r\n\r\n0\r\n\r\n"),
        ("half-line", f"{ALL}?watch=true", b"HTTP/1.1 200 OK", b'{"type":"BOOKMARK","\r\n0\r\n'),
        ("expired", f"{ALL}?watch=true", b"HTTP/1.1 200 OK", b'"type":"ERROR"'),
    ],
)
async def test_each_fault_looks_like_that_on_the_wire(
    fault: str, path: str, begins: bytes, holds: bytes, server: FakeApiServer
) -> None:
    server.faults.set(fault)
    answer = await received(await sent(server, "GET", path))
    assert answer.startswith(begins)
    assert holds in answer
    assert bool(answer) is bool(begins)


@virtual.TIME
async def test_a_stream_that_hangs_says_nothing_and_does_not_end(server: FakeApiServer) -> None:
    query = f"&resourceVersion={server.store.version}&timeoutSeconds=30"
    async with watching(server, ALL, query) as events:
        await server.until(lambda: server.statistics.streams == 1)
        server.faults.set("hang")
        server.store.put(KUBEVIRTS, named("other", "kubevirt"))
        with anyio.move_on_after(100.0) as scope:
            await events.next()
        assert scope.cancelled_caught
    await server.until(lambda: server.statistics.streams == 0)


@virtual.TIME
async def test_a_slow_server_takes_its_time(server: FakeApiServer) -> None:
    server.faults.set("slow", 3.0)
    began = anyio.current_time()
    await asked(server, "GET", ALL)
    assert anyio.current_time() - began == pytest.approx(3.0, abs=0.1)


async def test_after_a_stop_nobody_is_answered_and_after_a_start_all_is_as_before(
    server: FakeApiServer,
) -> None:
    async with watching(server, ALL, "&resourceVersion=0") as events:
        await events.next()
        await server.stop()
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
            await events.next()
    with pytest.raises(OSError):
        await sent(server, "GET", ALL)
    await server.start()
    assert (await asked(server, "GET", ONE))[0] == 200
