# SPDX-License-Identifier: Apache-2.0
"""A kubelet in memory for tests of usage: what pods have, what it lists and what its checkpoint has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import Admission, Pending, ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.checkpoint import AllocatedDevices, Checkpoint, Entry
from nodeagent.kubelet.grpc import KubeletAway
from nodeagent.model.allocation import Allocations, Holder, PodList, ResourceDevice, by_resource, unnamed
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.snapshot import Snapshot
from tests.agent.parts import settings

A, B = ResourceName("example.com/a"), ResourceName("example.com/b")


@dataclass
class Kubelet(KubeletView):
    """``listed`` has pods (``namespace/name``) with what PodResources shows; ``entries`` are its memory."""

    listed: dict[str, set[ResourceDevice]] = field(default_factory=dict)
    entries: set[tuple[str, ResourceDevice]] = field(default_factory=set)
    written: Checkpoint = field(default_factory=lambda: Checkpoint((0, 0, 0), (), readable=True))
    reads_lists: bool = True
    present: bool = True
    silent: bool = False
    silent_for: float = 0.0  # seconds until a request is given up
    requests: Latest[int] = field(default_factory=lambda: Latest(0))
    lists: int = 0  # that were sent again
    groups: dict[str, frozenset[GroupNumber]] = field(default_factory=dict)  # whose nodes came with an id

    async def list_pods(self) -> PodList:
        """Answer, unless it is silent or away."""
        self.requests.set(self.requests.get() + 1)
        await anyio.lowlevel.checkpoint()
        if not self.present:
            raise KubeletAway("nobody listens")
        if self.silent:
            await anyio.sleep(self.silent_for)
            raise KubeletUnavailable("no answer in time")
        held = []
        for pod, shown in self.listed.items():
            namespace, name = pod.split("/")
            held += [(each, Holder(namespace, name, resource)) for resource, each in shown]
        pods = {pod: frozenset(shown) for pod, shown in self.listed.items()}
        return PodList(by_resource(held), pods)

    def read_checkpoint(self) -> Checkpoint:
        """What was written last."""
        return self.written

    def __post_init__(self) -> None:
        """It writes its checkpoint at each list."""
        self.resend_list = self._resend_list

    def _resend_list(self) -> bool:
        if self.reads_lists:
            self.lists += 1
            self.write()
        return self.reads_lists

    def write(self) -> None:
        """Write the checkpoint."""
        number = 0 if self.written.stamp is None else self.written.stamp[0]
        entries = tuple(
            Entry(uid, *possession, None, AllocatedDevices((), self.groups.get(possession[1], frozenset())))
            for uid, possession in sorted(self.entries)
        )
        self.written = Checkpoint((number + 1, 0, 0), entries, readable=True)

    def is_present(self) -> bool:
        """True if there is a socket."""
        return self.present

    def is_expected(self) -> bool:
        """True if there is a directory for it."""
        return self.present

    def add(self, pod: str, *got: ResourceDevice, listed: bool = True) -> None:
        """A pod has these; plain init containers are not ``listed``."""
        self.listed.setdefault(pod, set()).update(got if listed else ())
        self.entries |= {(f"uid-{pod}", each) for each in got}
        self.write()

    def end(self, pod: str) -> None:
        """A pod has ended: the checkpoint is not written."""
        self.listed.pop(pod, None)
        self.entries = {(uid, each) for uid, each in self.entries if uid != f"uid-{pod}"}

    async def until_asked(self, times: int) -> None:
        """Wait for that many requests in all."""
        with anyio.fail_after(5):
            while self.requests.get() < times:
                await self.requests.newer(self.requests.version)


@dataclass
class Rescans:
    """Remembers which released ids were read again."""

    asked: list[set[str]] = field(default_factory=list)

    async def refresh(self, ids: Collection[str]) -> None:
        """Read these."""
        self.asked.append(set(ids))


class Node:
    """Usage and reservations of one daemon beside a kubelet in memory."""

    def __init__(
        self,
        kubelet: Kubelet,
        timeouts: Timeouts | None = None,
        *,
        holders: float = 60.0,
    ) -> None:
        self.kubelet = kubelet
        self.timeouts = timeouts or Timeouts()
        self.snapshots = Snapshots(Snapshot())
        self.reservations = ReservationBook(self.snapshots, self.timeouts)
        self.settings = settings(holders=holders)
        self.releases = Releases(self.settings)
        self.rescans = Rescans()
        self.usage = Usage(
            kubelet,
            self.snapshots,
            self.reservations,
            self.rescans,
            self.releases,
            self.settings,
            self.timeouts,
        )

    @property
    def allocations(self) -> Allocations:
        """The table."""
        return self.snapshots.now.allocations

    @property
    def in_use(self) -> set[ResourceDevice]:
        """What is in use by any source."""
        listed = {(holder.resource, each) for each, holder in self.allocations.held()}
        pending = self.snapshots.now.reservations.pending.items()
        return listed | {(holder.resource, each) for each, holder in pending}

    @property
    def pending(self) -> set[str]:
        """The ids that are pending."""
        return set(self.snapshots.now.reservations.pending)

    async def allocate(self, resource: ResourceName, device_id: str, *, asked: bool = True) -> None:
        """An Allocate of one id, with a request to the kubelet or without."""
        admission = await self.identify() if asked else Admission()
        allocated = {(resource, device_id): Pending(unnamed(resource, None))}
        self.reservations.allocate(admission, allocated)

    async def identify(self) -> Admission:
        """The admission that asks now."""
        return self.reservations.identify(await self.usage.request_in_allocate())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The component runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.usage.run)
            yield
            tasks.cancel_scope.cancel()
