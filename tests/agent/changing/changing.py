# SPDX-License-Identifier: Apache-2.0
"""A node whose cards answer to writes, and the loops that change it; no kubelet, no sockets."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent.changing import loop
from nodeagent.agent.changing.loop import ChangeLoop
from nodeagent.agent.changing.step import ChangeRunner
from nodeagent.agent.core import Core
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import Admission, Pending, ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Component, Supervisor
from nodeagent.base.timeouts import Backoff, Timeouts
from nodeagent.base.watch import DirectoryWatcher
from nodeagent.kernel.root import Root
from nodeagent.model.allocation import Allocations, Holder, Knowledge, unnamed
from nodeagent.model.change import Plan
from nodeagent.model.ids import ResourceName
from nodeagent.model.kubevirt import ClusterConfig
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import MdevSpec, Spec, SriovRule, WantedType
from nodeagent.model.status import ChangesStatus
from nodeagent.policy.change import ownership
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev import Card, MdevKernel, SimulatedCards, Type, add_card, simulated_cards
from tests.agent.parts import Eyes, settings

T4_TYPES = (
    Type("nvidia-222", 16, "GRID T4-1B"),
    Type("nvidia-223", 8, "GRID T4-2B"),
    Type("nvidia-228", 2, "GRID T4-8A"),
)
FIRST, SECOND, THIRD = "0000:3b:00.0", "0000:5e:00.0", "0000:86:00.0"
MACHINE = "0123456789abcdef0123456789abcdef"
PATIENCE = 30.0
QUICK = Backoff(first=0.05, limit=0.2)
SLOW = Backoff(first=60.0, limit=60.0)


def t4(*addresses: str) -> list[Card]:
    """Tesla T4s with the types of NVIDIA's documentation."""
    return [Card(address, T4_TYPES) for address in addresses]


def uuid(card: str, type_id: str, index: int) -> str:
    """The UUID of an instance that this node makes."""
    return ownership.build_uuid(MACHINE, card, type_id, index)


def wanted(*names: str, sriov: tuple[SriovRule, ...] = ()) -> Spec:
    """Types to make, in order."""
    types = tuple(WantedType(name) for name in names)
    return Spec(mdevs=MdevSpec(manage=True, types=types), sriov=sriov)


