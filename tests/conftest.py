# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the one event loop, a watch over it, and what nodeagent said.

asyncio is the one backend of anyio that nodeagent runs on. After each async test no task may be left, and
the loop must have turned all the time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import ExitStack
from typing import Any

import anyio
import pytest

from nodeagent.base import log
from tests import places, virtual
from tests.pulse import Pulse

WORKED = 0.5  # seconds of a processor that one turn of the loop may take
STOOD = 3.0  # seconds that it may take in all: CI saw 1.2 in a test without work or calls that take long
ROOM = 4 << 30  # bytes; a whole run was seen to write 0.9 GiB
END = 2.0  # seconds for tasks to end that were told to

Said = Callable[[log.Event], list[dict[str, log.Value]]]


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep the files of several workers in memory, and remove them: small files keep a disk busy for long.

    A shell starts a command in the background with SIGINT ignored, and processes of tests would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("numprocesses", None) and not config.option.basetemp:
        files = ExitStack()
        place = files.enter_context(places.in_memory("", ROOM))  # a short path: sockets lie below it
        config.option.basetemp = str(place / "t")
        config.add_cleanup(files.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let workers report what was logged: they send valid UTF-8 only, and some tests log other texts."""
    report = yield
    report.sections = [(title, text.encode(errors="replace").decode()) for title, text in report.sections]
    return report


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
    pulse = _pulse()
    yield
    with anyio.move_on_after(END):
        while _tasks():  # noqa: ASYNC110 - the end of a foreign task gives no event
            await anyio.sleep(0.01)
    assert not _tasks(), f"tasks were left behind: {_tasks()}"
    longest = pulse.stop()
    if "loop_may_block" not in request.fixturenames:
        assert longest.worked < WORKED and longest.stood < STOOD, f"the loop was blocked: {longest}"


def _pulse() -> Pulse | virtual.Patient:
    """A loop's own time is no measure of it where that time jumps."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, virtual.Loop):
        return Pulse()
    loop.looks.begin()
    return loop.looks


@pytest.fixture
def loop_may_block() -> None:
    """For a test that keeps the loop from turning on purpose."""


def _tasks() -> list[asyncio.Task[Any]]:
    """All tasks but those of anyio's own test runner."""
    runner = "TestRunner."
    return [
        task for task in asyncio.all_tasks() if runner not in getattr(task.get_coro(), "__qualname__", "")
    ]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """The fields of all events of a kind that were logged so far."""
    caplog.set_level(logging.DEBUG, logger=log.LOGGER)

    def of_kind(kind: log.Event) -> list[dict[str, log.Value]]:
        return [vars(record)["fields"] for record in caplog.records if vars(record).get("event") is kind]

    return of_kind
