# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the one event loop, a watch over it, and what nodeagent said.

asyncio is the one backend of anyio that nodeagent runs on. After each async test no task may be left, and
the loop must have turned all the time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from nodeagent.base import log
from tests import virtual

BLOCKED = 0.5  # seconds for which the loop may stand still
BEAT = 0.05
END = 2.0  # seconds for tasks to end that were told to

Said = Callable[[log.Event], list[dict[str, log.Value]]]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of every async test."""
    return "asyncio"


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> None:
    """Every async test is watched."""
    if inspect.iscoroutinefunction(obj) and collector.istestfunction(obj, name):
        pytest.mark.usefixtures("watched_loop")(obj)


@pytest.fixture
async def watched_loop(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail a test that leaves tasks behind or that blocks the loop."""
    loop = asyncio.get_running_loop()
    pulse = _Turns(loop.looks) if isinstance(loop, virtual.Loop) else _Pulse()
    yield
    with anyio.move_on_after(END):
        while _tasks():  # noqa: ASYNC110 - the end of a foreign task gives no event
            await anyio.sleep(0.01)
    assert not _tasks(), f"tasks were left behind: {_tasks()}"
    stood = pulse.stop()
    assert stood < BLOCKED or "loop_may_block" in request.fixturenames, (
        f"the loop was blocked for {stood:.1f} s"
    )


@pytest.fixture
def loop_may_block() -> None:
    """For a test that keeps the loop from turning on purpose."""


def _tasks() -> list[asyncio.Task[Any]]:
    """All tasks but those of anyio's own test runner."""
    runner = "TestRunner."
    return [
        task for task in asyncio.all_tasks() if runner not in getattr(task.get_coro(), "__qualname__", "")
    ]


class _Turns:
    """The longest turn of a loop whose own time is no measure of it."""

    def __init__(self, looks: virtual.Patient) -> None:
        self._looks = looks
        looks.begin()

    def stop(self) -> float:
        """Seconds; the present turn is as good as over."""
        return self._looks.longest


class _Pulse:
    """Measures the longest time for which the loop did not turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worst = 0.0
        self._beat()

    def _beat(self) -> None:
        self._due = time.monotonic() + BEAT
        self._timer = self._loop.call_later(BEAT, self._beaten)

    def _beaten(self) -> None:
        self._worst = max(self._worst, time.monotonic() - self._due)
        self._beat()

    def stop(self) -> float:
        """Seconds; the present turn counts."""
        self._timer.cancel()
        return max(self._worst, time.monotonic() - self._due)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """The fields of all events of a kind that were logged so far."""
    caplog.set_level(logging.DEBUG, logger=log.LOGGER)

    def of_kind(kind: log.Event) -> list[dict[str, log.Value]]:
        return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") is kind]

    return of_kind
