# SPDX-License-Identifier: Apache-2.0
"""The document that the daemon tells of itself: what is in it, and what counts as a problem."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from nodeagent import __version__, config
from nodeagent.agent.tell import status
from nodeagent.app import Agent
from nodeagent.base.errors import KernelRefused, KubeletUnavailable
from nodeagent.kernel.root import Root
from nodeagent.model.action import RemoveMdev, Step
from nodeagent.model.allocation import Allocations, Holder, Knowledge
from nodeagent.model.ids import ResourceName
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
from tests.agent.changing.changing import FIRST, node, t4

GPU = ResourceName("example.com/gpu")
CONFIG = "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]\n"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    made = nodes.many(tmp_path, 2)
    directory = tmp_path / "etc" / "nodeagent"
    directory.mkdir(parents=True)
    (directory / "config.yaml").write_text(CONFIG)
    return made


@pytest.fixture
async def kubelet(host: SimulatedHost) -> AsyncIterator[Kubelet]:
    async with Kubelet(host.directory) as running:
        yield running


@pytest.fixture
async def agent(host: SimulatedHost, kubelet: Kubelet) -> AsyncIterator[Agent]:
    """A daemon that has looked and decided, but does not run."""
    found = Agent(Root(host.directory), config.load(host.directory, {}, {}), {}, {})
    found.directory.open()
    await found.observe.first()
    await found.allocations.one_turn()
    found.reconcile.one_turn()
    yield found
    found.directory.close()
    found.watcher.close()


async def test_a_healthy_node_has_no_problems(agent: Agent) -> None:
    told = json.loads(json.dumps(status.document(agent)))
    assert told["problems"] == []
    assert (told["version"], told["pid"]) == (__version__, os.getpid())
    assert told["kubelet"]["present"]
    assert told["kubelet"]["podResources"] == "answers"
    assert (told["host"]["functions"], told["host"]["groups"], told["host"]["iommu"]) == (2, 2, True)
    (resource,) = told["resources"]
    assert (resource["name"], resource["healthy"], resource["registered"]) == (GPU, 2, False)
    assert resource["devices"][1] == {"id": nodes.address(1), "healthy": True, "numa": 1}


async def test_an_unhealthy_device_says_why_and_what_to_do(agent: Agent, host: SimulatedHost) -> None:
    host.bind(nodes.address(0), "nouveau")
    await agent.observe._one_look()
    host.bind(nodes.address(0), None)
    agent.observe.wake()
    await agent.observe._one_look()
    agent.reconcile.one_turn()
    told = status.document(agent)
    device = told["resources"][0]["devices"][0]
    assert (device["healthy"], device["reason"]) == (False, "driver-changed")
    assert device["hint"].startswith("bind 0000:01:00.0")
    (problem,) = told["problems"]
    assert problem == f"{GPU}: 0000:01:00.0 is Unhealthy: {device['what']}"


async def test_holders_are_named(agent: Agent) -> None:
    agent.allocations.cell.set(Allocations({"x": Holder("ns", "p", GPU)}, Knowledge.COMPLETE))
    assert status.document(agent)["holders"] == {"x": {"pod": "ns/p", "resource": GPU}}


async def test_a_resource_that_is_not_registered_says_why(agent: Agent, kubelet: Kubelet) -> None:
    kubelet.fault("refuse-register", "the name is taken")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(agent.plugins.run)
        refused = kubelet.statistics.registrations
        await kubelet.until(lambda: len(refused) >= 2)
        told = status.document(agent)
        tasks.cancel_scope.cancel()
    assert f"{GPU}: not registered: UNKNOWN: the name is taken" in told["problems"]


async def test_what_the_kernel_refuses_on_a_card_is_a_problem(agent: Agent, tmp_path: Path) -> None:
    async with node(tmp_path / "split", t4(FIRST), "GRID T4-8A") as changing:
        agent.effects = changing.effects
        for uuid in ("one", "two"):
            step = Step(RemoveMdev(uuid, FIRST, "nvidia-228"), FIRST, "nvidia-228", "not wanted")
            changing.effects.writer.retries.refused(step, KernelRefused(f"no {uuid}"), 0.0)
        told = status.document(agent)
        assert [each["what"] for each in told["changes"]["failing"]] == ["no one", "no two"]
        assert [each for each in told["problems"] if FIRST in each] == [f"{FIRST}: no one"]


async def test_everything_that_needs_a_person_is_a_problem(agent: Agent) -> None:
    agent.supervisor.failures |= {"inotify": "no instance", "kubelet": ""}
    agent.desire.error = "config.yaml:1: bad\nhint"
    agent.allocations._unanswered(KubeletUnavailable("no answer in time"))
    os.unlink(agent.directory.kubelet_path)
    agent.directory.scan()
    told = status.document(agent)
    assert told["subsystems"] == {"inotify": "no instance", "kubelet": "running again"}
    assert told["kubelet"]["podResources"] == "no answer in time"
    assert not told["kubelet"]["present"]
    assert told["problems"] == [
        "inotify: no instance",
        "the new configuration is not in force: config.yaml:1: bad",
        "who holds what is not known: no answer in time",
        f"the kubelet is away: no {agent.directory.kubelet_path}",
    ]
