# SPDX-License-Identifier: Apache-2.0
"""The daemon of the demo: a process of its own, started as an administrator would start it.

It writes its log to a file below the root of its host. Verbs are run as an administrator would run them too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import Process

import nodeagent
from nodeagent.base import sockets
from nodeagent.base.errors import NodeagentError
from nodeagent.base.timeouts import Timeouts
from nodeagent.sim import files

STATUS_PATH = "/run/nodeagent/status.sock"
LOG_NAME = "nodeagent.log"
SOURCE = Path(nodeagent.__file__).parent.parent  # a directory from which the package can be run
_END_LIMIT = 5.0  # seconds that the daemon has for its end
_LOG_LINES = 15
_FOREIGN = ("NODEAGENT_", "NOTIFY_SOCKET", "WATCHDOG_", "JOURNAL_STREAM")  # not meant for this daemon


class DemoFailed(NodeagentError):
    """Raised when something that the demo promises did not happen."""


class Daemon:
    """``nodeagent run`` on the host below ``root``; with ``page`` it serves its page at any free port."""

    def __init__(self, root: str, page: bool = False) -> None:
        self.root = root
        self.page = page
        self._process: Process | None = None

    async def start(self) -> None:
        """Run it."""
        http = ("--http-listen", "127.0.0.1:0", "--http-page", "true") if self.page else ("--http-listen", "")
        command = self.command("run", "--log-format", "text", *http)
        log = os.open(f"{self.root}/{LOG_NAME}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._process = await anyio.open_process(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        finally:
            os.close(log)

    async def end(self) -> int | None:
        """Ask it to end; its exit code, or None if it had to be killed (or never ran)."""
        process, self._process = self._process, None
        if process is None:
            return None
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_END_LIMIT):
            return await process.wait()
        process.kill()
        await process.wait()
        return None

    def command(self, *words: str) -> list[str]:
        """The command line of a verb on this host."""
        return [sys.executable, "-m", "nodeagent", "--root", self.root, *words]

    async def verb(self, *words: str) -> str:
        """The output of a verb. :raises DemoFailed: if it fails."""
        done = await anyio.run_process(self.command(*words), check=False, env=_environment())
        if done.returncode:
            raise DemoFailed(f"nodeagent {' '.join(words)} failed", done.stderr.decode().strip())
        return done.stdout.decode()

    async def status(self) -> Mapping[str, Any]:
        """What it says of itself now. :raises DemoFailed: if it does not answer."""
        self.check_alive()
        try:
            document: Mapping[str, Any] = await anyio.to_thread.run_sync(
                sockets.ask, f"{self.root}{STATUS_PATH}", "/status", Timeouts().local_socket_answer
            )
        except (OSError, ValueError) as error:
            raise self.failed(f"the daemon's status socket does not answer: {error}") from error
        return document

    def check_alive(self) -> None:
        """Make sure that it runs, if it was started. :raises DemoFailed: if it has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise self.failed(f"the daemon has ended with code {self._process.returncode}")

    def failed(self, what: str) -> DemoFailed:
        """A failure that shows the end of its log."""
        lines = files.read(f"{self.root}/{LOG_NAME}").decode(errors="replace").splitlines()
        return DemoFailed(what, "\n".join(["the end of the daemon's log:", *lines[-_LOG_LINES:]]))


def _environment() -> dict[str, str]:
    """Ours, without what is meant for another nodeagent; the package can be imported from any directory."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    paths = (str(SOURCE), kept.get("PYTHONPATH", ""))
    return kept | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
