# SPDX-License-Identifier: Apache-2.0
"""Keeps components running: one that fails is run again after a back-off, and the others go on.

A component is a long-lived piece of the daemon. It has a ``name``, for the log and the status, and one
``run`` that lasts for as long as the daemon needs it. When it fails, ``run`` is called again after a pause:
it reads the present state again, and releases its resources when it ends. Called by ``app``.

``Heartbeat`` is kept by the loops that must turn for the daemon to be of use; the watchdog reads it.
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

# where our code is: this file, or the executable that PyInstaller has put all modules into
_CODE = next(path for path in (Path(__file__), Path(sys.executable)) if path.exists())


class Component(Protocol):
    """What the supervisor keeps going."""

    @property
    def name(self) -> str:
        """What people call it; no two components of a daemon share a name."""

    def run(self) -> Awaitable[None]:
        """Run until cancelled."""


class Task(NamedTuple):
    """A component that is no more than its name and its run."""

    name: str
    run: Callable[[], Awaitable[None]]


class Heartbeat:
    """When a loop has turned last. An idle loop turns as well, three times within ``limit`` seconds."""

    def __init__(self, loop: str, limit: float) -> None:
        """``loop``: which one it is, in words."""
        self._loop = loop
        self._limit = limit
        self._last: float | None = None  # None: it has not turned yet, or it waits for a disk

    def turned(self) -> None:
        """A turn has ended."""
        self._last = anyio.current_time()

    async def wait(self, change: Awaitable[object]) -> bool:
        """Wait for the change; False if an idle loop has to turn before it comes."""
        with anyio.move_on_after(self._limit / 3):
            await change
            return True
        self.turned()
        return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No turn is expected while the loop waits for a disk: a new process would wait for it, too."""
        running, self._last = self._last is not None, None
        try:
            yield
        finally:
            if running:
                self.turned()

    def problem(self) -> str | None:
        """The problem if the loop has not turned within the limit; None if it has."""
        if self._last is None or anyio.current_time() <= self._last + self._limit:
            return None
        return f"{self._loop} has not turned for {self._limit:g} s"


class Supervisor:
    """What failed last, by the name of the component; an empty text means that it runs again."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.failures: dict[str, str] = {}
        self.changed: Latest[None] = Latest(None)  # touched when ``failures`` is another

    async def run(self, component: Component) -> None:
        """Keep a component running under its own name.

        :raises FatalError: as ``keep`` does.
        """
        await self.keep(component.name, component.run, may_end=False)

    async def keep(self, name: str, run: Callable[[], Awaitable[None]], *, may_end: bool = True) -> None:
        """Run until it returns; after a failure run it again, later each time.

        Unless it ``may_end``, a return is a failure: a library has cancelled a task of it.

        :raises FatalError: if that is the failure, or if it failed after an upgrade has removed our code.
        """
        attempt = 0
        while True:
            began = anyio.current_time()
            try:
                await _run_uncancelled(run)
                if may_end:
                    return
                raise InternalError("it has ended without a request to end")
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
                    self._say(name, "")  # also when it is ended: nothing is wrong with it any more

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
    """Run. A library may cancel the task in which it is called: the root task group would end without a word.

    :raises InternalError: after a cancellation that no scope around has requested.
    """
    try:
        await run()
    except asyncio.CancelledError as stray:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        raise InternalError("a cancellation has escaped from a library") from stray


def _must_have_code(error: Exception) -> None:
    """Code is loaded when it is first wanted, and an upgrade removes that of the version that runs.

    :raises CodeReplaced: if it is gone: to try again is of no use then.
    """
    if not _CODE.exists():
        what = f"nodeagent was upgraded while it ran, and needs code that is gone ({error})"
        raise CodeReplaced(
            what, "systemd starts the new version at once; start it yourself anywhere else"
        ) from error


def only_error(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """The one error of that kind inside what a task group raised; None if there is anything else in it."""
    taken, rest = group.split(kind)
    one: BaseException | None = taken
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one if isinstance(one, kind) and rest is None else None
