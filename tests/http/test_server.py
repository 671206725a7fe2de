# SPDX-License-Identifier: Apache-2.0
"""The TCP address: served, in use, changed, closed; and more clients than connections."""

from __future__ import annotations

import errno
import socket

import anyio
import pytest

from nodeagent.base import log
from nodeagent.base.timeouts import Timeouts
from nodeagent.http.server import CONNECTIONS, Request, Response, hint, text_response
from nodeagent.model.status import HttpStatus
from tests import virtual
from tests.conftest import Said
from tests.facts import names
from tests.http.serving import serving, settings

LAST = "GET /last HTTP/1.1\nHost: here\nConnection: close\n\n"


async def test_where_it_listens_is_told_and_logged_once(said: Said) -> None:
    async with serving() as server:
        address = f"http://127.0.0.1:{server.port}/"
        assert server.listener.status == HttpStatus(address)
        assert server.listener.status.problem is None
        assert "200 OK" in await server.ask(LAST)
    assert said(log.HTTP_SERVED) == [{"address": address}]


async def test_a_socket_that_was_passed_serves_its_address_also_after_other_settings() -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        address = f"127.0.0.1:{passed.getsockname()[1]}"
        async with serving(wanted=settings(address), passed=[passed]) as server:
            assert "200 OK" in await server.ask(LAST)
            server.settings.set(settings(""))
            await anyio.wait_all_tasks_blocked()
            server.settings.set(settings(address))
            await anyio.wait_all_tasks_blocked()
            assert "200 OK" in await server.ask(LAST)


@virtual.TIME
async def test_a_socket_that_was_passed_is_answered_while_the_wanted_address_cannot_be_had(
    said: Said,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed, socket.create_server(("127.0.0.1", 0)) as busy:
        there, wanted = (f"127.0.0.1:{sock.getsockname()[1]}" for sock in (passed, busy))
        async with serving(wanted=settings(wanted), passed=[passed]) as server:
            found = server.listener.status
            assert found.address == f"http://{there}/"
            assert found.problem is not None
            assert found.problem.hint == hint(OSError(errno.EADDRINUSE, ""))
            names(found.problem.message, wanted, "Address already in use", f"http://{there}/")
            await anyio.sleep(3 * Timeouts().http_address_retry)
            assert "200 OK" in await server.ask(LAST)
            assert [http.listen for http in server.handled] == [there], "as strict as there"
            busy.close()
            await anyio.sleep(Timeouts().http_address_retry + 1)
            assert server.listener.status == HttpStatus(f"http://{wanted}/")
            assert "200 OK" in await server.ask(LAST)
    assert len(said(log.HTTP_REFUSED)) == 1


def test_who_may_make_no_such_socket_is_told_of_the_one_that_systemd_makes() -> None:
    assert "nodeagent-http.socket" in hint(OSError(errno.EAFNOSUPPORT, "not supported"))
    assert "http.listen" in hint(OSError(errno.EADDRINUSE, "in use"))


async def test_nothing_listens_where_no_address_is_wanted() -> None:
    async with serving(wanted=settings("")) as closed:
        assert closed.listener.status == HttpStatus()


@virtual.TIME
async def test_a_busy_address_is_a_problem_and_is_tried_until_it_is_free(said: Said) -> None:
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    async with serving(wanted=settings(f"127.0.0.1:{port}")) as server:
        problem = server.listener.status.problem
        assert problem is not None
        names(problem.message, f"127.0.0.1:{port}", "Address already in use")
        await anyio.sleep(5 * Timeouts().http_address_retry)
        sock.close()
        await anyio.sleep(Timeouts().http_address_retry + 1)
        assert server.listener.status.problem is None
        assert server.port == port
    assert len(said(log.HTTP_REFUSED)) == 1


async def test_other_settings_move_it_and_end_it_while_it_runs() -> None:
    async with serving() as server:
        first, client = server.port, await server.client()
        server.settings.set(settings("[::1]:0"))
        assert await client.rest() == ""
        await anyio.wait_all_tasks_blocked()
        assert (server.listener.status.address or "").startswith("http://[::1]:")
        server.settings.set(settings(""))
        await anyio.wait_all_tasks_blocked()
        assert server.listener.status == HttpStatus()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", first))


async def test_silent_clients_do_not_delay_a_request() -> None:
    async with serving(timeouts=Timeouts()._replace(http_request=3600.0)) as server:
        silent = [await server.client() for _ in range(3 * CONNECTIONS)]
        for client in silent[::2]:
            await client.send("GET /")
        with anyio.fail_after(5):
            assert "200 OK" in await server.ask(LAST)
            assert {await client.rest() for client in silent[: 2 * CONNECTIONS]} == {""}
        for client in silent[2 * CONNECTIONS :]:
            await client.stream.aclose()


async def test_a_client_that_waits_for_its_answer_keeps_its_connection() -> None:
    go = anyio.Event()

    async def wait(_: Request) -> Response:
        await go.wait()
        return text_response(200, "waited")

    async with serving(wait) as server:
        clients = [await server.client() for _ in range(CONNECTIONS)]
        for client in clients:
            await client.send(LAST)
        await anyio.wait_all_tasks_blocked()
        clients.append(await server.client())
        await clients[-1].send(LAST)
        await anyio.wait_all_tasks_blocked()
        go.set()
        for client in clients:
            assert "waited" in await client.rest()
