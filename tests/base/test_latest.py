# SPDX-License-Identifier: Apache-2.0
"""The cell between loops: who is woken, what a slow reader sees, and what versions mean."""

from __future__ import annotations

import anyio

from nodeagent.base.latest import Latest


async def _read(cell: Latest[int], seen: int, into: list[int]) -> None:
    into.append((await cell.newer(seen))[1])


def test_an_equal_value_changes_nothing_and_keeps_the_object() -> None:
    first, equal = (1, 2), tuple(map(int, "12"))
    cell: Latest[tuple[int, ...]] = Latest(first)
    assert not cell.set(equal)
    assert cell.version == 0
    assert cell.get() is first


def test_a_change_counts_the_version() -> None:
    cell = Latest(1)
    assert cell.set(2)
    assert cell.set(3)
    assert (cell.version, cell.get()) == (2, 3)


async def test_an_equal_value_wakes_nobody() -> None:
    cell, found = Latest(1), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, cell, 0, found)
        await anyio.wait_all_tasks_blocked()
        cell.set(1)
        await anyio.wait_all_tasks_blocked()
        assert found == []
        cell.set(2)
    assert found == [2]


async def test_all_readers_are_woken_by_one_change() -> None:
    cell, found = Latest(0), list[int]()
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(_read, cell, 0, found)
        await anyio.wait_all_tasks_blocked()
        cell.set(7)
    assert found == [7, 7, 7]


async def test_a_slow_reader_skips_values_and_sees_the_last() -> None:
    cell, found = Latest(0), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, cell, 0, found)
        await anyio.wait_all_tasks_blocked()
        for value in (1, 2, 3):
            cell.set(value)
    assert found == [3]
    assert await cell.newer(0) == (3, 3)


async def test_touch_wakes_although_the_value_is_the_same() -> None:
    cell, found = Latest(5), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, cell, 0, found)
        await anyio.wait_all_tasks_blocked()
        cell.touch()
    assert (found, cell.version) == ([5], 1)


async def test_a_version_that_never_was_is_answered_at_once() -> None:
    with anyio.fail_after(1):
        assert await Latest("first").newer(-1) == (0, "first")


async def test_a_reader_that_gives_up_disturbs_nobody() -> None:
    cell, found = Latest(0), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, cell, 0, found)
        with anyio.move_on_after(0.01) as scope:
            await cell.newer(0)
        assert scope.cancelled_caught
        cell.set(1)
    assert found == [1]


async def test_a_follower_is_told_the_present_value_unless_it_was_seen_and_each_newer_one() -> None:
    cell, all_told, new_told = Latest(5), list[int](), list[int]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cell.follow, all_told.append)
        tasks.start_soon(cell.follow, new_told.append, cell.version)
        for value in (6, 7):
            await anyio.wait_all_tasks_blocked()
            cell.set(value)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert (all_told, new_told) == ([5, 6, 7], [6, 7])
