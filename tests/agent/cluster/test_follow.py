# SPDX-License-Identifier: Apache-2.0
"""The state of the cluster, saved: in the end the newest is on disk, whatever has happened before."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import core as cores
from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.follow import ClusterFollower
from nodeagent.agent.cluster.state import ClusterState
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.kubevirt import ClusterWishes
from nodeagent.model.status import ClusterStatus
from tests.agent.cluster.telling import DEFAULTS

LONG = 5.0  # seconds


def zone(name: str) -> ClusterState:
    """A state with one label."""
    return ClusterState(wishes=ClusterWishes(labels={"zone": name}))


class Saving:
    """A follower that follows nothing; the state of the zone a is on disk."""

    def __init__(self, folder: Path) -> None:
        self.core = cores.build(Root(str(folder)), Latest(DEFAULTS), Timeouts())
        self.path = folder / "var/lib/nodeagent/cluster.json"
        self.follower = ClusterFollower(self.core)
        state.FILE.save(str(self.path), zone("a")._replace(saved=1.0))

    @property
    def saved(self) -> object:
        """The labels on disk."""
        return state.FILE.load(str(self.path)).wishes.labels

    @property
    def status(self) -> ClusterStatus:
        """The status of the follower."""
        return self.follower.status

    @asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        """One run of it."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.follower.run)
            await self.follower.state.newer(self.follower.state.version)
            yield
            group.cancel_scope.cancel()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something is saved, or is not."""
        with anyio.fail_after(LONG):
            await self.core.snapshots.until(lambda _: holds())


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[Saving]:
    made = Saving(tmp_path)
    yield made
    made.core.watcher.close()


async def test_the_state_on_disk_is_in_force_at_the_start_and_newer_ones_are_saved(saving: Saving) -> None:
    async with saving.living():
        assert saving.core.cluster.get() == zone("a").wishes
        assert saving.status.heard == 1.0
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: saving.status.heard > 1.0)
    assert saving.saved == {"zone": "b"}


async def test_a_state_that_was_not_saved_in_one_run_is_saved_in_the_next(saving: Saving) -> None:
    saving.follower.state.set(zone("b"))
    async with saving.living():
        assert saving.follower.state.get().wishes == zone("a").wishes
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: saving.saved == {"zone": "b"})


async def test_a_state_that_cannot_be_written_is_a_doubt_until_one_is_written(saving: Saving) -> None:
    aside = saving.path.with_suffix(".new")
    aside.mkdir()
    async with saving.living():
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: len(saving.status.doubts) == 2)
        aside.rmdir()
        saving.follower.state.set(zone("c"))
        await saving.until(lambda: len(saving.status.doubts) == 1)
    assert saving.saved == {"zone": "c"}
