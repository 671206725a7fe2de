# SPDX-License-Identifier: Apache-2.0
"""What the kubelet asks, wired as in the daemon, against a simulated host and the fake kubelet.

What the kubelet holds is given by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from nodeagent.agent.allocate import Allocator
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.device_plugins import DevicePlugins, ResourceAnswers
from nodeagent.agent.kubelet_view import KubeletView
from nodeagent.agent.offering import Offering
from nodeagent.agent.releases import Releases
from nodeagent.agent.reservations import ReservationBook
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.usage import Usage
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kubelet.device_plugin import Answers, DeviceList
from nodeagent.kubelet.endpoint import Endpoint, EndReason, Registrar
from nodeagent.kubelet.grpc import SocketServer
from nodeagent.kubelet.socket_dir import SocketDir
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Discovery, NodeRule, PciRule, PciSelector, Spec
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.agent.parts import Eyes
from tests.sim import hosts

GPU, KVM = ResourceName("example.com/gpu"), ResourceName("example.com/kvm")
ONE, TWO = hosts.address(0), hosts.address(1)
NEIGHBOUR = "0000:09:00.0"
GPUS = PciRule(GPU, (PciSelector(vendors=("10de",)),))
KVMS = NodeRule(KVM, "/dev/kvm", 3)


def spec(*rules: Any) -> Spec:
    return Spec(Discovery(enabled=False), (), rules)


class Fragile(Endpoint):
    """An endpoint that fails at the end of a registration, if its resource is among ``failing``."""

    failing: set[str]

    async def hold(self, server: SocketServer) -> EndReason:
        """As always; raises ValueError for such a resource."""
        reason = await super().hold(server)
        if self.resource in self.failing:
            raise ValueError("made to fail")
        return reason


class Agent:
    """The parts, wired."""

    def __init__(self, host: SimulatedHost, kubelet: FakeKubelet, *rules: Any) -> None:
        self.host, self.kubelet = host, kubelet
        known = Allocations(knowledge=Knowledge.COMPLETE)
        self.snapshots = Snapshots(Snapshot(spec=spec(*rules), allocations=known))
        self.eyes = Eyes(host, self.snapshots)
        self.releases = Releases(self.eyes.settings)
        self.offering = Offering(self.snapshots, self.releases, Timeouts())
        self.cdi = CdiFiles(host.path("/run/cdi"), self.snapshots, self.offering)
        self.reservations = ReservationBook(self.snapshots, timeouts=Timeouts())
        root, timeouts = Root(host.directory), Timeouts()
        self.view = KubeletView(root, self.eyes.settings.get(), self.snapshots, timeouts)
        self.usage = Usage(
            self.view,
            self.snapshots,
            self.reservations,
            self.eyes.observer,
            self.releases,
            self.eyes.settings,
            timeouts,
        )
        self.allocator = Allocator(
            root,
            self.eyes.observer.recheck,
            self.offering,
            self.usage,
            self.reservations,
            self.cdi,
            Latest(None),
            timeouts,
        )
        self.directory = SocketDir(str(kubelet.paths.plugins), self.eyes.watcher)
        self.registrar = Registrar(self.directory.kubelet_path, Timeouts())
        self.failing: set[str] = set()
        self.plugins = DevicePlugins(
            self.offering,
            self.allocator,
            self.usage,
            self.cdi,
            Supervisor(Timeouts()),
            self._endpoint,
            timeouts=Timeouts(),
        )
        self.view.resend_list = self.plugins.send_again

    def _endpoint(
        self, resource: str, devices: DeviceList, answers: Answers, changed: Latest[None]
    ) -> Endpoint:
        made = Fragile(resource, devices, answers, self.directory, self.registrar, changed, Timeouts())
        made.failing = self.failing
        return made

    @property
    def given(self) -> frozenset[str]:
        """What was allocated and is in no source of the kubelet yet."""
        return frozenset(self.snapshots.now.reservations.pending)

    def wish(self, *rules: Any) -> None:
        """Other rules."""
        self.snapshots.publish(replace(self.snapshots.now, spec=spec(*rules)))

    def hold(self, **held: Holder) -> None:
        """The kubelet names these holders."""
        allocations = Allocations.of(held, Knowledge.COMPLETE)
        self.snapshots.publish(replace(self.snapshots.now, allocations=allocations))

    def answers(self, name: ResourceName = GPU, devices: DeviceList | None = None) -> ResourceAnswers:
        """What the kubelet asks, without a kubelet."""
        return ResourceAnswers(name, self.offering, self.allocator, self.usage, devices or DeviceList())

    def resource(self, name: ResourceName = GPU) -> Resource:
        return self.offering.resources.get()[name]

    async def until(self, condition: Callable[[Mapping[ResourceName, Resource]], bool]) -> None:
        with anyio.fail_after(5):
            seen = -1
            while True:
                seen, resources = await self.offering.resources.newer(seen)
                if condition(resources):
                    return


@asynccontextmanager
async def agent_in(directory: Path, *rules: Any) -> AsyncIterator[Agent]:
    host = hosts.many(directory, 2)
    host.node("/dev/kvm")
    async with FakeKubelet(directory) as kubelet:
        agent = Agent(host, kubelet, *rules)
        agent.directory.open()
        async with agent.eyes.open(), anyio.create_task_group() as tasks:
            for run in (agent.eyes.watcher.run, agent.offering.run, agent.plugins.run, agent.cdi.run):
                tasks.start_soon(run)
            yield agent
            tasks.cancel_scope.cancel()
            agent.directory.close()
        agent.view.close()
