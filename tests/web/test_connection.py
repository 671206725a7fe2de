# SPDX-License-Identifier: Apache-2.0
"""One client over HTTP: what it may say, and what becomes of one that is slow, loud, or no client at all."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncGenerator

import anyio
import pytest

from nodeagent.base.timeouts import Timeouts
from nodeagent.web.connection import Request, Response
from tests import virtual
from tests.web.serving import door

GET = "GET /a?b=c HTTP/1.1\nHost: here\n\n"
LAST = "GET /last HTTP/1.1\nHost: here\nConnection: close\n\n"


def statuses(heard: str) -> list[str]:
    """The status codes of all answers."""
    return re.findall(r"^HTTP/1.1 (\d+) ", heard, re.M)


async def test_a_request_is_understood_and_answered_with_its_length() -> None:
    async with door() as open_door:
        heard = await open_door.ask(GET + LAST)
    assert heard.startswith("HTTP/1.1 200 OK\r\n")
    assert "content-length: 22\r\n\r\nGET /a here 127.0.0.1\n" in heard
    assert heard.endswith("GET /last here 127.0.0.1\n")


async def test_a_connection_is_used_again_and_requests_may_come_in_one_piece_or_in_bytes() -> None:
    async with door() as open_door:
        client = await open_door.client()
        for _ in range(3):
            await client.say(GET)
            assert "GET /a here" in await client.hear("127.0.0.1\n")
        for letter in GET.replace("\n", "\r\n"):
            await client.stream.send(letter.encode())
        assert "GET /a here" in await client.hear("127.0.0.1\n")
        await client.say(GET * 50 + LAST)
        assert statuses(await client.rest()) == ["200"] * 51


async def test_head_gets_the_headers_alone() -> None:
    async with door() as open_door:
        heard = await open_door.ask("HEAD /a HTTP/1.1\nHost: here\nConnection: close\n\n")
    assert "content-length: 23\r\n" in heard
    assert heard.endswith("\r\n\r\n")
    assert "HEAD /a" not in heard


async def test_a_client_of_http_1_0_is_answered_and_left() -> None:
    async with door() as open_door:
        heard = await open_door.ask("GET /a HTTP/1.0\n\n")
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
    async with door() as open_door:
        assert statuses(await open_door.ask(said)) == [status]
        assert statuses(await open_door.ask(LAST)) == ["200"]


async def test_a_refused_client_that_goes_on_talking_still_reads_why() -> None:
    async with door() as open_door:
        client = await open_door.client()
        await client.say("POST /a HTTP/1.1\nHost: a\nContent-Length: 3000\n\n")
        for _ in range(3):
            await anyio.wait_all_tasks_blocked()
            await client.say("x" * 1000)
        await anyio.wait_all_tasks_blocked()
        assert statuses(await client.rest()) == ["413"]


async def test_noise_ends_its_own_connection_and_nothing_else() -> None:
    noise = random.Random(7)
    async with door() as open_door:
        for _ in range(100):
            client = await open_door.client()
            async with client.stream:
                await client.stream.send(noise.randbytes(noise.randint(1, 3000)))
        assert statuses(await open_door.ask(LAST)) == ["200"]


async def test_a_client_that_has_nothing_more_to_say_still_gets_its_answer() -> None:
    async with door() as open_door:
        client = await open_door.client()
        await client.say(GET)
        await client.stream.send_eof()
        assert statuses(await client.rest()) == ["200"]


@virtual.TIME
async def test_a_silent_client_is_left_after_a_while_and_a_slow_one_much_sooner() -> None:
    async with door() as open_door:
        began = anyio.current_time()
        assert await open_door.ask("") == ""
        assert anyio.current_time() - began == pytest.approx(Timeouts().http_idle, abs=2)
        client, began = await open_door.client(), anyio.current_time()
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

    async with door(much) as open_door:
        client, began = await open_door.client(), anyio.current_time()
        await client.say(GET)
        with anyio.fail_after(100), pytest.raises(anyio.EndOfStream):
            await anyio.sleep(Timeouts().http_send + 5)
            while True:
                await client.stream.receive()
        assert anyio.current_time() - began < Timeouts().http_send + 6
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

    async with door(stream) as open_door:
        client = await open_door.client()
        await client.say(GET)
        assert "transfer-encoding: chunked" in (await client.hear("part 3")).lower()
        await client.stream.aclose()
        with anyio.fail_after(5):
            await ended.wait()


async def test_parts_that_end_leave_the_connection_to_the_next_request() -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"one"
        yield b"two"

    async def stream(_: Request) -> Response:
        return Response(200, (), parts())

    async with door(stream) as open_door:
        client = await open_door.client()
        for _ in range(2):
            await client.say(GET)
            assert "one" in await client.hear("two\r\n0\r\n\r\n")
        await client.stream.aclose()
