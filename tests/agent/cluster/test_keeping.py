# SPDX-License-Identifier: Apache-2.0
"""What was heard of the cluster, put on disk: in the end it is there, whatever has happened before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.cluster import record
from nodeagent.agent.cluster.keeping import Keeper
from nodeagent.agent.cluster.record import Record
from nodeagent.base.latest import Latest

OLD, NEW, NEXT = {"zone": "a"}, {"zone": "b"}, {"zone": "c"}
LONG = 5.0  # seconds


class Kept:
    """A keeper of a file in which OLD is, and a bell for each change of what it tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bell: Latest[None] = Latest(None)
        self.keeper = Keeper(str(path), self.bell.touch, 60.0)
        record.FILE.save(str(path), Record(labels=OLD, at=1.0))

    @property
    def labels(self) -> object:
        """What the file says."""
        return record.FILE.load(str(self.path)).labels

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """One life of it."""
        await self.keeper.load()
        async with anyio.create_task_group() as group:
            group.start_soon(self.keeper.run)
            yield
            group.cancel_scope.cancel()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for what it tells."""
        with anyio.fail_after(LONG):
            while not holds():
                await self.bell.newer(self.bell.version)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path / "cluster.json")


async def test_what_is_heard_is_on_disk_soon_and_nothing_else_is_written(kept: Kept) -> None:
    async with kept.living():
        await anyio.wait_all_tasks_blocked()
        kept.keeper.keep(None, NEW)
        await kept.until(lambda: kept.keeper.saved.labels == NEW)
    assert kept.labels == NEW
    assert kept.bell.version == 1


async def test_what_was_heard_at_the_end_of_one_life_is_kept_in_the_next(kept: Kept) -> None:
    """It is heard again then, and is no news any more to anybody but the disk."""
    await kept.keeper.load()
    kept.keeper.keep(None, NEW)
    async with kept.living():
        kept.keeper.keep(None, NEW)
        await kept.until(lambda: kept.keeper.saved.labels == NEW)
    assert kept.labels == NEW


async def test_what_cannot_be_written_is_said_until_something_could_be(kept: Kept) -> None:
    aside = kept.path.with_suffix(".new")
    aside.mkdir()
    async with kept.living():
        kept.keeper.keep(None, NEW)
        await kept.until(lambda: bool(kept.keeper.unsaved))
        aside.rmdir()
        kept.keeper.keep(None, NEXT)
        await kept.until(lambda: not kept.keeper.unsaved)
    assert kept.labels == NEXT
