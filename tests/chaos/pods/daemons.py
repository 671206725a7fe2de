# SPDX-License-Identifier: Apache-2.0
"""The daemon of a run: a process that is stopped or killed, and started again; never two at once."""

from __future__ import annotations

import signal

import anyio
from anyio.abc import TaskStatus

from tests.blackbox.harness import Daemon, Node
from tests.chaos.pods.script import Broken, Script

TAIL = 20  # log lines that are shown of one that does what it must not


class Daemons:
    """All lives of the daemon of one node."""

    def __init__(self, node: Node, script: Script) -> None:
        self._node = node
        self._script = script
        self._one_at_a_time = anyio.Lock()
        self._daemon: Daemon | None = None  # the one that is to run
        self._over = anyio.Event()

    async def up(self) -> None:
        """Start it, if none runs, until it is ready."""
        async with self._one_at_a_time:
            if self._daemon is None:
                self._script.note("the daemon begins")
                await self._script.tasks.start(self._live)

    async def down(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, if one runs. :raises Broken: if it does not end as it should."""
        async with self._one_at_a_time:
            daemon, self._daemon = self._daemon, None
            if daemon is None:
                return
            self._script.note(f"the daemon ends by {number.name}")
            code = await daemon.end(number)
            await self._over.wait()
            if code != (0 if number == signal.SIGTERM else -number):
                raise Broken(f"the daemon ended by {number.name} with {code}\n{_tail(daemon)}")

    async def _live(self, *, task_status: TaskStatus[None]) -> None:
        """One life. :raises Broken: if it ends by itself, or a part of it has failed."""
        self._over = anyio.Event()
        async with self._node.daemon() as daemon:
            self._daemon = daemon
            task_status.started()
            code = await daemon.process.wait()
        if daemon is self._daemon:
            raise Broken(f"the daemon ended by itself with {code}\n{_tail(daemon)}")
        if failed := daemon.lines("subsystem-failed"):
            raise Broken(f"a part of the daemon has failed: {failed}")
        self._over.set()


def _tail(daemon: Daemon) -> str:
    return "\n".join(daemon.raw[-TAIL:])
