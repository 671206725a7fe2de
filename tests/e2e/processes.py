# SPDX-License-Identifier: Apache-2.0
"""Processes of this tier: each has a log, is stopped by its pid, and killed by the kernel if pytest dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PATIENCE = 15.0  # seconds between SIGTERM and SIGKILL


def naming(text: str) -> Iterator[tuple[int, str]]:
    """The processes in whose command line that stands, by pid."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command:
                yield int(path.parent.name), command


class Process:
    """One program; its output goes to ``log``, which is appended to from start to start."""

    def __init__(self, argv: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.argv = list(argv)
        self.log = log
        self._env = None if env is None else {**os.environ, **env}
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._env,
            )

    @property
    def pid(self) -> int:
        """Its pid; setpriv and nsenter replace themselves by the program."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """False once it has ended."""
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.running:
            self._popen.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait; its exit code, negative for the signal that ended it."""
        self.send(number)
        try:
            return self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def tail(self, lines: int = 30) -> str:
        """The last lines of its log, for messages of failed tests."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def run(argv: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a program to its end; its output. Raises RuntimeError with what it said if it fails."""
    done = subprocess.run(
        argv,
        cwd=cwd,
        env=None if env is None else {**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def free_port() -> int:
    """A TCP port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
