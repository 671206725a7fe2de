# SPDX-License-Identifier: Apache-2.0
"""A loop that is kept from turning is seen, whether it sleeps or works; one that gets no processor is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import pytest

from tests.pulse import Pulse, ready_time

RIVALS = 4
SPIN = "while True: pass"


@contextmanager
def one_processor_shared() -> Iterator[None]:
    """This thread has one processor, and others that never rest have the same one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    rivals = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(RIVALS)]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for rival in rivals:
            rival.kill()
            rival.wait()


def work(seconds: float, clock: Callable[[], float] = time.thread_time) -> None:
    """Keep the processor busy until the clock says so."""
    end = clock() + seconds
    while clock() < end:
        pass


@pytest.mark.usefixtures("loop_may_block")
async def test_a_loop_that_works_for_a_while_is_seen_to_work_and_to_stand_for_that_long() -> None:
    pulse = Pulse()
    await anyio.sleep(0.1)
    work(0.3)
    await anyio.sleep(0.1)
    found = pulse.stop()
    assert found.worked >= 0.3
    assert found.stood >= 0.3


@pytest.mark.usefixtures("loop_may_block")
async def test_a_loop_that_sleeps_for_a_while_is_seen_to_stand_and_not_to_work() -> None:
    pulse = Pulse()
    await anyio.sleep(0.1)
    time.sleep(0.3)  # noqa: ASYNC251 - on purpose
    found = pulse.stop()
    assert found.stood >= 0.3
    assert found.worked < 0.2


async def test_a_loop_that_turns_stands_still_for_no_time_to_speak_of() -> None:
    pulse = Pulse()
    await anyio.sleep(0.2)
    found = pulse.stop()
    assert found.stood < 0.2
    assert found.worked < 0.1


@pytest.mark.usefixtures("loop_may_block")
async def test_what_is_done_before_the_next_turn_of_the_loop_does_not_count() -> None:
    pulse = Pulse()
    time.sleep(0.3)  # noqa: ASYNC251 - as long as it takes to set up a host
    await anyio.sleep(0.1)
    assert pulse.stop().stood < 0.2


def test_the_time_that_others_have_the_processor_does_not_count() -> None:
    with one_processor_shared():
        began, ready = time.monotonic(), ready_time()
        work(1.0, time.monotonic)
        passed, counted = time.monotonic() - began, ready_time() - ready
    assert counted < passed / 2
