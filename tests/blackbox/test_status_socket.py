# SPDX-License-Identifier: Apache-2.0
"""The daemon's one unix socket: HTTP for the commands and for root's own programs, and nobody else."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from typing import Any

import pytest

from nodeagent.base import sockets, threads
from tests.blackbox.harness import PATIENCE, Node
from tests.blackbox.test_bindings import AUDIO, BOUND, GPU, add_card, drivers_of
from tests.facts import names
from tests.sim.drivers import simulated

SOCKET = "run/nodeagent/status.sock"


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket, as ``curl --unix-socket`` speaks it."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of an address."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE)
        with sockets.shortened(self._path) as address:
            self.sock.connect(address)


def ask(node: Node, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status code and body; blocks."""
    connection = UnixConnection(str(node.root / SOCKET))
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def document(node: Node, method: str, path: str, body: bytes | None = None) -> Any:
    """The JSON document of an answer."""
    status, text = await threads.call(ask, node, method, path, body)
    assert status == 200, text
    return json.loads(text)


async def test_one_socket_gives_status_and_snapshot_and_takes_requests(node: Node) -> None:
    add_card(node)
    async with simulated(node.host, GPU, AUDIO) as drivers, node.kubelet(), node.daemon():
        status = await node.status()
        assert [path.name for path in (node.root / SOCKET).parent.iterdir() if path.is_socket()] == [
            "status.sock"
        ]
        assert status.keys() - {"pciIds"} <= (await document(node, "GET", "/status")).keys()
        assert (await document(node, "GET", "/snapshot"))["format"] == "nodeagent-snapshot/v1"
        request = json.dumps({"asking": "bind", "names": [GPU]}).encode()
        (result,) = (await document(node, "POST", "/requests", request))["results"]
        assert result["outcome"] == "done"
        assert drivers_of(drivers) == BOUND


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "fact"),
    [
        ("GET", "/metrics", None, 404, "/status"),
        ("GET", "/requests", None, 405, "POST"),
        ("POST", "/status", b"{}", 405, "GET"),
        ("POST", "/requests", b"x" * ((1 << 18) + 1), 413, "bytes"),
    ],
)
async def test_other_requests_are_refused(
    node: Node, method: str, path: str, body: bytes | None, status: int, fact: str
) -> None:
    async with node.daemon() as daemon:
        await node.status()
        code, text = await threads.call(ask, node, method, path, body)
        assert (code, daemon.alive) == (status, True)
        names(text.decode(), *filter(None, [fact]))


def answer_all(server: socket.socket, answer: bytes) -> None:
    """Send this to each client without reading its request, until the socket is shut down."""
    while True:
        try:
            client, _ = server.accept()
        except OSError:
            return
        with client:
            client.sendall(answer)


@pytest.mark.parametrize("answer", [b'{"version": "0.0.9", "problems": []}', b""], ids=["JSON", "nothing"])
async def test_a_daemon_that_does_not_speak_http_is_no_failure_of_commands(node: Node, answer: bytes) -> None:
    """Daemons before 0.1.0 sent a JSON document to each client that connected."""
    path = node.root / SOCKET
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server, sockets.shortened(path) as address:
        server.bind(address)
        server.listen()
        older = threading.Thread(target=answer_all, args=(server, answer))
        older.start()
        asked = await node.command("status")
        scanned = await node.command("scan")
        server.shutdown(socket.SHUT_RDWR)
        older.join()
    assert (asked.returncode, asked.stdout) == (1, "")
    what, hint = asked.stderr.splitlines()
    names(what, "HTTP" if answer else str(path))
    names(hint, f"nodeagent run --root {node.root}")
    assert scanned.returncode == 0
    names(scanned.stderr.splitlines()[0], str(path), "settings of this shell")
