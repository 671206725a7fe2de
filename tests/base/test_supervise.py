# SPDX-License-Identifier: Apache-2.0
"""Subsystems that fail run anew; only a second daemon on the node ends all."""

from __future__ import annotations

import itertools

import anyio
import pytest

from nodeagent.base import log, supervise
from nodeagent.base.errors import AlreadyRunning, InvariantBroken, KernelRefused
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from tests import virtual
from tests.conftest import Said
from tests.facts import each_names


class Failing:
    """Raises each of its errors once, then waits for ever."""

    name = "it"

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.starts: list[float] = []
        self.going = anyio.Event()

    async def run(self) -> None:
        """One life."""
        self.starts.append(anyio.current_time())
        if self._errors:
            raise self._errors.pop(0)
        self.going.set()
        await anyio.sleep_forever()


@virtual.TIME
async def test_what_fails_is_started_again_later_each_time() -> None:
    subsystem = Failing(ValueError("a"), ValueError("b"), ValueError("c"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Supervisor(Timeouts()).keep, "it", subsystem.run)
        with anyio.fail_after(5):
            await subsystem.going.wait()
        tasks.cancel_scope.cancel()
    first, second, third = (b - a for a, b in itertools.pairwise(subsystem.starts))
    assert 0.05 <= first < second + 0.06
    assert second >= 0.1
    assert third >= 0.2


async def test_a_component_runs_under_its_own_name() -> None:
    supervisor, component = Supervisor(Timeouts()), Failing(OSError("x"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.run, component)
        with anyio.fail_after(5):
            await component.going.wait()
        tasks.cancel_scope.cancel()
    assert supervisor.failures == {"it": ""}
    assert len(component.starts) == 2


async def test_a_failure_is_told_while_it_lasts_and_logged(
    said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor, subsystem = (
        Supervisor(Timeouts()),
        Failing(KernelRefused("no inotify instance", "raise the limit")),
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "inotify", subsystem.run)
        await anyio.wait_all_tasks_blocked()
        assert supervisor.failures == {"inotify": "no inotify instance"}
        with anyio.fail_after(5):
            await subsystem.going.wait()
        assert supervisor.failures == {"inotify": ""}
        tasks.cancel_scope.cancel()
    (event,) = said(log.SUBSYSTEM_FAILED)
    assert (event["subsystem"], event["error"]) == ("inotify", "no inotify instance")
    assert "Traceback" not in caplog.text, "it says itself what is wrong"


@pytest.mark.parametrize("bug", [KeyError("no-such-key"), InvariantBroken("never twice")], ids=str)
async def test_an_error_that_nobody_foresaw_is_logged_with_the_way_to_it(
    bug: Exception, said: Said, caplog: pytest.LogCaptureFixture
) -> None:
    subsystem = Failing(bug)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Supervisor(Timeouts()).keep, "it", subsystem.run)
        with anyio.fail_after(5):
            await subsystem.going.wait()
        tasks.cancel_scope.cancel()
    assert len(said(log.SUBSYSTEM_FAILED)) == 1
    assert "Traceback" in caplog.text
    assert "test_supervise.py" in caplog.text
    assert "in run" in caplog.text


async def test_a_subsystem_that_is_ended_while_it_waits_leaves_no_failure() -> None:
    supervisor, subsystem = Supervisor(Timeouts()), Failing(OSError("x"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "it", subsystem.run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert supervisor.failures == {"it": ""}


async def test_another_daemon_on_the_node_is_no_failure_to_live_with() -> None:
    supervisor = Supervisor(Timeouts())
    with anyio.fail_after(5), pytest.raises(AlreadyRunning):
        await supervisor.keep("it", Failing(AlreadyRunning("another one")).run)
    assert supervisor.failures == {}


@virtual.TIME
async def test_the_others_are_not_disturbed() -> None:
    supervisor, bad, good = Supervisor(Timeouts()), Failing(*(OSError("x") for _ in range(3))), Failing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "good", good.run)
        tasks.start_soon(supervisor.keep, "bad", bad.run)
        with anyio.fail_after(5):
            await bad.going.wait()
        tasks.cancel_scope.cancel()
    assert len(good.starts) == 1


async def test_a_subsystem_that_returns_is_not_started_again() -> None:
    runs: list[int] = []

    async def run() -> None:
        runs.append(1)

    await Supervisor(Timeouts()).keep("once", run)
    assert runs == [1]


async def test_an_end_that_was_asked_for_is_no_failure(said: Said) -> None:
    supervisor, subsystem = Supervisor(Timeouts()), Failing()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "it", subsystem.run)
        with anyio.fail_after(5):
            await subsystem.going.wait()
        tasks.cancel_scope.cancel()
    assert (supervisor.failures, said(log.SUBSYSTEM_FAILED)) == ({}, [])


def test_what_ended_a_task_group_is_found_inside_unless_something_else_ended_it_too() -> None:
    taken = AlreadyRunning("another one")
    inside = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [taken])])
    assert supervise.alone(inside, AlreadyRunning) is taken
    both = BaseExceptionGroup("outer", [taken, ValueError("a bug")])
    assert supervise.alone(both, AlreadyRunning) is None
    assert supervise.alone(BaseExceptionGroup("outer", [ValueError("a bug")]), AlreadyRunning) is None


class Worn:
    """Works for a time, and then fails whenever it is started."""

    def __init__(self, works: float, error: Exception) -> None:
        self._works = works
        self._error = error

    async def run(self) -> None:
        """One life."""
        works, self._works = self._works, 0.0
        await anyio.sleep(works)
        raise self._error


@virtual.TIME
@pytest.mark.parametrize(
    ("works", "error", "hopeless"),
    [
        (100.0, ValueError("why"), ["ValueError: why"]),
        (100.0, InvariantBroken("why"), ["why"]),
        (0.0, ValueError("why"), []),
        (100.0, KernelRefused("the disk is full"), []),
    ],
    ids=["a bug", "a broken invariant", "it has never worked", "a reason that lies outside"],
)
async def test_another_start_is_hoped_for_only_where_one_has_worked(
    works: float, error: Exception, hopeless: list[str]
) -> None:
    supervisor = Supervisor(Timeouts())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "it", Worn(works, error).run)
        await anyio.sleep(works + 290)
        assert supervisor.hopeless(anyio.current_time()) == {}
        await anyio.sleep(60)
        found = supervisor.hopeless(anyio.current_time())
        assert [*found] == ["it"] * len(hopeless)
        each_names(found.values(), *((text,) for text in hopeless))
        tasks.cancel_scope.cancel()


@virtual.TIME
async def test_who_works_again_is_not_hopeless() -> None:
    supervisor, worn = Supervisor(Timeouts()), Worn(100.0, ValueError("why"))

    async def run() -> None:
        await (worn.run() if anyio.current_time() < 1500 else anyio.sleep_forever())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervisor.keep, "it", run)
        await anyio.sleep(490)
        assert supervisor.hopeless(anyio.current_time())
        await anyio.sleep(200)
        assert supervisor.hopeless(anyio.current_time()) == {}
        tasks.cancel_scope.cancel()
