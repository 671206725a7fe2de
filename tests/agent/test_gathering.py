# SPDX-License-Identifier: Apache-2.0
"""What is scanned next, and when: at once after quiet, a burst as one, all from time to time.

What must not be late is in virtual time: on a loaded machine a storm pauses, and a pause ends a burst.
"""

from __future__ import annotations

import anyio
import pytest

from nodeagent.agent.observe import Gathering
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.scan_requests import ScanRequests
from tests import virtual

LATER = 3600.0


class Waiting:
    """The scan_requests, and who waits for them; the first scan is over."""

    def __init__(self) -> None:
        self.scan_requests = ScanRequests()
        self.gathering = Gathering(self.scan_requests, timeouts=Timeouts())
        self.gathering.take()


async def quiet() -> None:
    """A moment in which nothing happens."""
    await anyio.sleep_until(anyio.current_time() + 2 * Timeouts().event_burst_gap)


@virtual.TIME
async def test_the_first_wake_after_quiet_is_due_at_once() -> None:
    waiting = Waiting()
    await quiet()
    async with anyio.create_task_group() as tasks:
        ended: list[float] = []

        async def due() -> None:
            await waiting.gathering.due(LATER)
            ended.append(anyio.current_time())

        tasks.start_soon(due)
        await quiet()
        began = anyio.current_time()
        waiting.scan_requests.add("a")
    assert ended[0] - began < Timeouts().event_burst_gap / 2
    assert waiting.gathering.take() == frozenset({"a"})


async def test_a_wake_that_follows_a_scan_closely_waits_for_the_others_of_its_burst() -> None:
    waiting = Waiting()
    waiting.scan_requests.add("a")
    began = anyio.current_time()
    await waiting.gathering.due(LATER)
    assert Timeouts().event_burst_gap <= anyio.current_time() - began < Timeouts().event_burst


@virtual.TIME
async def test_a_burst_that_does_not_end_is_scanned_all_the_same() -> None:
    waiting = Waiting()
    waiting.scan_requests.add("a")
    async with anyio.create_task_group() as tasks:

        async def storm() -> None:
            while True:
                waiting.scan_requests.add("a")
                await anyio.sleep(Timeouts().event_burst_gap / 5)

        tasks.start_soon(storm)
        began = anyio.current_time()
        await waiting.gathering.due(LATER)
        assert Timeouts().event_burst <= anyio.current_time() - began < 2 * Timeouts().event_burst
        tasks.cancel_scope.cancel()


@virtual.TIME
async def test_wakes_that_name_something_all_the_time_do_not_put_off_everything() -> None:
    waiting = Waiting()
    began = anyio.current_time()
    async with anyio.create_task_group() as tasks:

        async def looks() -> None:
            while True:
                await anyio.sleep(2)  # as a release is looked for
                waiting.scan_requests.add("a")

        tasks.start_soon(looks)
        taken: list[frozenset[str] | None] = []
        while None not in taken and len(taken) < 100:
            await waiting.gathering.due(60)
            taken.append(waiting.gathering.take())
        tasks.cancel_scope.cancel()
    assert taken[-1] is None
    assert 60 <= anyio.current_time() - began < 63


@pytest.mark.parametrize("slow", [0.02, 0.05])
async def test_without_a_wake_everything_is_due_from_time_to_time(slow: float) -> None:
    began = anyio.current_time()
    waiting = Waiting()
    await waiting.gathering.due(slow)
    assert anyio.current_time() - began >= slow
    assert waiting.gathering.take() is None
