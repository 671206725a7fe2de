# SPDX-License-Identifier: Apache-2.0
"""What is scanned next, and when: at once after quiet, a burst as one, all from time to time."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.agent import wakes
from nodeagent.agent.wakes import Wakes

LATER = 3600.0


async def quiet(of: Wakes) -> None:
    """Let the first scan be over, and be quiet for a while."""
    of.take()
    await anyio.sleep_until(anyio.current_time() + 2 * wakes.QUIET)


def test_the_first_scan_is_of_everything_and_what_comes_after_it_is_for_the_next() -> None:
    waiting = Wakes()
    waiting.wake_one("a")
    assert waiting.take() is None
    assert waiting.take() == frozenset()
    waiting.wake(frozenset({"a", "b"}))
    waiting.wake_one("c")
    assert waiting.take() == frozenset({"a", "b", "c"})
    waiting.wake_one("a")
    waiting.wake_one(None)
    waiting.wake_one("b")
    assert waiting.take() is None
    assert waiting.taken == 4


async def test_the_first_wake_after_quiet_is_due_at_once() -> None:
    waiting = Wakes()
    await quiet(waiting)
    async with anyio.create_task_group() as tasks:
        ended: list[float] = []

        async def due() -> None:
            await waiting.due(LATER)
            ended.append(anyio.current_time())

        tasks.start_soon(due)
        await anyio.sleep_until(anyio.current_time() + 2 * wakes.QUIET)
        began = anyio.current_time()
        waiting.wake_one("a")
    assert ended[0] - began < wakes.QUIET / 2
    assert waiting.take() == frozenset({"a"})


async def test_a_wake_that_follows_a_scan_closely_waits_for_the_others_of_its_burst() -> None:
    waiting = Wakes()
    waiting.take()
    waiting.wake_one("a")
    began = anyio.current_time()
    await waiting.due(LATER)
    assert wakes.QUIET <= anyio.current_time() - began < wakes.BOUND


async def test_a_burst_that_does_not_end_is_scanned_all_the_same() -> None:
    waiting = Wakes()
    waiting.take()
    waiting.wake_one("a")
    async with anyio.create_task_group() as tasks:

        async def storm() -> None:
            while True:
                waiting.wake_one("a")
                await anyio.sleep(wakes.QUIET / 5)

        tasks.start_soon(storm)
        began = anyio.current_time()
        await waiting.due(LATER)
        assert wakes.BOUND <= anyio.current_time() - began < 2 * wakes.BOUND
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("slow", [0.02, 0.05])
async def test_without_a_wake_everything_is_due_from_time_to_time(slow: float) -> None:
    waiting = Wakes()
    waiting.take()
    began = anyio.current_time()
    await waiting.due(slow)
    assert anyio.current_time() - began >= slow
    assert waiting.take() is None
