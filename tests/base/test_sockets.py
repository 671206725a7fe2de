# SPDX-License-Identifier: Apache-2.0
"""Unix sockets: files that are left behind; one question, and its answer or an error that says what came."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from nodeagent.base import sockets
from tests.limits import free_descriptors

LIMIT = 5.0  # seconds
OK = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


def answer_once(server: socket.socket, answer: bytes, received: list[bytes]) -> None:
    connection, _ = server.accept()
    with connection:
        if received is not NOTHING:
            received.append(connection.recv(65536))
        connection.sendall(answer)


NOTHING: list[bytes] = []


def ask(path: Path, answer: bytes, body: bytes | None = None, received: list[bytes] = NOTHING) -> object:
    """Ask a server that sends this answer, after it has ``received`` the request if that is wanted."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        peer = threading.Thread(target=answer_once, args=(server, answer, received))
        peer.start()
        try:
            return sockets.ask(str(path), "/status", LIMIT, body)
        finally:
            peer.join()


def test_the_request_names_its_target_and_the_length_of_its_body(tmp_path: Path) -> None:
    received: list[bytes] = []
    assert ask(tmp_path / "a", OK + b'{"a": 1}', None, received) == {"a": 1}
    assert ask(tmp_path / "b", OK + b"[]", b"abc", received) == []
    get, post = received
    assert get.startswith(b"GET /status HTTP/1.1\r\nhost: ")
    assert post.startswith(b"POST /status HTTP/1.1\r\n")
    assert b"content-length: 3\r\n" in post
    assert post.endswith(b"\r\n\r\nabc")


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (b'{"a": 1}', "not HTTP"),
        (OK + b"{", "Expecting"),
        (OK + b"\xff", "utf-8"),
        (b"HTTP/1.1 500 no\r\n\r\nthe log says why\n", "the log says why"),
    ],
    ids=["no HTTP", "half of it", "no text", "refused"],
)
def test_an_answer_without_a_document_is_an_error_of_its_own(
    tmp_path: Path, answer: bytes, fact: str
) -> None:
    with pytest.raises(ValueError, match=fact):
        ask(tmp_path / "s.sock", answer)


def test_a_connection_that_is_closed_without_an_answer_was_reset(tmp_path: Path) -> None:
    with pytest.raises(ConnectionResetError, match="reset"):
        ask(tmp_path / "s.sock", b"", b"x" * 1_000_000)


def test_a_socket_that_is_absent_is_an_error_of_the_system(tmp_path: Path) -> None:
    for path in (tmp_path / "s.sock", tmp_path / "no" / "s.sock"):
        with pytest.raises(FileNotFoundError):
            sockets.ask(str(path), "/status", LIMIT)


def test_a_socket_that_cannot_be_made_costs_no_descriptor(tmp_path: Path) -> None:
    with free_descriptors(1):
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                sockets.SocketFile.bind(tmp_path, "x.sock")
        os.close(os.open(tmp_path, os.O_RDONLY))
    assert list(tmp_path.iterdir()) == []
