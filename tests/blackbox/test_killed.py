# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while one of its threads sleeps in the kernel: nothing of it keeps the next one away.

The kernel really lets that thread sleep, as it does with a call of sysfs that waits for a virtual machine.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import NamedTuple

import anyio
import pytest

from nodeagent.base import sockets
from nodeagent.sim.kubelet.state import Pod
from tests import freezing, unanswered
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, eventually, pod

NIC, GPU = "0000:60:00.0", "0000:10:00.0"
pytestmark = pytest.mark.skipif(
    not (freezing.possible() and unanswered.possible()),
    reason="file systems that hang take root, loop devices and FUSE",
)

Stuck = freezing.Frozen | unanswered.Unanswered


class Sleep(NamedTuple):
    """What it is that hangs, and the configuration that has the daemon go there."""

    path: str
    configuration: str


CHANGE = Sleep(
    f"sys/bus/pci/devices/{NIC}/sriov_numvfs", "sriov: [{match: [{vendors: ['8086']}], numVFs: 2}]"
)
RECORD = Sleep("var/lib/nodeagent", "timing: {settle: 400ms}")
LOOK = Sleep(f"sys/bus/pci/devices/{NIC}/enable", "timing: {resync: 1s}")
ANY = pytest.mark.parametrize("sleep", [CHANGE, RECORD, LOOK], ids=["change", "record", "look"])


@pytest.fixture
def sleep() -> Sleep:
    """What hangs where a test says nothing else."""
    return LOOK


@pytest.fixture
def stuck(node: Node, sleep: Sleep, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stuck]:
    """A GPU that is given away, a network card that can have VFs, and something that can hang."""
    node.add_gpus(1)
    node.host.add_function(
        NIC, vendor="8086", device="1572", pci_class="020000", driver="i40e", group=60, sriov=4
    )
    with able_to_hang(node, sleep, tmp_path_factory) as stuck:
        yield stuck


@contextmanager
def able_to_hang(node: Node, sleep: Sleep, directories: pytest.TempPathFactory) -> Iterator[Stuck]:
    """Writes to a disk sleep, or reads of one file."""
    path = node.root / sleep.path
    if path.name == "enable":
        with unanswered.unanswered(path.resolve()) as file:
            yield file
        return
    if sleep is RECORD:
        path.mkdir(parents=True)
    with freezing.frozen(directories.mktemp("frozen")) as disk:
        disk.take(path)
        yield disk


@asynccontextmanager
async def asleep(node: Node, stuck: Stuck, daemon: Daemon, sleep: Sleep) -> AsyncIterator[None]:
    """A thread of the daemon sleeps in the kernel until the end."""
    with stuck.hanging():
        node.configure(f"apiVersion: nodeagent/v1\n{sleep.configuration}\n")
        await eventually(lambda: bool(stuck.sleepers(daemon.pid)))
        yield


async def killed(daemon: Daemon) -> None:
    """All of its threads have ended but the one that sleeps."""
    daemon.send(signal.SIGKILL)
    await eventually(lambda: freezing.leader(daemon.pid) == "Z")


@ANY
async def test_nothing_of_a_daemon_outlives_it_but_the_thread_that_sleeps(
    node: Node, stuck: Stuck, sleep: Sleep
) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet), AsyncExitStack() as later:
        async with asleep(node, stuck, daemon, sleep):
            (socket,) = node.sockets()
            await killed(daemon)
            await kubelet.until(lambda: not kubelet.statistics.streams.get(T4), PATIENCE)
            assert not sockets.is_served(node.plugins / socket)
            seen = len(kubelet.statistics.lists[T4])
            heir = await later.enter_async_context(node.daemon())
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            given = await kubelet.admit(pod("vm", {T4: 1}))
            assert given.phase == "Running", given.message
            assert (await node.status())["pid"] == heir.pid
            assert stuck.sleepers(daemon.pid)
        await eventually(lambda: not stuck.sleepers(heir.pid))
        assert (await node.status())["changes"]["problems"] == []


@pytest.mark.parametrize("sleep", [LOOK._replace(path=LOOK.path.replace(NIC, GPU))], ids=["allocate"])
async def test_a_pod_that_was_being_given_a_device_hears_of_the_end_at_once(node: Node, stuck: Stuck) -> None:
    given: list[Pod] = []
    async with node.running(listed={T4: 1}) as (daemon, kubelet), anyio.create_task_group() as tasks:

        async def admit() -> None:
            given.append(await kubelet.admit(pod("vm", {T4: 1})))

        with stuck.hanging():
            tasks.start_soon(admit)
            await eventually(lambda: bool(stuck.sleepers(daemon.pid)))
            await killed(daemon)
            await eventually(lambda: bool(given))
            assert stuck.sleepers(daemon.pid)
            assert given[0].phase == "Failed"
        tasks.cancel_scope.cancel()


@ANY
async def test_one_that_lives_keeps_others_away_also_while_a_thread_of_it_sleeps(
    node: Node, stuck: Stuck, sleep: Sleep
) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet), asleep(node, stuck, daemon, sleep):
        second = await node.command("run")
        assert second.returncode == 1
        assert "another nodeagent serves" in second.stderr
        assert (await node.status())["pid"] == daemon.pid
        assert kubelet.statistics.streams == {T4: 1}


@ANY
async def test_of_many_that_come_at_once_after_it_exactly_one_serves(
    node: Node, stuck: Stuck, sleep: Sleep
) -> None:
    async with node.daemon() as daemon, AsyncExitStack() as later, asleep(node, stuck, daemon, sleep):
        await killed(daemon)
        heirs = [await later.enter_async_context(node.daemon(ready=False)) for _ in range(3)]
        await eventually(lambda: sum(heir.alive for heir in heirs) == 1)
        (one,) = (heir for heir in heirs if heir.alive)
        await one.logged("ready")
        assert (await node.status())["pid"] == one.pid
        assert {heir.process.returncode for heir in heirs if heir is not one} == {1}
