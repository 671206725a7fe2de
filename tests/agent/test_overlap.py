# SPDX-License-Identifier: Apache-2.0
"""Questions that overlap: the newest answer counts, and who asked before waits until it stands."""

from __future__ import annotations

import anyio

from nodeagent.agent.overlap import Overlap


def test_the_answer_to_an_older_question_than_was_answered_is_not_the_newest() -> None:
    overlap = Overlap()
    assert [overlap.is_newest(each) for each in (2.0, 1.0, 2.0, 3.0)] == [True, False, True, True]


def test_what_a_newer_question_was_answered_stands() -> None:
    overlap = Overlap()
    assert [overlap.take(each) for each in (2.0, 1.0, 3.0)] == [True, False, True]


async def test_who_asked_before_waits_until_the_newer_answer_stands() -> None:
    overlap, stood = Overlap(), []

    async def older() -> None:
        await overlap.newer_stands(1.0)
        stood.append(overlap.take(1.0))

    async with anyio.create_task_group() as tasks:
        with overlap.taking():
            tasks.start_soon(older)
            await anyio.wait_all_tasks_blocked()
            assert not stood
            overlap.take(2.0)
    assert stood == [False]


async def test_nobody_waits_for_an_answer_that_is_given_up() -> None:
    overlap = Overlap()
    async with anyio.create_task_group() as tasks:
        with overlap.taking():
            tasks.start_soon(overlap.newer_stands, 1.0)
            await anyio.wait_all_tasks_blocked()
    with anyio.fail_after(1.0):
        await overlap.newer_stands(1.0)
