# SPDX-License-Identifier: Apache-2.0
"""Keeps a component going: one that fails runs anew after a back-off, says so, and takes nobody with it.

A component is a long-lived piece of the daemon. It has a ``name``, for the log and the status, and one
``run`` that lasts for as long as the daemon needs it. It keeps its own state and shares cells with others,
never its methods. It may fail: then ``run`` is called again after a pause, so it begins anew with what is
true by then, and gives back on its way out what it took. Knows nothing of what the daemon consists of.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import anyio

from nodeagent.base import log
from nodeagent.base.errors import CodeReplaced, InvariantBroken, MustEnd, NodeagentError
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
        """Live, until cancelled; to return means that there is nothing left to do, which is no failure."""


class Task(NamedTuple):
    """A component that is no more than its name and its run."""

    name: str
    run: Callable[[], Awaitable[None]]


class _Row(NamedTuple):
    """Failures in a row: when the first and the last were (seconds, monotonic), and what the last was."""

    first: float
    last: float
    text: str


class Supervisor:
    """What failed last, by the name of the component; an empty text means that it runs again."""

    def __init__(self, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self.failures: dict[str, str] = {}
        self.changed: Latest[None] = Latest(None)  # touched when ``failures`` is another
        self._rows: dict[str, _Row] = {}

    async def run(self, component: Component) -> None:
        """Keep a component going under its own name. :raises MustEnd: as ``keep`` does."""
        await self.keep(component.name, component.run)

    async def keep(self, name: str, run: Callable[[], Awaitable[None]]) -> None:
        """Run until it returns; after a failure run it again, later each time.

        :raises MustEnd: if that is the failure, or if it failed after an upgrade has removed our code.
        """
        attempt = 0
        while True:
            began = anyio.current_time()
            try:
                await run()
            except MustEnd:
                raise
            except Exception as error:  # noqa: BLE001 - the point of a supervisor: one failure stays one
                _must_have_code(error)
                worked = anyio.current_time() - began > self._timeouts.component_healthy
                attempt = 0 if worked else attempt + 1
                pause = self._timeouts.component_retry.delay(attempt - 1, random.random())
                self._failed(name, error, pause, worked=worked)
                try:
                    await anyio.sleep(pause)
                finally:
                    self._say(name, "")  # also when it is ended: nothing is wrong with it any more
            else:
                return

    def hopeless(self, now: float) -> Mapping[str, str]:
        """Who has worked and fails since then, for minutes, by errors that nobody foresaw; and how."""
        timeouts = self._timeouts
        return {
            name: f"it fails again and again: {row.text}"
            for name, row in self._rows.items()
            if row.last - row.first > timeouts.component_hopeless
            and now - row.last < timeouts.component_healthy
        }

    def _say(self, name: str, text: str) -> None:
        self.failures[name] = text
        self.changed.touch()

    def _note(self, name: str, text: str, *, foreseen: bool, worked: bool) -> None:
        """Keep the row of failures since it worked last; one of another kind ends it."""
        now, row = anyio.current_time(), self._rows.pop(name, None)
        if foreseen or (row is None and not worked):
            return
        self._rows[name] = _Row(now if worked or row is None else row.first, now, text)

    def _failed(self, name: str, error: Exception, pause: float, *, worked: bool) -> None:
        foreseen = isinstance(error, NodeagentError) and not isinstance(error, InvariantBroken)
        text = error.what if isinstance(error, NodeagentError) else f"{type(error).__name__}: {error}"
        self._say(name, text)
        self._note(name, text, foreseen=foreseen, worked=worked)
        log.event(
            log.SUBSYSTEM_FAILED,
            None if foreseen else error,
            subsystem=name,
            error=text,
            seconds=f"{pause:.1f}",
        )


def _must_have_code(error: Exception) -> None:
    """Code is loaded when it is first wanted, and an upgrade removes that of the version that runs.

    :raises CodeReplaced: if it is gone: to try again is of no use then.
    """
    if not _CODE.exists():
        what = f"nodeagent was upgraded while it ran, and needs code that is gone ({error})"
        raise CodeReplaced(
            what, "systemd starts the new version at once; start it yourself anywhere else"
        ) from error


def alone(group: BaseExceptionGroup[BaseException], kind: type[E]) -> E | None:
    """The one error of that kind inside what a task group raised; None if there is anything else in it."""
    taken, rest = group.split(kind)
    one: BaseException | None = taken
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    return one if isinstance(one, kind) and rest is None else None
