# SPDX-License-Identifier: Apache-2.0
"""The Status of a daemon: what each component fills in, and what counts as a problem."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent import __version__, config
from nodeagent.agent.tell.status import Teller
from nodeagent.app import Daemon
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.ids import ResourceName
from nodeagent.model.status import HolderStatus, Status
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
from tests.facts import contains, each_names

GPU = ResourceName("example.com/gpu")
KUBELET = "/var/lib/kubelet/device-plugins/kubelet.sock"
CONFIG = "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]\n"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    made = nodes.many(tmp_path, 2)
    directory = tmp_path / "etc" / "nodeagent"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(CONFIG)
    return made


class Still:
    """A daemon that has scanned and decided, but does not run."""

    def __init__(self, host: SimulatedHost) -> None:
        sources = Sources(host.directory, {"http.listen": ""}, {})
        self.daemon = Daemon(config.load(sources), sources, Timeouts(), lambda _: None)
        self.teller = Teller(self.daemon.core, [self.daemon.kubelet, *self.daemon.components])

    @property
    def status(self) -> Status:
        return self.teller.status()

    async def scan(self) -> None:
        await self.daemon.core.observer.scan()
        self.daemon.core.offering.one_turn()


@pytest.fixture
async def still(host: SimulatedHost) -> AsyncIterator[Still]:
    async with Kubelet(host.directory):
        still = Still(host)
        still.daemon.kubelet.open()
        await still.scan()
        await still.daemon.core.usage.first()
        still.daemon.core.offering.one_turn()
        yield still
        still.daemon.kubelet.close()
        still.daemon.core.watcher.close()


async def test_a_healthy_node_has_no_problems(still: Still) -> None:
    status = still.status
    assert status.problems == ()
    assert (status.version, status.pid) == (__version__, os.getpid())
    assert status.kubelet.present
    assert status.kubelet.pod_resources == "answers"
    assert (status.host.functions, status.host.groups, status.host.iommu) == (2, 2, True)
    (resource,) = status.resources
    assert (resource.name, resource.healthy, resource.registered) == (GPU, 2, False)
    device = resource.devices[1]
    assert (device.id, device.healthy, device.numa, device.reason) == (nodes.address(1), True, 1, None)


async def test_an_unhealthy_device_says_why_and_what_to_do(still: Still, host: SimulatedHost) -> None:
    host.bind(nodes.address(0), None)
    still.daemon.core.wakes.wake(None)
    await still.scan()
    status = still.status
    device = status.resources[0].devices[0]
    assert (device.healthy, device.reason) == (False, "driver-changed")
    assert str(device.hint).startswith("bind 0000:01:00.0")
    (problem,) = status.problems
    assert problem == f"{GPU}: 0000:01:00.0 is Unhealthy: {device.what}"


async def test_holders_are_named(still: Still) -> None:
    snapshots = still.daemon.core.snapshots
    allocations = Allocations.of({"x": Holder("ns", "p", GPU)}, Knowledge.COMPLETE)
    snapshots.publish(replace(snapshots.now, allocations=allocations))
    assert still.status.holders == {"x": HolderStatus("ns/p", GPU)}


async def test_where_nobody_answers_the_kubelet_is_away_and_no_resource_is_to_blame(
    still: Still, host: SimulatedHost
) -> None:
    os.unlink(still.daemon.kubelet.directory.kubelet_path)
    host.write_file(KUBELET, "")  # nobody listens there
    still.daemon.kubelet.directory.scan()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(still.daemon.kubelet.plugins.run)
        with anyio.fail_after(5):
            while still.status.kubelet.present:
                await anyio.lowlevel.checkpoint()
        status = still.status
        tasks.cancel_scope.cancel()
    assert any(contains(problem, "kubelet", status.kubelet.socket) for problem in status.problems)
    names_of_resources = [resource.name for resource in status.resources]
    assert names_of_resources
    assert not any(name in problem for name in names_of_resources for problem in status.problems)


async def test_everything_that_needs_a_person_is_a_problem(still: Still, host: SimulatedHost) -> None:
    daemon = still.daemon
    daemon.core.supervisor.failures |= {"inotify": "no instance", "kubelet": ""}
    host.write_file("/etc/nodeagent/config.yaml", "nonsense: 1")
    await daemon.config.one_turn()
    os.unlink(daemon.core.root.path(daemon.core.settings.get().kubelet.pod_resources))
    daemon.core.kubelet.close()  # a kubelet that has ended has closed its connections
    await daemon.core.usage.first()
    os.unlink(daemon.kubelet.directory.kubelet_path)
    daemon.kubelet.directory.scan()
    status = still.status
    assert status.subsystems == {"inotify": "no instance", "kubelet": "running again"}
    assert not status.kubelet.present
    each_names(
        status.problems,
        ("inotify", "no instance"),
        ("configuration", "nonsense"),
        (status.kubelet.pod_resources,),
        ("kubelet", daemon.kubelet.directory.kubelet_path),
    )
