# SPDX-License-Identifier: Apache-2.0
"""A write asks between its parts who was given what it takes, and an answer is one of that moment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from nodeagent.agent.changing.writer import Writer
from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import threads
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.model.action import BindDrivers, Move
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.change import guards
from nodeagent.sim.drivers import SimulatedDrivers, simulated
from nodeagent.sim.host import SimulatedHost
from tests.agent.parts import settings
from tests.facts import names

A, B = "0000:01:00.0", "0000:01:00.1"
BIND = BindDrivers(A, tuple(Move(each, "nvme", "vfio-pci", "nvme") for each in (A, B)))
ONE = Holder("ns", "one", ResourceName("vendor.example/disk"))


class Kubelet:
    """Names a pod for the second function from its question of that ``number`` on."""

    possible = True

    def __init__(self, snapshots: Snapshots, number: int = 1000, knowledge: Knowledge | None = None) -> None:
        self.asked = 0
        self._snapshots = snapshots
        self._number = number
        self._then = Allocations({}, knowledge) if knowledge else Allocations({B: ONE}, Knowledge.COMPLETE)

    async def ask(self, *, anew: bool = False) -> None:
        """One question."""
        self.asked += 1
        known = self._then if self.asked >= self._number else Allocations({}, Knowledge.COMPLETE)
        self._snapshots.publish(replace(self._snapshots.now, allocations=known))


class Writing:
    """A writer on two disks of one group, and the kubelet that it asks."""

    def __init__(self, drivers: SimulatedDrivers) -> None:
        self.drivers = drivers
        self.snapshots = Snapshots(Snapshot())
        self.releases = Releases(settings(), timeouts=Timeouts())
        self.writer = Writer(Root(drivers.host.directory), self.snapshots, self.releases, timeouts=Timeouts())

    def asking(self, kubelet: Kubelet) -> Kubelet:
        """This one is asked."""
        self.releases.ask_with(kubelet)
        return kubelet

    @property
    def bound(self) -> list[str | None]:
        """The drivers of both."""
        return [self.drivers.driver(each) for each in (A, B)]

    async def refusal(self) -> str:
        """What the change is refused for."""
        try:
            await threads.call(self.writer.write, BIND)
        except KernelRefused as error:
            return error.what
        return ""


@pytest.fixture
async def idle(tmp_path: Path) -> AsyncIterator[Writing]:
    """Nobody answers yet."""
    host = SimulatedHost(tmp_path)
    for address in (A, B):
        host.add_function(address, vendor="144d", device="a808", pci_class="010802", driver="nvme", group=5)
    async with simulated(host, A, B) as drivers:
        yield Writing(drivers)


@asynccontextmanager
async def answering(writing: Writing) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writing.writer.run)
        await anyio.wait_all_tasks_blocked()
        yield
        tasks.cancel_scope.cancel()


async def test_the_kubelet_is_asked_before_each_function_and_after_the_last(idle: Writing) -> None:
    kubelet = idle.asking(Kubelet(idle.snapshots))
    async with answering(idle):
        assert await idle.refusal() == ""
    assert kubelet.asked == 3
    assert idle.bound == ["vfio-pci", "vfio-pci"]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_what_was_given_by_any_of_these_answers_is_as_it_was(idle: Writing, number: int) -> None:
    idle.asking(Kubelet(idle.snapshots, number))
    async with answering(idle):
        names(await idle.refusal(), B, "ns/one")
    assert idle.bound == ["nvme", "nvme"]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_kubelet_that_falls_silent_lets_nothing_be_taken(idle: Writing, number: int) -> None:
    idle.asking(Kubelet(idle.snapshots, number, Knowledge.SILENT))
    async with answering(idle):
        assert guards.UNKNOWN in await idle.refusal()
    assert idle.bound == ["nvme", "nvme"]


async def test_where_nobody_answers_nothing_is_taken(idle: Writing) -> None:
    assert guards.UNKNOWN in await idle.refusal()
    async with answering(idle):
        pass
    assert guards.UNKNOWN in await idle.refusal()
    assert idle.bound == ["nvme", "nvme"]


async def test_a_question_that_is_cut_short_lets_nothing_be_taken(idle: Writing) -> None:
    class Hung(Kubelet):
        """Never answers."""

        async def ask(self, *, anew: bool = False) -> None:
            await super().ask()
            await anyio.sleep_forever()

    kubelet = idle.asking(Hung(idle.snapshots))
    refusals: list[str] = []

    async def write() -> None:
        refusals.append(await idle.refusal())

    async with anyio.create_task_group() as tasks, answering(idle):
        tasks.start_soon(write)
        with anyio.fail_after(10):
            while not kubelet.asked:
                await idle.snapshots.newer(idle.snapshots.version)
    assert guards.UNKNOWN in refusals[0]
    assert idle.bound == ["nvme", "nvme"]
