# SPDX-License-Identifier: Apache-2.0
"""Subsystems that fail run anew; only a second daemon on the node ends all."""

from __future__ import annotations

import asyncio
import itertools

import anyio
import pytest

from nodeagent.base import log, supervise
from nodeagent.base.errors import AlreadyRunning, InternalError, KernelRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Heartbeat, Supervisor, Task
from nodeagent.base.timeouts import Timeouts
from tests import virtual
from tests.conftest import Said


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


@pytest.mark.parametrize("bug", [KeyError("no-such-key"), InternalError("never twice")], ids=str)
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


async def test_a_cancellation_that_nobody_asked_for_is_a_failure_and_no_end(said: Said) -> None:
    lives: list[int] = []
    again = anyio.Event()

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        lives.append(task.cancelling())
        if len(lives) == 1:
            task.cancel()  # as a library does that lets it escape
        else:
            again.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Supervisor(Timeouts()).keep, "it", run)
        with anyio.fail_after(5):
            await again.wait()
        tasks.cancel_scope.cancel()
    assert lives == [0, 0]
    (event,) = said(log.SUBSYSTEM_FAILED)
    assert (event["subsystem"], "library" in str(event["error"])) == ("it", True)


async def test_a_component_that_ends_because_a_task_of_it_was_cancelled_runs_again(said: Said) -> None:
    lives: list[int] = []
    again = anyio.Event()

    async def ends() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    async def run() -> None:
        lives.append(len(lives))
        async with anyio.create_task_group() as group:
            if len(lives) == 1:
                group.start_soon(ends)
            else:
                again.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Supervisor(Timeouts()).run, Task("it", run))
        with anyio.fail_after(5):
            await again.wait()
        tasks.cancel_scope.cancel()
    assert lives == [0, 1]
    assert [event["subsystem"] for event in said(log.SUBSYSTEM_FAILED)] == ["it"]


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
    assert supervise.only_error(inside, AlreadyRunning) is taken
    both = BaseExceptionGroup("outer", [taken, ValueError("a bug")])
    assert supervise.only_error(both, AlreadyRunning) is None
    assert supervise.only_error(BaseExceptionGroup("outer", [ValueError("a bug")]), AlreadyRunning) is None


@virtual.TIME
async def test_an_idle_loop_turns_often_enough_and_one_that_has_stopped_is_reported() -> None:
    heartbeat = Heartbeat("the loop", 40.0)
    changes = Latest(0)

    async def loop() -> None:
        while True:
            heartbeat.turned()
            await heartbeat.wait(changes.newer(changes.version))

    async with anyio.create_task_group() as tasks:
        await anyio.sleep(100)
        assert heartbeat.problem() is None, "it has not begun"
        tasks.start_soon(loop)
        await anyio.sleep(1000)
        assert heartbeat.problem() is None
        tasks.cancel_scope.cancel()
    await anyio.sleep(40 * 2 / 3 - 1)
    assert heartbeat.problem() is None
    await anyio.sleep(40)
    assert heartbeat.problem() == "the loop made no iteration for 40 s"
    heartbeat.turned()
    assert heartbeat.problem() is None


@virtual.TIME
async def test_a_change_ends_the_wait_of_a_loop_before_it_has_to_turn() -> None:
    heartbeat, changes, began = Heartbeat("the loop", 40.0), Latest(0), anyio.current_time()
    changes.set(1)
    assert await heartbeat.wait(changes.newer(0))
    assert anyio.current_time() == began
    assert not await heartbeat.wait(changes.newer(1))
    assert anyio.current_time() == pytest.approx(began + 40 / 3)


@virtual.TIME
async def test_a_loop_that_waits_for_a_disk_needs_no_turn() -> None:
    heartbeat = Heartbeat("the loop", 40.0)
    heartbeat.turned()
    with heartbeat.paused():
        await anyio.sleep(1000)
        assert heartbeat.problem() is None
    assert heartbeat.problem() is None
    await anyio.sleep(41)
    assert heartbeat.problem() is not None
