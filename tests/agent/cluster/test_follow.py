# SPDX-License-Identifier: Apache-2.0
"""The state of the cluster is saved, and followed again after a library has cancelled a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nodeagent.agent import core as cores
from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.follow import ClusterFollower, follower
from nodeagent.agent.cluster.node_events import find_causes
from nodeagent.agent.cluster.state import ClusterState
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.status import ClusterStatus
from tests import virtual
from tests.agent.cluster.statuses import status
from tests.agent.cluster.telling import DEFAULTS, NAME, put_node
from tests.cluster.following import served

LONG = 5.0  # seconds


def zone(name: str) -> ClusterState:
    """A state with one label."""
    return ClusterState(config=ClusterConfig(labels={"zone": name}))


class Saving:
    """A follower that follows nothing; the state of the zone a is on disk."""

    def __init__(self, folder: Path) -> None:
        self.core = cores.build(Root(str(folder)), Latest(DEFAULTS), Timeouts())
        self.folder = folder
        self.follower = ClusterFollower(self.core)
        state.SECTION.save(str(folder), zone("a")._replace(saved=1.0))

    @property
    def saved(self) -> object:
        """The labels on disk."""
        return state.SECTION.load(str(self.folder)).config.labels

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
        snapshots = self.core.snapshots
        with anyio.fail_after(LONG):
            while not holds():
                await snapshots.newer(snapshots.version)


@pytest.fixture
def saving(tmp_path: Path) -> Iterator[Saving]:
    made = Saving(tmp_path)
    yield made
    made.core.watcher.close()


async def test_the_state_on_disk_is_in_force_at_the_start_and_newer_ones_are_saved(saving: Saving) -> None:
    async with saving.living():
        assert saving.core.cluster.get() == zone("a").config
        assert saving.status.last_saved == 1.0
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: saving.status.last_saved > 1.0)
    assert saving.saved == {"zone": "b"}


async def test_a_state_that_was_not_saved_in_one_run_is_saved_in_the_next(saving: Saving) -> None:
    saving.follower.state.set(zone("b"))
    async with saving.living():
        assert saving.follower.state.get().config == zone("a").config
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: saving.saved == {"zone": "b"})


async def test_a_state_that_cannot_be_written_is_a_doubt_until_one_is_written(saving: Saving) -> None:
    aside = saving.folder / "var/lib/nodeagent/last.new"
    aside.mkdir()
    async with saving.living():
        saving.follower.state.set(zone("b"))
        await saving.until(lambda: len(saving.status.warnings) == 2)
        unsaved, _ = saving.status.warnings
        assert find_causes(status(doubts=(unsaved,))) == {}, "the CR is in force"
        aside.rmdir()
        saving.follower.state.set(zone("c"))
        await saving.until(lambda: len(saving.status.warnings) == 1)
    assert saving.saved == {"zone": "c"}


@virtual.TIME
@pytest.mark.parametrize("task", ["watch of Nodes", "inputs of stale resources", "API server"])
async def test_after_a_library_has_cancelled_a_task_it_runs_again(task: str, tmp_path: Path) -> None:
    """anyio takes the cancellation of a child for an end of the whole group, without an error."""
    async with served() as server, anyio.create_task_group() as group:
        put_node(server)
        configuration = replace(
            DEFAULTS.configuration,
            kubeconfig="/kubeconfig",
            node=DEFAULTS.configuration.node._replace(name=NAME),
        )
        server.kubeconfig(tmp_path / "kubeconfig")
        settings = Latest(replace(DEFAULTS, configuration=configuration))
        core = cores.build(Root(str(tmp_path)), settings, Timeouts())
        it = follower(core, status)
        group.start_soon(core.supervisor.run, it)

        async def until_runs(before: asyncio.Task[object] | None = None) -> asyncio.Task[object]:
            with anyio.fail_after(120.0):  # the first requests of a node that was restarted are spread
                while True:
                    running = [each for each in asyncio.all_tasks() if each.get_name() == task]
                    if running and before not in running and server.statistics.streams == 2:
                        return running[0]
                    await anyio.sleep(1.0)

        first = await until_runs()
        first.cancel()
        await until_runs(first)
        assert it.status.enabled
        group.cancel_scope.cancel()
    core.watcher.close()
