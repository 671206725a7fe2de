# SPDX-License-Identifier: Apache-2.0
"""Daemons that start in a moment and end by SIGKILL."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from anyio.abc import Process

from tests import forkserver
from tests.blackbox.harness import PATIENCE, QUICK

_TAIL = 20  # log lines that are shown of a daemon that does not do what it should


class Daemon:
    """One that runs, or has ended."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process = process
        self._log = log

    def kill(self) -> None:
        """End it this very moment."""
        self._process.kill()

    async def killed(self) -> None:
        """Wait until it has ended by the signal. :raises AssertionError: if it does not, or otherwise."""
        with anyio.move_on_after(PATIENCE):
            await self._process.wait()
        assert self._process.returncode == -signal.SIGKILL, f"{self._process.returncode}\n{self.tail()}"

    def tail(self) -> str:
        """The last that it has logged, but for what is said of each device."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if '"event": "device-' not in line][-_TAIL:])


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Daemon]:
    """A daemon of this node, killed at the end if it still runs."""
    path = root / "daemon.log"
    with path.open("wb") as log:
        process = forkserver.start(["--root", str(root), "run", *QUICK], os.environ, log)
    async with process:
        yield Daemon(process, path)
