# SPDX-License-Identifier: Apache-2.0
"""Calls in daemon threads: results, errors, being left behind. Left out: what sysfs does to them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import anyio
import pytest

from nodeagent.base import threads
from nodeagent.base.errors import InternalError


async def test_a_call_gives_the_result_and_runs_in_a_daemon_thread() -> None:
    def work(number: int, *, plus: int) -> tuple[int, bool]:
        return number + plus, threading.current_thread().daemon

    assert await threads.call(work, 1, plus=2) == (3, True)


async def test_an_error_reaches_the_one_who_waits() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await threads.call(fail)


async def test_a_call_that_hangs_does_not_hold_the_one_who_stops_waiting() -> None:
    gate = threading.Event()
    call = threads.start(gate.wait)
    with anyio.move_on_after(0.01) as scope:
        await asyncio.wait([call])
    assert scope.cancelled_caught
    assert not call.done()
    gate.set()
    assert await call


async def test_many_calls_at_once_keep_their_own_results() -> None:
    calls = [threads.start(lambda n: n * n, n) for n in range(50)]
    assert [await call for call in calls] == [n * n for n in range(50)]


def test_a_process_exits_although_a_call_hangs() -> None:
    program = """
import anyio, threading
from nodeagent.base import threads
async def main():
    threads.start(threading.Event().wait)
    with anyio.move_on_after(0.01):
        await threads.call(threading.Event().wait)
anyio.run(main)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=20, check=False)
    assert done.returncode == 0


def test_a_call_that_ends_after_the_loop_harms_nobody() -> None:
    gate = threading.Event()
    ends: list[threading.Thread] = []

    def work() -> None:
        ends.append(threading.current_thread())
        gate.wait()

    async def main() -> None:
        with anyio.move_on_after(0.05):
            await threads.call(work)

    anyio.run(main)
    gate.set()
    ends[0].join(timeout=10)
    assert not ends[0].is_alive(), "the thread did not come through"


async def test_of_calls_one_by_one_the_next_waits_in_vain_for_one_that_hangs() -> None:
    ends, calls = threading.Event(), threads.OneByOne()
    assert await calls.call(0.01, ends.wait) is None
    assert await calls.call(0.01, lambda: "beside it") is None
    ends.set()
    assert await calls.call(60.0, lambda: "after it") == "after it"


async def test_calls_one_by_one_are_never_made_at_the_same_time() -> None:
    calls, under_way, most = threads.OneByOne(), 0, 0

    def work() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.01)
        under_way -= 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(calls.call, 60.0, work)
    assert most == 1


async def test_a_call_that_raises_stop_iteration_ends_its_caller() -> None:
    def take_one() -> int:
        return next(iter(()))

    with anyio.fail_after(5), pytest.raises(InternalError, match="StopIteration"):
        await threads.call(take_one)
