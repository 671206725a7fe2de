# SPDX-License-Identifier: Apache-2.0
"""A node whose cards answer to writes, and the loops that change it; no kubelet, no sockets."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
from anyio.abc import TaskGroup

from nodeagent.agent import releases
from nodeagent.agent.changing import feature
from nodeagent.agent.changing.loop import ChangeLoop
from nodeagent.agent.observe import Observer
from nodeagent.agent.reservations import Reservations
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.backoff import Backoff
from nodeagent.base.latest import Latest
from nodeagent.base.watching import Watcher
from nodeagent.kernel.root import Root
from nodeagent.model import allocation
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.desired import Desired, MdevsWanted, SriovRule, WantedType
from nodeagent.model.ids import ResourceName
from nodeagent.model.plan import ChangesStatus, Plan
from nodeagent.model.snapshot import Snapshot
from nodeagent.sim.cards import SimulatedCards, add_card, simulated
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.mdev_kernel import Card, MdevKernel, Type

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


def wanted(*names: str, sriov: tuple[SriovRule, ...] = ()) -> Desired:
    """Types to make, in order."""
    types = tuple(WantedType(name) for name in names)
    return Desired(mdevs=MdevsWanted(manage=True, types=types), sriov=sriov)


class Awaiting:
    """What somebody is to let go."""

    def __init__(self) -> None:
        self.ids: Latest[frozenset[str]] = Latest(frozenset())

    def set(self, by: str, ids: frozenset[str]) -> None:
        """These ids, and no others."""
        self.ids.set(ids)


class Changing:
    """One node and its loops. ``holders`` and ``want`` are what operators and pods do."""

    def __init__(self, root: Path, cards: SimulatedCards) -> None:
        self.cards = cards
        self.root = Root(root)
        self.watcher = Watcher()
        self.snapshots = Snapshots(Snapshot())
        self.awaited = Awaiting()
        self.observe = self.looking()
        self.desired: Latest[Desired] = Latest(Desired(), self.publish)
        self.allocations: Latest[Allocations] = Latest(Allocations({}, Knowledge.COMPLETE), self.publish)
        self.reservations = Reservations(self.publish)
        self.changes = self.fresh()

    @property
    def loop(self) -> ChangeLoop:
        """The loop that plans."""
        return self.changes.loop

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self.loop.plan

    @property
    def status(self) -> ChangesStatus:
        """What is told of the changes."""
        return self.loop.status()

    def looking(self) -> Observer:
        """A look at the host by which nothing was seen yet."""
        return Observer(self.root, self.watcher, resync=lambda: 60.0, node_paths=(), on_change=self.publish)

    def publish(self) -> None:
        """What others publish: the host, its names, the wishes, the holders, and what is reserved."""
        settling, withdrawn = self.reservations.settling.get(), self.reservations.withdrawn.get()
        self.snapshots.publish(
            replace(
                self.snapshots.now,
                host=self.observe.host.get(),
                names=self.observe.names.get(),
                desired=self.desired.get(),
                allocations=self.allocations.get(),
                reservations=allocation.Reservations(settling, withdrawn),
            )
        )

    async def rescan(self, keys: frozenset[str]) -> None:
        """Look at what the keys name."""
        await self.observe.look_at(keys)

    def wake(self, keys: frozenset[str] | None = None) -> None:
        """Look soon."""
        self.observe.wake(keys)

    def fresh(self, deadline: float = 5.0, backoff: Backoff = QUICK) -> feature.Changing:
        """All parts as after a restart: they remember nothing."""
        self.snapshots = Snapshots(Snapshot())
        self.publish()
        return feature.feature(
            self.root, self.snapshots, self, self.reservations, self.awaited, deadline, backoff
        )

    def want(self, *names: str, sriov: tuple[SriovRule, ...] = ()) -> None:
        """The operator changes the list of types."""
        self.desired.set(wanted(*names, sriov=sriov))

    def hold(self, *uuids: str) -> None:
        """What pods hold now, and nothing else."""
        holder = functools.partial(Holder, "ns", "vm", ResourceName("nvidia.com/GRID_T4"))
        self.allocations.set(Allocations({uuid: holder() for uuid in uuids}, Knowledge.COMPLETE))

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
        """Wait until nothing is being done and nothing is to be done."""
        await self.until(lambda: not self.plan.steps and not self.loop.working)

    @asynccontextmanager
    async def run(self) -> AsyncIterator[TaskGroup]:
        """The loops; the changes end with the block as by a crash."""
        async with anyio.create_task_group() as group:
            for component in self.changes.components:
                group.start_soon(component.run, name=component.name)
            group.start_soon(releases.while_any, self.awaited.ids, lambda: 0.05, self._reprobe)
            yield group
            group.cancel_scope.cancel()

    async def _reprobe(self, _: frozenset[str]) -> None:
        await self.changes.probe.reprobe()


@asynccontextmanager
async def node(root: Path, cards: list[Card], *types: str) -> AsyncIterator[Changing]:
    """A node with these cards, seen; nothing changes it yet."""
    host = SimulatedHost(root)
    (root / "etc").mkdir()
    (root / "etc/machine-id").write_text(f"{MACHINE}\n")
    for number, card in enumerate(cards):
        add_card(host, card, 10 + 40 * number)
    async with simulated(host, MdevKernel(cards)) as made, anyio.create_task_group() as group:
        changing = Changing(root, made)
        changing.want(*types)
        group.start_soon(changing.watcher.run)
        group.start_soon(changing.observe.watch)
        await changing.observe.listening()
        await changing.observe.first()
        group.start_soon(changing.observe.run)
        yield changing
        group.cancel_scope.cancel()
    changing.watcher.close()


@asynccontextmanager
async def restarted(changing: Changing) -> AsyncIterator[None]:
    """A new daemon on the same node: it has seen nothing, and remembers what is on disk."""
    changing.observe = changing.looking()
    await changing.observe.first()
    changing.changes = changing.fresh()
    async with changing.run() as group:
        group.start_soon(changing.observe.run)
        yield