class Changing:
    """One node and its loops. ``hold`` and ``want`` are what operators and pods do."""

    def __init__(self, host: SimulatedHost, cards: SimulatedCards) -> None:
        self.cards = cards
        self.root = Root(host.directory)
        self._host = host
        known = Allocations.of({}, Knowledge.COMPLETE)
        self._begin(Snapshot(allocations=known), DirectoryWatcher())

    def _begin(self, begin: Snapshot, watcher: DirectoryWatcher) -> None:
        """A daemon that has seen nothing yet."""
        self.eyes = Eyes(self._host, Snapshots(begin), settings(holders=0.05), watcher=watcher)
        self.core = self._of_daemon(self.eyes)
        self.forget()

    def _of_daemon(self, eyes: Eyes) -> Core:
        releases = Releases(eyes.settings)
        releases.add_reader(eyes.observer)
        timeouts = Timeouts()
        reservations = ReservationBook(eyes.snapshots, timeouts)
        view = KubeletView(self.root, eyes.settings.get(), eyes.snapshots, timeouts)
        return Core(
            self.root,
            eyes.settings,
            Timeouts(),
            Latest(ClusterConfig()),
            eyes.watcher,
            Supervisor(Timeouts()),
            eyes.snapshots,
            eyes.scan_requests,
            eyes.events,
            eyes.observer,
            eyes.names,
            reservations,
            releases,
            view,
            Usage(view, eyes.snapshots, reservations, eyes.observer, releases, eyes.settings, timeouts),
            Offering(eyes.snapshots, releases, timeouts),
            Latest(None),
        )

    def forget(self, deadline: float = 5.0, backoff: Backoff = QUICK) -> None:
        """The changes begin anew: they remember nothing."""
        timeouts = self.core.timeouts._replace(write_late=deadline, write_retry=backoff)
        self.components: Sequence[Component] = loop.components(replace(self.core, timeouts=timeouts))

    def begin_anew(self) -> None:
        """The whole daemon begins anew; operators and pods want what they wanted."""
        now = self.eyes.snapshots.now
        begin = Snapshot(spec=now.spec, allocations=now.allocations)
        self._begin(begin, self.eyes.watcher)

    @property
    def now(self) -> Snapshot:
        """The newest Snapshot."""
        return self.eyes.snapshots.now

    @property
    def releases(self) -> Releases:
        """Who waits for what."""
        return self.core.releases

    @property
    def reservations(self) -> ReservationBook:
        """Who may touch an id."""
        return self.core.reservations

    @property
    def loop(self) -> ChangeLoop:
        """The loop that plans."""
        (found,) = (each for each in self.components if isinstance(each, ChangeLoop))
        return found

    @property
    def runner(self) -> ChangeRunner:
        """The runner of its steps."""
        return self.loop.runner

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self.loop.plan

    @property
    def status(self) -> ChangesStatus:
        """What is told of the changes."""
        return self.loop.status

    def publish(self, **parts: Any) -> None:
        """Other parts of the Snapshot."""
        self.eyes.snapshots.publish(replace(self.now, **parts))

    def want(self, *names: str, sriov: tuple[SriovRule, ...] = ()) -> None:
        """The operator changes the list of types."""
        self.publish(spec=wanted(*names, sriov=sriov))

    def hold(self, *uuids: str) -> None:
        """What pods hold now, and nothing else."""
        holder = functools.partial(Holder, "ns", "vm", ResourceName("nvidia.com/GRID_T4"))
        held = {uuid: holder() for uuid in uuids}
        self.publish(allocations=Allocations.of(held, Knowledge.COMPLETE))

    def allocate(self, device_id: str) -> None:
        """An Allocate of this id is answered. :raises AllocationRefused: if it is withdrawn."""
        resource = ResourceName("nvidia.com/GRID_T4")
        allocated = {(resource, device_id): Pending(unnamed(resource, None))}
        self.reservations.allocate(Admission(), allocated)

    def counts(self) -> list[tuple[str, str, int]]:
        """(card, type, number) of all instances that exist."""
        found = []
        for card in self.cards.kernel.cards:
            types = self.cards.types_on(card.address)
            found += [(card.address, kind, types.count(kind)) for kind in sorted(set(types))]
        return found

    async def until(self, state: Callable[[], bool]) -> None:
        """Wait for a state of the simulated kernel."""
        with anyio.fail_after(PATIENCE):
            while not state():  # noqa: ASYNC110 - the simulated kernel gives no event
                await anyio.sleep(0.005)

    async def until_counts(self, *counts: tuple[str, str, int]) -> None:
        """Wait until exactly this exists."""
        try:
            await self.until(lambda: self.counts() == list(counts))
        except TimeoutError:
            raise AssertionError(f"{self.counts()} {self.plan}") from None

    async def until_at_rest(self) -> None:
        """Wait until nothing is being done and nothing is to be done, and that is planned from the newest."""
        while True:
            await anyio.wait_all_tasks_blocked()  # the loop has planned from the newest Snapshot
            if not (self.plan.steps or self.runner.working):
                return
            await self.until(lambda: not (self.plan.steps or self.runner.working))

    @asynccontextmanager
    async def run(self) -> AsyncIterator[TaskGroup]:
        """The loops; the changes end with the block as by a crash."""
        supervisor = Supervisor(Timeouts())
        async with anyio.create_task_group() as group:
            for component in self.components:
                group.start_soon(supervisor.run, component, name=component.name)
            group.start_soon(self.core.releases.run, name="releases")
            yield group
            group.cancel_scope.cancel()
        self.core.kubelet.close()


@asynccontextmanager
async def node(root: Path, cards: list[Card], *types: str) -> AsyncIterator[Changing]:
    """A node with these cards, seen; nothing changes it yet."""
    host = SimulatedHost(root)
    (root / "etc").mkdir()
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    for number, card in enumerate(cards):
        add_card(host, card, 10 + 40 * number)
    async with simulated_cards(host, MdevKernel(cards)) as made:
        changing = Changing(host, made)
        changing.want(*types)
        async with changing.eyes.open(events=True):
            yield changing


@asynccontextmanager
async def restarted(changing: Changing) -> AsyncIterator[None]:
    """A new daemon on the same node: it has seen nothing, and remembers what is on disk."""
    changing.begin_anew()
    await changing.eyes.observer.scan()
    async with changing.run() as group:
        group.start_soon(changing.eyes.observer.run)
        yield
