# SPDX-License-Identifier: Apache-2.0
"""Runs the components of the daemon: a failed component is restarted after a pause, and the others continue.

A component is a long-running part of the daemon. It has a ``name``, for the log and the status, and a ``run``
method that ends only by failure or cancellation. A restarted component reads the current state again. When a
component ends, it releases its resources. Called by ``app``.

Each loop that the daemon cannot do without updates a ``Heartbeat``, which the watchdog checks.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import anyio

from nodeagent.base import log
from nodeagent.base.errors import CodeReplaced, FatalError, InternalError, NodeagentError
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts

E = TypeVar("E", bound=BaseException)

# the directory of the code: that of this file, or the executable into which PyInstaller has put all modules
_CODE = next(path for path in (Path(__file__), Path(sys.executable)) if path.exists())


class Component(Protocol):
    """The interface of a component, as the supervisor runs it."""

    @property
    def name(self) -> str:
        """Return the name for the log and the status, unique in a daemon."""

    def run(self) -> Awaitable[None]:
        """Run until cancelled."""


class Task(NamedTuple):
    """A component that consists of a name and a function."""

    name: str
    run: Callable[[], Awaitable[None]]


class Heartbeat:
    """The time of a loop's last iteration; an idle loop also iterates, three times within ``limit``
    seconds.
    """

    def __init__(self, loop: str, limit: float) -> None:
        """Start the heartbeat; ``loop`` describes the loop in messages."""
        self._loop = loop
        self._limit = limit
        # None: before the first iteration, or while the loop waits for a disk
        self._last: float | None = None

    def turned(self) -> None:
        """Record the end of an iteration."""
        self._last = anyio.current_time()

    async def wait(self, change: Awaitable[object]) -> bool:
        """Wait for the change; return False if the loop must iterate before the change comes."""
        with anyio.move_on_after(self._limit / 3):
            await change
            return True
        self.turned()
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Expect no iteration while the loop waits for a disk: a restarted process would also wait."""
        running, self._last = self._last is not None, None
        try:
            yield
        finally:
            if running:
                self.turned()

    def problem(self) -> str | None:
        """Return a message if the loop has made no iteration within the limit; else None."""
        if self._last is None or anyio.current_time() <= self._last + self._limit:
            return None
        return f"{self._loop} made no iteration for {self._limit:g} s"


class Supervisor:
    """Restarts failed components; ``failures`` has the last error by name, "" once it runs again."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.failures: dict[str, str] = {}
        self.changed: Latest[None] = Latest(None)  # touched when ``failures`` changes

    async def run(self, component: Component) -> None:
        """Run a component, and restart it after a failure.

        :raises FatalError: as ``keep`` does.
        """
        await self.keep(component.name, component.run, may_end=False)

    async def keep(self, name: str, run: Callable[[], Awaitable[None]], *, may_end: bool = True) -> None:
        """Call ``run`` until it returns; after each failure, call it again after a longer pause.

        Unless ``may_end`` is set, a return of ``run`` counts as a failure: a library has cancelled one of its
        tasks.

        :raises FatalError: if ``run`` raises it, or fails because an upgrade has removed the code.
        """
        attempt = 0
        while True:
            began = anyio.current_time()
            try:
                await _run_uncancelled(run)
                if may_end:
                    return
                raise InternalError("it returned without being cancelled")
            except FatalError:
                raise
            except Exception as error:  # noqa: BLE001 - the point of a supervisor: one failure stays one
                _must_have_code(error)
                worked = anyio.current_time() - began > self._timeouts.component_healthy
                attempt = 0 if worked else attempt + 1
                pause = self._timeouts.component_retry.delay(attempt - 1, random.random())
                self._failed(name, error, pause)
                try:
                    await anyio.sleep(pause)
                finally:
                    self._say(name, "")  # cancellation also clears the failure

    def _say(self, name: str, text: str) -> None:
        self.failures[name] = text
        self.changed.touch()

    def _failed(self, name: str, error: Exception, pause: float) -> None:
        foreseen = isinstance(error, NodeagentError) and not isinstance(error, InternalError)
        text = error.what if isinstance(error, NodeagentError) else f"{type(error).__name__}: {error}"
        self._say(name, text)
        log.event(
            log.SUBSYSTEM_FAILED,
            None if foreseen else error,
            subsystem=name,
            error=text,
            seconds=f"{pause:.1f}",
        )


async def _run_uncancelled(run: Callable[[], Awaitable[None]]) -> None:
    """Call ``run``, and raise an error if a library cancels this task, as the daemon would else exit
    silently.

    :raises InternalError: after a cancellation that no enclosing scope has requested.
    """
    try:
        await run()
    except asyncio.CancelledError as stray:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        raise InternalError("a library cancelled the task of the component") from stray


def _must_have_code(error: Exception) -> None:
    """Check that the code files still exist: modules are loaded on first use, and an upgrade removes the
    old ones.

    :raises CodeReplaced: if the files are gone, since retrying cannot succeed.
    """
    if not _CODE.exists():
        what = f"nodeagent was upgraded while it ran, and needs code that the upgrade removed ({error})"
        raise CodeReplaced(
            what, "systemd starts the new version at once; start it yourself anywhere else"
        ) from error


def only_error(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """Return the only error of that kind in an exception group; None if the group contains anything else."""
    taken, rest = group.split(kind)
    one: BaseException | None = taken
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one if isinstance(one, kind) and rest is None else None
