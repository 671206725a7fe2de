# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while one of its threads sleeps in the kernel: nothing of it keeps the next one away.

The kernel really lets that thread sleep, as it does with a write to sysfs that waits for a virtual machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from tests import freezing
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, eventually, pod
from tests.freezing import Frozen

NIC = "0000:60:00.0"
pytestmark = pytest.mark.skipif(
    not freezing.possible(), reason="freezing a file system takes root and loop devices"
)


@pytest.fixture
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """Files that can be made to hang."""
    with freezing.frozen(tmp_path_factory.mktemp("frozen")) as files:
        yield files


class Sleep(NamedTuple):
    """What is on the disk that hangs, and the configuration that has the daemon write there."""

    path: str
    configuration: str


CHANGE = Sleep(
    f"sys/bus/pci/devices/{NIC}/sriov_numvfs", "sriov: [{match: [{vendors: ['8086']}], numVFs: 2}]"
)
RECORD = Sleep("var/lib/nodeagent", "timing: {settle: 400ms}")
EITHER = pytest.mark.parametrize("sleep", [CHANGE, RECORD], ids=["change", "record"])


def prepared(node: Node, frozen: Frozen, sleep: Sleep) -> None:
    """A GPU that is given away, a network card that can have VFs, and a disk that can hang."""
    node.add_gpus(1)
    node.host.add_function(
        NIC, vendor="8086", device="1572", pci_class="020000", driver="i40e", group=60, sriov=4
    )
    (node.root / RECORD.path).mkdir(parents=True)
    frozen.take(node.root / sleep.path)


@asynccontextmanager
async def asleep(node: Node, frozen: Frozen, daemon: Daemon, sleep: Sleep) -> AsyncIterator[None]:
    """A thread of the daemon sleeps in the kernel until the end."""
    with frozen.hanging():
        node.configure(f"apiVersion: nodeagent/v1\n{sleep.configuration}\n")
        await eventually(lambda: bool(freezing.sleepers(daemon.pid)))
        yield


async def killed(daemon: Daemon) -> None:
    """All of its threads have ended but the one that sleeps."""
    daemon.send(signal.SIGKILL)
    await eventually(lambda: freezing.leader(daemon.pid) == "Z")


async def test_nothing_of_a_daemon_outlives_it_but_the_write_to_the_host_that_sleeps(
    node: Node, frozen: Frozen
) -> None:
    prepared(node, frozen, CHANGE)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), AsyncExitStack() as later:
        async with asleep(node, frozen, daemon, CHANGE):
            (sleeper,) = freezing.sleepers(daemon.pid)
            assert len(os.listdir(sleeper / "fd")) <= 1, "the file, if it is open yet"
            await killed(daemon)
            await kubelet.until(lambda: not kubelet.statistics.streams.get(T4), PATIENCE)
            seen = len(kubelet.statistics.lists[T4])
            heir = await later.enter_async_context(node.daemon())
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            given = await kubelet.admit(pod("vm", {T4: 1}))
            assert given.phase == "Running", given.message
            assert freezing.sleepers(daemon.pid)
        await eventually(lambda: not freezing.sleepers(heir.pid))
        assert (await node.status())["changes"]["problems"] == []


async def test_another_serves_at_once_also_while_the_dead_one_keeps_all_its_connections(
    node: Node, frozen: Frozen
) -> None:
    prepared(node, frozen, RECORD)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), AsyncExitStack() as later:
        async with asleep(node, frozen, daemon, RECORD):
            await killed(daemon)
            assert kubelet.statistics.streams == {T4: 1}
            seen = len(kubelet.statistics.lists[T4])
            heir = await later.enter_async_context(node.daemon())
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            given = await kubelet.admit(pod("vm", {T4: 1}))
            assert given.phase == "Running", given.message
            assert (await node.status())["pid"] == heir.pid
            assert freezing.sleepers(daemon.pid)
        # The kubelet takes the end of the first one's stream for the end of the second, and forgets that.
        await kubelet.until(lambda: len(kubelet.statistics.accepted(T4)) == 3, PATIENCE)
        await kubelet.until_listed(T4, 1, PATIENCE)


@EITHER
async def test_one_that_lives_keeps_others_away_also_while_a_write_of_it_sleeps(
    node: Node, frozen: Frozen, sleep: Sleep
) -> None:
    prepared(node, frozen, sleep)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), asleep(node, frozen, daemon, sleep):
        second = await node.command("run")
        assert second.returncode == 1
        assert "another nodeagent serves" in second.stderr
        assert (await node.status())["pid"] == daemon.pid
        assert kubelet.statistics.streams == {T4: 1}


@EITHER
async def test_of_many_that_come_at_once_after_it_exactly_one_serves(
    node: Node, frozen: Frozen, sleep: Sleep
) -> None:
    prepared(node, frozen, sleep)
    async with node.daemon() as daemon, AsyncExitStack() as later, asleep(node, frozen, daemon, sleep):
        await killed(daemon)
        heirs = [await later.enter_async_context(node.daemon(ready=False)) for _ in range(3)]
        await eventually(lambda: sum(heir.alive for heir in heirs) == 1)
        (one,) = (heir for heir in heirs if heir.alive)
        await one.logged("ready")
        assert (await node.status())["pid"] == one.pid
        assert {heir.process.returncode for heir in heirs if heir is not one} == {1}
