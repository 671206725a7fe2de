# SPDX-License-Identifier: Apache-2.0
"""Asking at a socket: what comes is the document, and what does not come is an error that says so."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from nodeagent.base import sockets
from nodeagent.base.timeouts import Timeouts


@pytest.mark.parametrize("answer", [b"", b"{", b"\xff"], ids=["nothing", "half of it", "no text"])
def test_an_answer_that_is_no_document_is_an_error_of_its_own(tmp_path: Path, answer: bytes) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        peer = threading.Thread(target=_answer, args=(server, answer))
        peer.start()
        with pytest.raises(ValueError):
            sockets.ask(str(path), Timeouts().local_socket_answer)
        peer.join()


def _answer(server: socket.socket, text: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.sendall(text)


def test_asking_where_nobody_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sockets.ask(str(tmp_path / "s.sock"), Timeouts().local_socket_answer)
    with pytest.raises(FileNotFoundError):
        sockets.ask(str(tmp_path / "no" / "s.sock"), Timeouts().local_socket_answer)
