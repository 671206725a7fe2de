# SPDX-License-Identifier: Apache-2.0
"""What is withdrawn before a write is given back once the host shows its effect, whatever fails meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from nodeagent.base.errors import AllocationRefused
from tests.agent.changing.changing import FIRST, Changing, node, t4, uuid
from tests.facts import names

pytestmark = pytest.mark.usefixtures("loop_may_block")  # the simulated kernel works in the same loop


def blocked(changing: Changing, instance: str) -> Path:
    """The instance's file ``remove``: a write to it waits for a reader, as the kernel's for the last user."""
    path = Path(changing.root.path(f"/sys/bus/mdev/devices/{instance}/remove"))
    path.unlink()
    os.mkfifo(path)
    return path


async def test_what_a_write_has_taken_that_a_failure_has_left_is_given_back_when_it_returns(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
            await changing.until_at_rest()
        first = uuid(FIRST, "nvidia-228", 0)
        path = blocked(changing, first)
        changing.forget(deadline=60.0)
        async with changing.run():
            changing.want()
            await changing.until(lambda: len(changing.status.in_progress) == 1)
        assert changing.status.stuck == ()
        async with changing.run():  # its supervisor begins it again after a failure
            with pytest.raises(AllocationRefused):
                changing.allocate(first)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            await changing.until(lambda: not changing.now.reservations.withdrawn)
            assert changing.status.in_progress == ()
            os.close(reader)


async def test_what_was_withdrawn_for_steps_that_a_failure_has_ended_is_given_back(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
            await changing.until_at_rest()
            changing.want()
            await changing.until(lambda: len(changing.cards.instances) <= 1)
        async with changing.run():
            await changing.until_counts()
            await changing.until(lambda: not changing.now.reservations.withdrawn)


async def test_what_was_given_away_a_moment_ago_is_not_removed(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-228", 2))
        fresh = uuid(FIRST, "nvidia-228", 1)
        changing.allocate(fresh)
        changing.want()
        await changing.until_counts((FIRST, "nvidia-228", 1))
        await changing.until_at_rest()
        assert list(changing.cards.instances) == [fresh]
        (waiting,) = changing.status.waiting
        names(waiting.message, "pod")
        assert changing.releases.awaited.get() == {fresh}


@pytest.mark.parametrize("checkpoints", range(12))
async def test_an_allocate_at_any_moment_of_a_removal_is_refused_or_keeps_its_device(
    tmp_path: Path, checkpoints: int
) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing, changing.run():
        await changing.until_counts((FIRST, "nvidia-228", 2))
        await changing.until_at_rest()
        first, second = (uuid(FIRST, "nvidia-228", index) for index in (0, 1))
        changing.want()
        while second in changing.cards.instances and first in changing.cards.instances:
            await anyio.lowlevel.checkpoint()  # each turn of the loop counts here
        for _ in range(checkpoints):
            await anyio.lowlevel.checkpoint()
        try:
            changing.allocate(second)
        except AllocationRefused:
            await changing.until_counts()
        else:
            await changing.until_at_rest()
            assert list(changing.cards.instances) == [second]


async def test_what_is_removed_by_a_late_write_is_not_given_away_until_it_has_returned(
    tmp_path: Path,
) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
        first = uuid(FIRST, "nvidia-228", 0)
        path = blocked(changing, first)
        changing.forget(deadline=0.1)
        async with changing.run():
            changing.want()
            await changing.until(lambda: len(changing.status.stuck) == 1)
            await changing.until(lambda: not changing.runner.working)
            with pytest.raises(AllocationRefused):
                changing.allocate(first)
        async with changing.run():  # its supervisor begins it again after a failure
            with pytest.raises(AllocationRefused):
                changing.allocate(first)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            await changing.until(lambda: not changing.now.reservations.withdrawn)
            changing.allocate(first)
            os.close(reader)


async def test_what_a_late_write_has_taken_is_given_back_when_it_returns(tmp_path: Path) -> None:
    async with node(tmp_path, t4(FIRST), "nvidia-228") as changing:
        async with changing.run():
            await changing.until_counts((FIRST, "nvidia-228", 2))
        first = uuid(FIRST, "nvidia-228", 0)
        path = blocked(changing, first)
        changing.forget(deadline=0.1)
        async with changing.run():
            changing.want()
            await changing.until(lambda: len(changing.status.stuck) == 1)
            await changing.until(lambda: not changing.runner.working)
            for _ in range(2):
                await changing.eyes.observer.rescan(frozenset({first}))
            assert first in changing.now.reservations.withdrawn
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            await changing.until(lambda: not changing.now.reservations.withdrawn)
            os.close(reader)
