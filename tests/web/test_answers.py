# SPDX-License-Identifier: Apache-2.0
"""The paths: what they answer, to whom, and under which names."""

from __future__ import annotations

import socket

import pytest

from nodeagent.base import log
from nodeagent.config import Http
from nodeagent.model.status import Status
from nodeagent.render import metrics
from nodeagent.web import answers
from nodeagent.web.answers import Answers
from nodeagent.web.connection import Request, Response
from tests.conftest import Said
from tests.render.statuses import WELL

LOCAL = Http("127.0.0.1:9481", "false")
PUBLIC = Http("0.0.0.0:9481", "false")
READY = WELL._replace(host=WELL.host._replace(scanned=True), resources=())


async def ask(
    path: str,
    host: str = "localhost:9481",
    *,
    http: Http = LOCAL,
    method: str = "GET",
    status: Status = READY,
) -> Response:
    """The answer to one request."""
    paths = Answers(lambda: status, lambda: None, http)
    return await paths.answer(Request(method, path, host, "127.0.0.1"))


def said_in(response: Response) -> str:
    """The whole body."""
    assert isinstance(response.body, bytes)
    return response.body.decode()


async def test_metrics_are_those_of_the_present_status() -> None:
    answer = await ask("/metrics")
    assert answer.body == metrics.text(READY).encode()
    assert dict(answer.headers) == {"content-type": metrics.CONTENT_TYPE, "cache-control": "no-store"}


async def test_health_is_a_line_and_a_status_code() -> None:
    assert (await ask("/healthz"))[::2] == (200, b"alive\n")
    assert (await ask("/readyz"))[::2] == (200, b"ready\n")
    assert (await ask("/readyz", status=WELL))[::2] == (
        503,
        b"the host was not scanned yet\nnvidia.com/gpu: the kubelet does not read its list yet\n",
    )
    still = Answers(lambda: WELL, lambda: "observe stands still", LOCAL)
    assert (await still.answer(Request("GET", "/healthz", "localhost", "127.0.0.1"))).status == 503


async def test_other_paths_and_other_methods_are_told_what_there_is() -> None:
    other = await ask("/other")
    assert (other.status, "/metrics" in said_in(other)) == (404, True)
    post = await ask("/metrics", method="POST")
    assert (post.status, dict(post.headers)["allow"]) == (405, "GET, HEAD")


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
    assert answers.known_name(host)
    assert (await ask("/metrics", host)).status == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_name_that_leads_to_loopback_is_refused(host: str) -> None:
    for path in ("/metrics", "/healthz", "/readyz", "/"):
        assert (await ask(path, host)).status == 421
    assert (await ask("/metrics", host, http=PUBLIC)).status == 200


async def test_a_path_that_fails_is_logged_and_leaves_the_others_alone(said: Said) -> None:
    def broken() -> Status:
        raise RuntimeError("no status today")

    paths = Answers(broken, lambda: None, LOCAL)
    failed = await paths.answer(Request("GET", "/metrics", "localhost", "127.0.0.1"))
    assert (failed.status, "no status" in said_in(failed)) == (500, False)
    assert said(log.HTTP_FAILED) == [{"path": "/metrics", "error": "RuntimeError: no status today"}]
    assert (await paths.answer(Request("GET", "/healthz", "localhost", "127.0.0.1"))).status == 200
