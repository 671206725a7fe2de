# SPDX-License-Identifier: Apache-2.0
"""The numbers of Allocates: how each ended, also when several are under way."""

from __future__ import annotations

import anyio
import pytest

from nodeagent.agent.tally import AllocateTally
from nodeagent.base.errors import AllocationRefused, KernelRefused
from nodeagent.model.ids import ResourceName
from nodeagent.model.status import AllocationsStatus
from tests import virtual

GPU, OTHER = ResourceName("a.b/gpu"), ResourceName("a.b/other")


def refused() -> None:
    raise AllocationRefused("it is held")


def failed() -> None:
    raise KernelRefused("no answer", errno=5, path="/sys")


async def test_each_end_counts_for_its_own_resource() -> None:
    tally = AllocateTally()
    with tally.counted(GPU):
        pass
    for _ in range(2):
        with pytest.raises(AllocationRefused), tally.counted(GPU):
            refused()
    with pytest.raises(KernelRefused), tally.counted(OTHER):
        failed()
    assert tally.of(GPU) == AllocationsStatus(granted=1, refused=2)
    assert tally.of(OTHER) == AllocationsStatus(failed=1)
    assert tally.of(ResourceName("a.b/none")) == AllocationsStatus()
    assert sum(tally.durations.counts) == 4


@virtual.TIME
async def test_allocates_at_the_same_time_lose_no_count_and_an_ended_one_has_failed() -> None:
    tally = AllocateTally()

    async def allocate(seconds: float) -> None:
        with tally.counted(GPU):
            await anyio.sleep(seconds)

    async with anyio.create_task_group() as tasks:
        for seconds in (1.0, 2.0, 3.0, 100.0):
            tasks.start_soon(allocate, seconds)
        await anyio.sleep(5)
        tasks.cancel_scope.cancel()
    assert tally.of(GPU) == AllocationsStatus(granted=3, failed=1)
    assert tally.durations.seconds == pytest.approx(11.0)
