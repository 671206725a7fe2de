# SPDX-License-Identifier: Apache-2.0
"""Long work on the event loop, and others that have their turn meanwhile."""

from __future__ import annotations

import time

import anyio

from nodeagent.base import slices
from nodeagent.base.slices import Slices


async def turns_of_others(seconds: float) -> int:
    """How often another task had its turn during work of so many seconds, cut into slices."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        await anyio.lowlevel.checkpoint()
        turns, own, until = 0, Slices(), time.monotonic() + seconds
        while time.monotonic() < until:
            await own.rest()
        worked = turns
        tasks.cancel_scope.cancel()
    return worked


async def test_others_have_their_turn_after_each_slice() -> None:
    assert await turns_of_others(20 * slices.SLICE) >= 3  # on a machine that others load, too


async def test_short_work_is_done_at_once() -> None:
    assert await turns_of_others(0.0) == 0
