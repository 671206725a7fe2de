# SPDX-License-Identifier: Apache-2.0
"""Problems and notes in the log: written when they begin, as a warning or as a note, and not at each look."""

from __future__ import annotations

from dataclasses import replace

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reporting import problem_log
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources, load
from nodeagent.model.host import Host, HostDevice
from nodeagent.model.snapshot import Snapshot
from tests import virtual
from tests.conftest import Said
from tests.policy.samples import function, host

GPU = function(driver="nouveau")
OTHER = function("0000:66:00.0", 2, driver="nouveau")


def seen(*here: HostDevice, generation: int = 1, iommu: bool = True) -> Host:
    return replace(host(*here, vfio_loaded=True, iommu=iommu), generation=generation)


PAUSE = Timeouts().problems_settle


class Noting:
    """The component, on a Snapshot that a test changes."""

    def __init__(self, first: Host) -> None:
        self.snapshots = Snapshots(Snapshot(first))
        self.offering = Offering(self.snapshots, Releases(Latest(load(Sources("/none", {}, {})))), Timeouts())
        self.offering.one_turn()
        self.log = problem_log.ProblemLog(self.snapshots, self.offering, PAUSE)

    async def becomes(self, now: Host) -> None:
        """Publish it, decide, and wait until it was looked at."""
        self.snapshots.publish(replace(self.snapshots.now, host=now))
        self.offering.one_turn()
        await anyio.sleep(PAUSE * 2)


@virtual.TIME
async def test_a_note_is_said_when_it_begins_and_again_only_after_its_end(said: Said) -> None:
    node = Noting(seen(GPU))
    async with anyio.create_task_group() as group:
        group.start_soon(node.log.run)
        await anyio.sleep(PAUSE)
        assert len(said(log.NOTE)) == 1
        await node.becomes(seen(GPU, OTHER, generation=2))
        assert len(said(log.NOTE)) == 1
        await node.becomes(seen(generation=3))
        await node.becomes(seen(GPU, generation=4))
        assert len(said(log.NOTE)) == 2
        group.cancel_scope.cancel()


@virtual.TIME
async def test_what_needs_a_person_is_a_line_of_its_own_kind(said: Said) -> None:
    node = Noting(seen(GPU, iommu=False))
    async with anyio.create_task_group() as group:
        group.start_soon(node.log.run)
        await anyio.sleep(PAUSE)
        (line,) = said(log.NO_IOMMU)
        assert GPU.address in str(line["text"])
        group.cancel_scope.cancel()


def test_of_a_host_that_was_not_scanned_nothing_is_said() -> None:
    assert Noting(seen(GPU, generation=0)).log.problems == ()


def test_the_same_decision_is_looked_at_once() -> None:
    node = Noting(seen(GPU))
    assert node.log.problems is node.log.problems
