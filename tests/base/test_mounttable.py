# SPDX-License-Identifier: Apache-2.0
"""Changes of the mounts are told, also to who watches a directory; and nothing else is."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from nodeagent.base import mounttable
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Change, Watcher
from tests.mounts import mounted, needs_root

PAUSE = 0.2  # seconds


@needs_root
async def test_a_mount_and_its_end_are_told(tmp_path: Path, loop_may_block: None) -> None:
    told: Latest[None] = Latest(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mounttable.follow, told.touch, PAUSE)
        with anyio.fail_after(5):
            first = (await told.newer(0))[0]  # what was mounted before anybody listened
        with mounted(tmp_path), anyio.fail_after(5):
            second = (await told.newer(first))[0]
        with anyio.fail_after(5):
            await told.newer(second)
        tasks.cancel_scope.cancel()


@needs_root
async def test_a_mount_that_follows_another_one_at_once_is_told_too(
    tmp_path: Path, loop_may_block: None
) -> None:
    told: Latest[None] = Latest(None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(mounttable.follow, told.touch, PAUSE)
        with anyio.fail_after(5):
            seen = (await told.newer(0))[0]
        with mounted(tmp_path), anyio.fail_after(5):  # in the pause
            await told.newer(seen)
        tasks.cancel_scope.cancel()


async def test_without_such_a_file_nothing_is_told(tmp_path: Path) -> None:
    with anyio.move_on_after(0.1) as waited:
        await mounttable.follow(pytest.fail, PAUSE, str(tmp_path / "none"))
    assert waited.cancelled_caught


@needs_root
async def test_a_watched_directory_that_is_mounted_over_is_watched_anew(
    tmp_path: Path, loop_may_block: None
) -> None:
    over, beside = tmp_path / "over", tmp_path / "beside"
    over.mkdir()
    beside.mkdir()
    watcher, told = Watcher(), Latest[tuple[Change, ...]](())

    def tell(change: Change) -> None:
        told.set((*told.get(), change))

    for directory in (over, beside):
        watcher.watch(str(directory), tell)
    try:
        with mounted(over):
            watcher.mounts_changed()
            assert told.get() == (Change(str(over), lost=True),)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watcher.run)
                seen = told.version
                (over / "new").touch()
                with anyio.fail_after(5):
                    while Change(str(over), "new") not in told.get():
                        seen, _ = await told.newer(seen)
                tasks.cancel_scope.cancel()
    finally:
        watcher.close()
