# SPDX-License-Identifier: Apache-2.0
"""One connection: requests that are answered or refused, and clients that are slow, loud or speak no HTTP."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.http.server import HttpError, Request, Response
from tests import virtual
from tests.conftest import Said
from tests.http.serving import serving

GET = "GET /a?b=c HTTP/1.1\nHost: here\n\n"
LAST = "GET /last HTTP/1.1\nHost: here\nConnection: close\n\n"


def statuses(heard: str) -> list[str]:
    """The status codes of all answers."""
    return re.findall(r"^HTTP/1.1 (\d+) ", heard, re.M)


async def test_a_request_is_understood_and_answered_with_its_length() -> None:
    async with serving() as server:
        heard = await server.ask(GET)
    assert heard.startswith("HTTP/1.1 200 OK\r\n")
    assert "connection: close\r\n" in heard
    assert heard.endswith("content-length: 22\r\n\r\nGET /a here 127.0.0.1\n")


async def test_a_request_may_come_byte_by_byte_and_a_second_one_gets_no_answer() -> None:
    async with serving() as server:
        client = await server.client()
        for letter in GET.replace("\n", "\r\n"):
            await client.stream.send(letter.encode())
        assert (await client.rest()).endswith("GET /a here 127.0.0.1\n")
        assert statuses(await server.ask(GET + LAST)) == ["200"]


async def test_head_gets_the_headers_alone() -> None:
    async with serving() as server:
        heard = await server.ask("HEAD /a HTTP/1.1\nHost: here\nConnection: close\n\n")
    assert "content-length: 23\r\n" in heard
    assert heard.endswith("\r\n\r\n")
    assert "HEAD /a" not in heard


async def test_a_client_of_http_1_0_is_answered_and_left() -> None:
    async with serving() as server:
        heard = await server.ask("GET /a HTTP/1.0\n\n")
    assert heard.endswith("GET /a  127.0.0.1\n")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("GET /a HTTP/1.1\n\n", "400"),
        ("GET /a HTTP/1.1\nHost: a\nHost: b\n\n", "400"),
        ("GET /a HTTP/1.1\nHost: a\nContent-Length: x\n\n", "400"),
        ("GET /a b HTTP/1.1\nHost: a\n\n", "400"),
        ("GET /\x00 HTTP/1.1\nHost: a\n\n", "400"),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 no TLS here\n\n", "400"),
        ("PRI * HTTP/2.0\n\nSM\n\n", "505"),
        ("GET /a HTTP/1.1\nHost: a\nX: " + "y" * 9000, "431"),
        ("GET /" + "a" * 20000 + " HTTP/1.1\nHost: a\n\n", "431"),
        ("GET /a HTTP/1.1\nHost: a\n" + "X: y\n" * 5000 + "\n", "431"),
        ("POST /a HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc", "413"),
        ("GET /a HTTP/1.1\nHost: a\nContent-Length: 99999999999\n\n", "413"),
        ("GET /a HTTP/1.1\nHost: a\nTransfer-Encoding: chunked\n\n", "413"),
        ("GET /a HTTP/1.1\nHost: a\nExpect: 100-continue\nContent-Length: 9\n\n", "413"),
    ],
    ids=lambda value: value[:40].replace("\n", "|") if isinstance(value, str) else value,
)
async def test_what_is_no_plain_request_is_refused_and_the_connection_ends(said: str, status: str) -> None:
    async with serving() as server:
        assert statuses(await server.ask(said)) == [status]
        assert statuses(await server.ask(LAST)) == ["200"]


async def test_a_refused_client_that_sends_the_rest_still_reads_the_response() -> None:
    async with serving() as server:
        client = await server.client()
        await client.send("POST /a HTTP/1.1\nHost: a\nContent-Length: 3000\n\n")
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            await client.send("x" * 1000)
        await anyio.wait_all_tasks_blocked()
        assert statuses(await client.rest()) == ["413"]


async def test_noise_ends_its_own_connection_and_nothing_else() -> None:
    noise = random.Random(7)
    async with serving() as server:
        for _ in range(100):
            client = await server.client()
            async with client.stream:
                await client.stream.send(noise.randbytes(noise.randint(1, 3000)))
        assert statuses(await server.ask(LAST)) == ["200"]


async def test_a_client_that_has_nothing_more_to_say_still_gets_its_answer() -> None:
    async with serving() as server:
        client = await server.client()
        await client.send(GET)
        await client.stream.send_eof()
        assert statuses(await client.rest()) == ["200"]


@virtual.TIME
async def test_a_silent_client_and_a_slow_one_are_disconnected_after_the_same_time() -> None:
    async with serving() as server:
        began = anyio.current_time()
        assert await server.ask("") == ""
        assert anyio.current_time() - began == pytest.approx(Timeouts().http_request, abs=2)
        client, began = await server.client(), anyio.current_time()
        async with anyio.create_task_group() as drip:
            drip.start_soon(_drip, client.stream)
            assert await client.rest() == ""
            drip.cancel_scope.cancel()
        assert anyio.current_time() - began == pytest.approx(Timeouts().http_request, abs=2)


async def _drip(stream: anyio.abc.SocketStream) -> None:
    with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
        while True:
            await stream.send(b"G")
            await anyio.sleep(0.9)


@virtual.TIME
async def test_a_client_that_does_not_take_its_answer_is_left() -> None:
    async def much(_: Request) -> Response:
        return Response(200, (), b"x" * 20_000_000)

    async with serving(much) as server:
        client, began = await server.client(), anyio.current_time()
        await client.send(GET)
        with anyio.fail_after(100), pytest.raises(anyio.EndOfStream):
            await anyio.sleep(Timeouts().http_request + 5)
            while True:
                await client.stream.receive()
        assert anyio.current_time() - began < Timeouts().http_request + 6
        await client.stream.aclose()


async def test_parts_are_sent_as_they_come_until_the_client_goes() -> None:
    ended = anyio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            for number in range(1000):
                yield f"part {number}\n".encode()
                await anyio.sleep(0.01)
        finally:
            ended.set()

    async def stream(_: Request) -> Response:
        return Response(200, (("content-type", "text/plain"),), parts())

    async with serving(stream) as server:
        client = await server.client()
        await client.send(GET)
        assert "content-length" not in await client.receive_until("part 3")
        await client.stream.aclose()
        with anyio.fail_after(5):
            await ended.wait()


async def test_parts_that_end_or_fail_end_the_connection(said: Said) -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"
        raise RuntimeError("no third part")

    async def stream(_: Request) -> Response:
        return Response(200, (), parts())

    async with serving(stream) as server:
        body = (await server.ask(GET)).partition("\r\n\r\n")[2]
    assert body == "3\r\none\r\n3\r\ntwo\r\n"  # no last chunk: it is incomplete
    assert said(log.HTTP_FAILED) == [{"path": "/a", "error": "RuntimeError: no third part"}]


async def test_a_handler_that_fails_is_logged_and_answered_without_its_text(said: Said) -> None:
    async def fail(_: Request) -> Response:
        raise RuntimeError("secret")

    async with serving(fail) as server:
        received = await server.ask(GET)
    assert (statuses(received), "secret" in received) == (["500"], False)
    assert said(log.HTTP_FAILED) == [{"path": "/a", "error": "RuntimeError: secret"}]


async def test_a_request_that_the_handler_refuses_is_answered_with_its_status_and_headers() -> None:
    async def refuse(_: Request) -> Response:
        raise HttpError(503, "too many", [("retry-after", "30")])

    async with serving(refuse) as server:
        received = await server.ask(GET)
    assert statuses(received) == ["503"]
    assert "retry-after: 30\r\n" in received
    assert received.endswith("\r\n\r\ntoo many\n")
