# SPDX-License-Identifier: Apache-2.0
"""Daemons that start in a moment: forked from a process that has read the code, and end by SIGKILL.

Each is a process of its own, with all of ``nodeagent run`` but reading the modules. Nothing of it runs after
the signal.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import anyio

from nodeagent.cli.main import main
from tests.blackbox.harness import PATIENCE, QUICK

_TAIL = 20  # log lines that are shown of a daemon that does not do what it should
_FORKS = multiprocessing.get_context("forkserver")
_CODE = (
    *("nodeagent.app", "nodeagent.agent.changing.feature", "nodeagent.config.reader.document"),
    *("nodeagent.base.logqueue", "nodeagent.kernel.events.tree", "anyio._backends._asyncio", __name__),
)
_FORKS.set_forkserver_preload([*_CODE])


class Daemon:
    """One that runs, or has ended."""

    def __init__(self, process: BaseProcess, log: Path) -> None:
        self._process = process
        self._log = log

    def kill(self) -> None:
        """End it this very moment."""
        os.kill(self._process.pid or 0, signal.SIGKILL)

    async def killed(self) -> None:
        """Wait until it has ended by the signal. :raises AssertionError: if it does not, or otherwise."""
        with anyio.move_on_after(PATIENCE):
            await anyio.wait_readable(self._process.sentinel)
        self._process.join(0)
        assert self._process.exitcode == -signal.SIGKILL, f"{self._process.exitcode}\n{self.tail()}"

    def tail(self) -> str:
        """The last that it has logged, but for what is said of each device."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([line for line in lines if '"event": "device-' not in line][-_TAIL:])


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Daemon]:
    """A daemon of this node, killed at the end if it still runs."""
    log = root / "daemon.log"
    process = _FORKS.Process(target=_serve, args=(str(root), str(log)), daemon=True)
    process.start()
    try:
        yield Daemon(process, log)
    finally:
        process.kill()
        process.join()


def _serve(root: str, log: str) -> None:
    """What the process does: the command, its log in a file that begins anew."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    main(["--root", root, "run", *QUICK])
