# SPDX-License-Identifier: Apache-2.0
"""The Pulse of a daemon: who stands still is found, and what a restart would not cure does not count."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import pytest

from nodeagent import config
from nodeagent.agent.tell.alive import Pulse
from nodeagent.app import Daemon
from nodeagent.base import log, threads
from nodeagent.base.progress import Debt
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.standin import Kubelet
from tests.conftest import Said
from tests.sim import fifos

GPU = "example.com/gpu"
CONFIG = "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]\n"
TURN = 1.2  # seconds between two looks: more than a scan takes in which a device does not answer


class Owing:
    """Owes this step of its work."""

    def __init__(self, name: str = "it") -> None:
        self.name = name
        self.step: object = 0

    def owed(self) -> Mapping[str, Debt]:
        """The debt; none for the step None."""
        return {} if self.step is None else {self.name: Debt(self.step, "work")}


def looked(pulse: Pulse, times: int = 3) -> str | None:
    for _ in range(times):
        pulse.look()
    return pulse.standing_still()


async def test_a_component_that_stands_still_is_told_once_and_so_is_its_going_on(said: Said) -> None:
    owing = Owing()
    pulse = Pulse(Supervisor(Timeouts()), [owing, object()])
    assert looked(pulse, 2) is None
    assert looked(pulse) == "it: work"
    assert said(log.SUBSYSTEM_STUCK) == [{"subsystem": "it", "why": "work"}]
    owing.step = 1
    assert looked(pulse, 1) is None
    assert pulse.alive
    assert said(log.SUBSYSTEM_MOVES) == [{"subsystem": "it"}]


async def test_a_component_that_waits_after_a_failure_is_left_to_the_supervisor() -> None:
    supervisor = Supervisor(Timeouts())
    supervisor.failures["it"] = "no inotify instance"
    assert looked(Pulse(supervisor, [Owing()])) is None


async def test_a_component_that_waits_for_the_kernel_in_a_thread_does_not_stand_still() -> None:
    released, pulse = threading.Event(), Pulse(Supervisor(Timeouts()), [Owing("reads")])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(threads.call, released.wait, name="reads")
        await anyio.wait_all_tasks_blocked()
        assert looked(pulse) is None
        released.set()
    assert looked(pulse) == "reads: work"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    made = nodes.many(tmp_path, 2)
    made.write_file("/etc/nodeagent/config.yaml", CONFIG)
    return made


@pytest.fixture
async def daemon(host: SimulatedHost) -> AsyncIterator[Daemon]:
    sources = Sources(host.directory, {"http.listen": ""}, {})
    made = Daemon(config.load(sources), sources, Timeouts(), lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


async def until_looked_at(pulse: Pulse) -> str | None:
    """What is found at four looks, between which the daemon has time for all that it owes."""
    for _ in range(4):
        pulse.look()
        await anyio.sleep(TURN)
    return pulse.standing_still()


@pytest.mark.slow
async def test_neither_a_kubelet_that_is_away_nor_a_device_that_hangs_asks_for_a_restart(
    host: SimulatedHost, daemon: Daemon
) -> None:
    pulse = Pulse(daemon.core.supervisor, daemon.components)
    async with Kubelet(host.directory) as kubelet:
        await kubelet.until_listed(GPU, 2)
        address = next(iter(daemon.core.snapshots.now.host.functions))
        fifos.hang(host, address, "enable")
        daemon.core.wakes.wake(None)
        await kubelet.until(lambda: kubelet.capacity(GPU) == (2, 1))
        assert await until_looked_at(pulse) is None
    assert await until_looked_at(pulse) is None
    fifos.unhang(host, address, "enable")


@pytest.mark.slow
async def test_a_daemon_that_never_saw_a_kubelet_does_not_stand_still(daemon: Daemon) -> None:
    daemon.core.usage.request_soon()
    assert await until_looked_at(Pulse(daemon.core.supervisor, daemon.components)) is None
