# SPDX-License-Identifier: Apache-2.0
"""The paths, on the unix socket and by TCP: what they answer, to whom, and under which names."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest

from nodeagent.agent.reporting import basis
from nodeagent.agent.reporting.basis import Basis
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Http
from nodeagent.http import routes
from nodeagent.http.routes import local_routes, network_routes
from nodeagent.http.server import HttpError, Request, Response
from nodeagent.model import plain
from nodeagent.model.problem import ProblemCode, wrong
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.status import Status
from nodeagent.render import metrics, page
from tests.facts import names
from tests.render.statuses import GPU, WELL

LOCAL = Http("127.0.0.1:9481", "false")
PUBLIC = Http("0.0.0.0:9481", "false")
READY = WELL._replace(host=WELL.host._replace(scanned=True), resources=())


async def ask(
    path: str,
    host: str = "localhost:9481",
    *,
    peer: str = "127.0.0.1",
    http: Http = LOCAL,
    method: str = "GET",
    status: Status = READY,
) -> Response:
    """The answer to one request."""
    handle = network_routes(lambda: status, lambda: None, Timeouts(), http)
    try:
        return await handle(Request(method, path, host, peer))
    except HttpError as error:
        return error.response


def said_in(response: Response) -> str:
    """The whole body."""
    assert isinstance(response.body, bytes)
    return response.body.decode()


BASIS = Basis(Snapshot(machine_id="7"), {}, (), ())


async def ask_local(method: str, path: str, body: bytes = b"") -> object:
    """The document of the answer on the unix socket, or its status code."""

    async def repeat(request: bytes, pid: int) -> object:
        return {"request": request.decode(), "pid": pid}

    handle = local_routes(lambda: WELL, lambda: BASIS, repeat)
    try:
        answer = await handle(Request(method, path, "localhost", pid=7, body=body))
    except HttpError as error:
        return error.response.status
    assert ("content-type", "application/json") in answer.headers
    return json.loads(said_in(answer))


async def test_status_snapshot_and_requests_are_json() -> None:
    assert await ask_local("GET", "/status") == plain.dump(WELL)
    assert basis.load(await ask_local("GET", "/snapshot")) == BASIS
    assert await ask_local("POST", "/requests", b"bind it") == {"request": "bind it", "pid": 7}


async def test_other_local_paths_and_methods_are_refused() -> None:
    assert await ask_local("GET", "/metrics") == 404
    assert await ask_local("POST", "/status") == 405
    assert await ask_local("GET", "/requests") == 405


async def test_metrics_are_those_of_the_present_status() -> None:
    answer = await ask("/metrics")
    assert answer.body == metrics.text(READY).encode()
    assert dict(answer.headers) == {"content-type": metrics.CONTENT_TYPE, "cache-control": "no-store"}


async def test_health_is_a_line_and_a_status_code() -> None:
    assert (await ask("/healthz"))[::2] == (200, b"alive\n")
    assert (await ask("/readyz"))[::2] == (200, b"ready\n")
    assert (await ask("/readyz", status=WELL))[::2] == (
        503,
        b"the host was not scanned yet\nnvidia.com/gpu: the kubelet does not read its list of devices yet\n",
    )
    still = network_routes(lambda: WELL, lambda: "observe stands still", Timeouts(), LOCAL)
    assert (await still(Request("GET", "/healthz", "localhost", "127.0.0.1"))).status == 503


SCANNED = WELL.host._replace(scanned=True)
LISTED = WELL.resources[0]._replace(watched=True)
LISTS_READ = WELL._replace(host=SCANNED, resources=(LISTED,))
AWAY = WELL.kubelet._replace(present=False)


@pytest.mark.parametrize(
    ("status", "facts"),
    [
        (LISTS_READ._replace(host=WELL.host), ("scanned",)),
        (
            LISTS_READ._replace(resources=(LISTED._replace(registered=False, watched=False),)),
            (f"{GPU}: ", "kubelet"),
        ),
        (
            LISTS_READ._replace(resources=(LISTED._replace(watched=False),)),
            (f"{GPU}: ", "kubelet", "list"),
        ),
        (
            LISTS_READ._replace(findings=(wrong(ProblemCode.DRA_NOT_REGISTERED, "", "DRA is refused"),)),
            ("DRA is refused",),
        ),
    ],
    ids=["not scanned", "not registered", "not listed", "no DRA driver"],
)
async def test_a_node_is_ready_when_all_was_scanned_and_the_kubelet_knows_it(
    status: Status, facts: tuple[str, ...]
) -> None:
    answer = await ask("/readyz", status=status)
    assert answer.status == 503
    names(said_in(answer), *facts)


@pytest.mark.parametrize(
    "status",
    [
        LISTS_READ,
        LISTS_READ._replace(kubelet=AWAY, resources=(LISTED._replace(registered=False, watched=False),)),
        LISTS_READ._replace(resources=()),
        LISTS_READ._replace(problems=("0000:66:00.0 is Unhealthy",)),
    ],
    ids=["all is well", "no kubelet", "nothing to offer", "an unhealthy device"],
)
async def test_a_kubelet_that_is_away_and_devices_that_are_unhealthy_hinder_nothing(status: Status) -> None:
    assert (await ask("/readyz", status=status))[::2] == (200, b"ready\n")


async def test_other_paths_and_other_methods_are_told_what_there_is() -> None:
    other = await ask("/other")
    assert (other.status, "/metrics" in said_in(other)) == (404, True)
    post = await ask("/metrics", method="POST")
    assert (post.status, dict(post.headers)["allow"]) == (405, "GET")


KNOWN = [
    "127.0.0.1",
    "127.0.0.1:9481",
    "10.0.0.7:80",
    "[::1]:9481",
    "[::1]",
    "localhost",
    "LocalHost:1",
    socket.gethostname(),
]
FOREIGN = [
    "",
    "evil.example:9481",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "[::1].evil",
    "[evil]",
    "a:b:c",
    "::1",
    "127.0.0.1:x",
]


@pytest.mark.parametrize("host", KNOWN)
async def test_who_asks_by_an_address_or_by_our_own_name_is_answered(host: str) -> None:
    assert routes.is_known_name(host)
    assert (await ask("/metrics", host)).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_name_that_leads_to_loopback_is_refused(host: str) -> None:
    for path in ("/metrics", "/healthz", "/readyz", "/"):
        assert (await ask(path, host)).status == 421
    assert (await ask("/metrics", host, http=PUBLIC)).status == 200


PAGE = Http("127.0.0.1:9481", "true")
OPEN_PAGE = Http("0.0.0.0:9481", "true")
EVERYWHERE = Http("0.0.0.0:9481", "everywhere")


async def test_without_the_setting_there_is_no_page() -> None:
    assert "http.page" in said_in(await ask("/"))
    assert (await ask("/events")).status == 404


async def test_the_page_comes_with_its_policy_and_is_kept_nowhere() -> None:
    answer = await ask("/", http=PAGE)
    headers = dict(answer.headers)
    assert said_in(answer).startswith("<!doctype html>")
    assert headers["content-security-policy"] == page.load().policy
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-store", "nosniff")
    assert headers["cross-origin-resource-policy"] == "same-origin"


async def test_events_are_for_the_page_alone_and_begin_with_all_there_is() -> None:
    answer = await ask("/events", http=PAGE)
    headers = dict(answer.headers)
    assert (headers["content-type"], headers["cross-origin-resource-policy"]) == (
        "text/event-stream",
        "same-origin",
    )
    assert not isinstance(answer.body, bytes)
    async with contextlib.aclosing(answer.body) as events:
        assert (await anext(events)).startswith(b'data: {"version"')


@pytest.mark.parametrize("path", ["/", "/events"])
async def test_the_page_is_for_this_node_unless_it_is_for_everybody(path: str) -> None:
    for peer in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert (await ask(path, http=OPEN_PAGE, peer=peer)).status == 200
    for peer in ("10.0.0.7", "fe80::1", "::ffff:10.0.0.7", ""):
        assert (await ask(path, http=OPEN_PAGE, peer=peer)).status == 403
        assert (await ask(path, http=EVERYWHERE, peer=peer)).status == 200
        assert (await ask("/metrics", http=OPEN_PAGE, peer=peer)).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_no_name_of_a_stranger_leads_to_the_page(host: str) -> None:
    for http in (PAGE, OPEN_PAGE, EVERYWHERE):
        assert [(await ask(path, host, http=http)).status for path in ("/", "/events")] == [421, 421]
