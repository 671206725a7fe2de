# SPDX-License-Identifier: Apache-2.0
"""Start ``nodeagent`` processes by fork from a process that has imported the package.

A daemon that is started by exec needs 0.3 s of a processor until it is ready, a command 0.4 s, most of it for
imports. A forked one needs 0.06 s and is otherwise a process of its own: arguments, environment, standard
streams, signals and exit code are as with exec. Tests about starting, limits, memory and code that is loaded
late use exec (``under=`` of the harness).

The server is ``python -m tests.forkserver FD``. It reads requests from the socket FD: JSON with arguments,
environment and working directory, and with it the descriptors of stdout, stderr and of a socket on which the
pid and later the exit code are sent. It kills its children and ends when the socket is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import anyio
from anyio.abc import ByteReceiveStream, ByteSendStream, Process

from tests import ROOT

LIMIT = 60.0  # seconds for a command to end
_REQUEST = 1 << 20  # bytes, the largest request
_CHUNK = 1 << 16
_LOADED_LATE = ("anyio._backends._asyncio", "difflib", "encodings.idna", "encodings.utf_8_sig")
_LEFT_OUT = ("nodeagent.sim", "nodeagent.demo", "nodeagent.__main__")


class Pipe(ByteReceiveStream):
    """The read end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        """Return what was written. Raises EndOfStream when all writers have closed it."""
        while True:
            await anyio.wait_readable(self._descriptor)
            try:
                chunk = os.read(self._descriptor, max_bytes)
            except BlockingIOError:
                continue
            if not chunk:
                raise anyio.EndOfStream
            return chunk

    async def aclose(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class ForkedProcess(Process):
    """A child of the server, seen as anyio shows a child of this process."""

    def __init__(self, life: socket.socket, stderr: Pipe | None) -> None:
        self._life = life
        self._pid = _read_number(life)
        self._code: int | None = None
        self._stderr = stderr
        self._waiting = anyio.Lock()  # one task at a time may wait for the socket
        life.setblocking(False)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._pid

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the signal's number if a signal ended it; None while it runs."""
        if self._code is None:
            try:
                sent = self._life.recv(4)
            except BlockingIOError:
                return None
            self._code = int.from_bytes(sent, "little", signed=True) if sent else -signal.SIGKILL
        return self._code

    @property
    def stdin(self) -> ByteSendStream | None:
        """Always /dev/null."""
        return None

    @property
    def stdout(self) -> ByteReceiveStream | None:
        """Always /dev/null."""
        return None

    @property
    def stderr(self) -> ByteReceiveStream | None:
        """What it writes to stderr; None if that is a file."""
        return self._stderr

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        async with self._waiting:
            while self.returncode is None:
                await anyio.wait_readable(self._life)
        assert self._code is not None
        return self._code

    def send_signal(self, signal: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # its end is about to be reported
                os.kill(self._pid, signal)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Kill it if it still runs, and close its pipes."""
        with anyio.CancelScope(shield=True):
            self.kill()
            await self.wait()
            self._life.close()
            if self._stderr is not None:
                await self._stderr.aclose()


def start(
    arguments: Sequence[str], environ: Mapping[str, str], log: IO[bytes] | None = None
) -> ForkedProcess:
    """Start ``nodeagent ARGUMENTS`` with stdout at /dev/null, and stderr in the file or else a pipe."""
    with open(os.devnull, "wb") as devnull:
        if log is not None:
            return ForkedProcess(_request(arguments, environ, devnull, log), None)
        read, write = os.pipe2(os.O_CLOEXEC)
        with open(write, "wb") as stderr:
            return ForkedProcess(_request(arguments, environ, devnull, stderr), Pipe(read))


def run(
    arguments: Sequence[str], environ: Mapping[str, str], *, user: int | None = None, directory: str = "."
) -> subprocess.CompletedProcess[str]:
    """Run ``nodeagent ARGUMENTS`` to its end, as another user if one is given.

    :raises TimeoutError: if it does not end within LIMIT. It is killed with the server.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with _request(arguments, environ, stdout, stderr, user, directory) as life:
            life.settimeout(LIMIT)
            _read_number(life)
            code = _read_number(life)
        texts = [os.pread(file.fileno(), 1 << 30, 0).decode() for file in (stdout, stderr)]
    return subprocess.CompletedProcess([*arguments], code, *texts)


def _request(
    arguments: Sequence[str],
    environ: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    user: int | None = None,
    directory: str = ".",
) -> socket.socket:
    """Have a child started; return the socket that gets its pid and its exit code, four bytes each."""
    ours, theirs = socket.socketpair()
    request = {
        "arguments": [*arguments],
        "environ": {**environ},
        "directory": str(Path(directory).absolute()),
        "user": user,
    }
    with theirs:
        socket.send_fds(
            _server(), [json.dumps(request).encode()], [each.fileno() for each in (stdout, stderr, theirs)]
        )
    return ours


def _read_number(life: socket.socket) -> int:
    """Read a pid or an exit code. :raises EOFError: if the server has ended."""
    sent = life.recv(4)
    if len(sent) < 4:
        raise EOFError("the fork server has ended")
    return int.from_bytes(sent, "little", signed=True)


@cache
def _server() -> socket.socket:
    """Return the socket of this process's server, started with the first request."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST)
    command = [sys.executable, "-m", "tests.forkserver", str(theirs.fileno())]
    server = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    atexit.register(_end, server, ours)
    return ours


def _end(server: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    server.wait()


def _serve(control: socket.socket) -> None:
    """Fork a child for each request until the socket is closed, then kill those that still run."""
    children: dict[int, tuple[int, socket.socket]] = {}  # pidfd → pid, and where its exit code is sent
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                _report_exit(descriptor, *children.pop(descriptor))
                continue
            request, received, _, _ = socket.recv_fds(control, _REQUEST, 3)
            if not request:
                for pid, _ in children.values():
                    os.kill(pid, signal.SIGKILL)
                return
            stdout, stderr, life = received
            pid = os.fork()
            if pid == 0:
                _become(json.loads(request), stdout, stderr)
            os.close(stdout)
            os.close(stderr)
            answers = socket.socket(fileno=life)
            answers.sendall(pid.to_bytes(4, "little"))
            child = os.pidfd_open(pid)
            children[child] = pid, answers
            poll.register(child, select.POLLIN)


def _report_exit(descriptor: int, pid: int, answers: socket.socket) -> None:
    _, status = os.waitpid(pid, 0)
    os.close(descriptor)
    with answers, contextlib.suppress(BrokenPipeError):  # the test has ended
        answers.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))


def _become(request: Mapping[str, object], stdout: int, stderr: int) -> None:
    """Be ``python -m nodeagent ARGUMENTS``; does not return."""
    code = 1
    try:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.closerange(3, 4096)
        arguments, environ = request["arguments"], request["environ"]
        assert isinstance(arguments, list)
        assert isinstance(environ, dict)
        os.environ.clear()
        os.environ.update(environ)
        os.chdir(str(request["directory"]))
        if isinstance(user := request["user"], int):
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        sys.argv = ["nodeagent", *arguments]
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
        from nodeagent.__main__ import main

        main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at its end
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _import_package() -> None:
    """Import what a daemon and its commands may load: another user may not be able to read the modules."""
    import nodeagent

    for name in _LOADED_LATE:
        importlib.import_module(name)
    for module in pkgutil.walk_packages(nodeagent.__path__, "nodeagent."):
        if not module.name.startswith(_LEFT_OUT):
            importlib.import_module(module.name)
    importlib.import_module("nodeagent.cluster.kube_client").kubernetes()


if __name__ == "__main__":
    _import_package()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as own:
        _serve(own)
