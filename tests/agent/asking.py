# SPDX-License-Identifier: Apache-2.0
"""Whoever asks the kubelet, wired; and a kubelet to ask."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio

from nodeagent.agent.holders import Holders
from nodeagent.agent.inquiry import Inquiry
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Settings
from nodeagent.kubelet.checkpoint import Checkpoint, Entry
from nodeagent.kubelet.grpc.channel import KubeletAway
from nodeagent.kubelet.podresources import Birth
from nodeagent.model.allocation import Allocations, Holder, PodList, Possession
from nodeagent.model.ids import ResourceName
from nodeagent.model.snapshot import Snapshot
from tests.agent.parts import settings

OLD = 3600.0
POD = Holder("ns", "p", ResourceName("example.com/a"))


class Kubelet:
    """Answers with what is held, or not at all; remembers when it was asked."""

    def __init__(self, **held: Holder) -> None:
        self.held: dict[str, Holder] = held
        self.silent = False
        self.away = False
        self.refuses = 0  # so many questions
        self.started: Birth | None = Birth((1, 1), OLD)
        self.file: tuple[Entry, ...] = ()
        self.entered: tuple[Entry, ...] | None = None  # what it writes at a list; None: it writes nothing
        self.lists = True
        self.asked = Latest[tuple[float, ...]](())
        self.answers = anyio.Event()
        self.answers.set()

    async def pods(self) -> PodList:
        """One question."""
        self.asked.set((*self.asked.get(), anyio.current_time()))
        await self.answers.wait()
        if self.away:
            raise KubeletAway("no such file")
        if self.silent or self.refuses:
            self.refuses = max(self.refuses - 1, 0)
            raise KubeletUnavailable("no answer in time")
        shown: dict[str, frozenset[Possession]] = {}
        for device_id, holder in self.held.items():
            shown[str(holder)] = shown.get(str(holder), frozenset()) | {(holder.resource, device_id)}
        return PodList(dict(self.held), shown)

    def checkpoint(self) -> Checkpoint:
        """What its file says."""
        return Checkpoint((1, len(self.file), 0) if self.file else None, self.file)

    def write_anew(self) -> bool:
        """A list of ours has come, if there is any."""
        if self.lists and self.entered is not None:
            self.file = self.entered
        return self.lists

    def birth(self) -> Birth | None:
        """When it was started."""
        return self.started

    def expected(self) -> bool:
        """True if there is a place for its socket."""
        return True

    async def until_asked(self, times: int, seconds: float = 5.0) -> tuple[float, ...]:
        """Wait for that many questions; their times."""
        with anyio.fail_after(seconds):
            while len(self.asked.get()) < times:
                await self.asked.newer(self.asked.version)
        return self.asked.get()


@dataclass
class Rescans:
    """Remembers which releases were looked at, and who was told to hold something then."""

    snapshots: Snapshots
    asked: list[tuple[set[str], set[str]]] = field(default_factory=list)
    end: anyio.Event | None = None  # of each look

    async def refresh(self, ids: Collection[str]) -> None:
        """One look."""
        self.asked.append((set(ids), set(self.snapshots.now.allocations.holders)))
        if self.end is not None:
            await self.end.wait()


class Loop:
    """The component, wired; times in seconds."""

    def __init__(
        self, kubelet: Kubelet, settle: float = 1.0, resync: float = 60.0, waiting: float = 60.0
    ) -> None:
        self.snapshots = Snapshots(Snapshot())
        self.reservations = ReservationBook(self.snapshots, timeouts=Timeouts())
        self.settings: Latest[Settings] = settings(settle, resync, waiting)
        self.releases = Releases(self.settings, timeouts=Timeouts())
        self.rescans = Rescans(self.snapshots)
        self.inquiry = Inquiry(kubelet, self.snapshots, self.reservations, self.rescans, timeouts=Timeouts())
        self.holders = Holders(
            self.inquiry, self.snapshots, self.reservations, self.settings, self.releases, timeouts=Timeouts()
        )

    @property
    def now(self) -> Allocations:
        return self.snapshots.now.allocations

    @property
    def settling(self) -> frozenset[str]:
        return self.snapshots.now.reservations.settling

    def give(self, **given: Holder) -> None:
        """An Allocate gives these away."""
        now = anyio.current_time()
        due = now + self.settings.get().timing.settle
        self.reservations.admit(self.reservations.admissions.asker(None), due)
        self.reservations.give(given, now, due)

    def grow_old(self) -> None:
        """As if the kubelet had run for a while."""
        self.inquiry.doubt.until = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.holders.run)
            yield
            tasks.cancel_scope.cancel()
