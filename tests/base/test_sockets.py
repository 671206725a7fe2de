# SPDX-License-Identifier: Apache-2.0
"""Sockets that are left behind. Who is asked there: test_jsonsocket.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeagent.base import sockets
from tests.limits import free_descriptors

LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as served:
    served.bind(sys.argv[1])
    served.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@contextmanager
def served_elsewhere(path: Path) -> Iterator[None]:
    """Another process listens there."""
    with subprocess.Popen(
        [sys.executable, "-c", LISTEN, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"listens\n"
        yield
        process.stdin.close()


def test_a_socket_that_cannot_be_made_costs_no_descriptor(tmp_path: Path) -> None:
    with free_descriptors(1):
        for _ in range(3):
            with pytest.raises(OSError, match="Too many open files"):
                sockets.SocketFile.bind(tmp_path, "x.sock")
        os.close(os.open(tmp_path, os.O_RDONLY))
    assert list(tmp_path.iterdir()) == []


def test_who_is_alone_clears_all_sockets_but_its_own_and_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "record").touch()
    with (
        socket.socket(socket.AF_UNIX) as own,
        socket.socket(socket.AF_UNIX) as left,
        served_elsewhere(tmp_path / "other.sock"),
    ):
        own.bind(str(tmp_path / "own.sock"))
        own.listen()
        left.bind(str(tmp_path / "left.sock"))
        sockets.clear(tmp_path)
        assert {each.name for each in tmp_path.iterdir()} == {"own.sock", "record"}


def test_a_directory_that_is_absent_is_clear(tmp_path: Path) -> None:
    sockets.clear(tmp_path / "absent")
