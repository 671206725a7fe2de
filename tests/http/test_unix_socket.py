# SPDX-License-Identifier: Apache-2.0
"""The unix socket: who may ask, whose path it is, and paths of any length."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.base import log, sockets, threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.http.server import Request, Response, serve_unix
from tests.conftest import Said
from tests.http.serving import serve_document

LIMIT = 5.0  # seconds
NOBODY = 65534


@asynccontextmanager
async def serving(path: Path, answer: Callable[[], object] = lambda: {"a": 1}) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_document, str(path), answer)
        await anyio.wait_all_tasks_blocked()
        yield
        tasks.cancel_scope.cancel()


async def ask(path: Path) -> object:
    return await threads.call(sockets.ask, str(path), "/", LIMIT)


async def test_everybody_who_asks_gets_the_document_of_that_moment(tmp_path: Path) -> None:
    numbers = iter(range(9))
    path = tmp_path / "s.sock"
    async with serving(path, lambda: {"number": next(numbers)}):
        assert [await ask(path) for _ in range(2)] == [{"number": 0}, {"number": 1}]


async def test_a_large_document_arrives_whole(tmp_path: Path) -> None:
    path, text = tmp_path / "s.sock", "x" * 2_000_000
    async with serving(path, lambda: text):
        assert await ask(path) == text


async def test_the_socket_is_for_its_owner_only_and_goes_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "made" / "s.sock"
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
async def test_another_user_gets_nothing(tmp_path: Path) -> None:
    script = (
        f"import os, socket; os.setuid({NOBODY}); s = socket.socket(socket.AF_UNIX); s.connect('s.sock')\n"
        "try: s.sendall(b'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n'); os.write(1, s.recv(10) or b'nothing')\n"
        "except ConnectionError: os.write(1, b'nothing')"
    )
    os.chmod(tmp_path, 0o755)
    async with serving(tmp_path / "s.sock"):
        (tmp_path / "s.sock").chmod(0o666)
        command = [sys.executable, "-c", script]
        found = await threads.call(subprocess.check_output, command, cwd=tmp_path)
    assert found == b"nothing"


async def test_a_path_longer_than_a_socket_address_works(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120) / "s.sock"
    async with serving(path):
        assert await ask(path) == {"a": 1}
    assert not path.exists()


async def test_what_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path):
        assert await ask(path) == {"a": 1}


async def test_a_socket_on_which_somebody_listens_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with serving(path, lambda: "first"):
        with anyio.fail_after(5), pytest.raises(KernelRefused, match="Address already in use"):
            await serve_document(str(path), lambda: "second")
        assert await ask(path) == "first"


async def test_who_is_too_busy_to_accept_is_not_taken_for_dead(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with contextlib.ExitStack() as peers:
        busy = peers.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        with contextlib.suppress(BlockingIOError):
            for _ in range(9):  # until its queue is full
                peer = peers.enter_context(socket.socket(socket.AF_UNIX))
                peer.setblocking(False)
                peer.connect(str(path))
        with anyio.fail_after(5), pytest.raises(KernelRefused, match="Address already in use") as caught:
            await serve_document(str(path), lambda: None)
    assert caught.value.errno == errno.EADDRINUSE
    assert path.exists()


async def test_a_socket_that_somebody_has_removed_is_no_failure_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with serving(path):
        path.unlink()
    assert not path.exists()


async def test_a_file_that_is_no_socket_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    path.write_text("precious")
    with pytest.raises(KernelRefused, match="Address already in use") as caught:
        await serve_document(str(path), lambda: None)
    assert caught.value.path == str(path)
    assert path.read_text() == "precious"


async def test_a_socket_that_somebody_put_in_its_place_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as other:
        async with serving(path):
            path.unlink()
            other.bind(str(path))
        assert path.exists()


async def test_a_directory_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelRefused, match=r"file/s\.sock") as caught:
        await serve_document(str(tmp_path / "file" / "s.sock"), lambda: None)
    assert "--status-socket" in caught.value.hint


async def test_a_peer_that_leaves_at_once_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    async with serving(path, lambda: "x" * 2_000_000):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as hasty:
                hasty.connect(str(path))
        assert len(str(await ask(path))) == 2_000_000


async def test_a_request_carries_its_process_and_a_body_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"

    async def echo(request: Request) -> Response:
        answer = {"method": request.method, "pid": request.pid, "length": len(request.body)}
        return Response(200, (), json.dumps(answer).encode())

    async def post(length: int) -> object:
        return await threads.call(sockets.ask, str(path), "/", LIMIT, b"." * length)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(serve_unix, str(path), echo, Timeouts())
        await anyio.wait_all_tasks_blocked()
        for length in (0, 3, 1 << 18):
            assert await post(length) == {"method": "POST", "pid": os.getpid(), "length": length}
        with pytest.raises(ValueError, match=str(1 << 18)):
            await post((1 << 18) + 1)
        tasks.cancel_scope.cancel()


async def test_a_request_that_fails_leaves_the_socket_served(tmp_path: Path, said: Said) -> None:
    path = tmp_path / "s.sock"
    answers = iter([{"a": 1}])
    async with serving(path, lambda: next(answers)):
        assert await ask(path) == {"a": 1}
        with pytest.raises(ValueError, match="see the log of nodeagent"):
            await ask(path)
    assert [line["path"] for line in said(log.HTTP_FAILED)] == ["/"]
