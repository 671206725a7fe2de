# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while one of its threads sleeps in the kernel: nothing of it keeps the next one away.

The kernel really lets that thread sleep, as it does with a write to sysfs that waits for a virtual machine.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests import freezing
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, eventually, pod
from tests.freezing import Frozen

NIC = "0000:60:00.0"
NOTHING = "apiVersion: nodeagent/v1\n"
pytestmark = pytest.mark.skipif(
    not freezing.possible(), reason="freezing a file system takes root and loop devices"
)


@pytest.fixture
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """Files that can be made to hang."""
    with freezing.frozen(tmp_path_factory.mktemp("frozen")) as files:
        yield files


@asynccontextmanager
async def asleep(node: Node, frozen: Frozen, daemon: Daemon) -> AsyncIterator[None]:
    """The daemon writes what it cannot, until the end: VFs of a network card are wanted."""
    with frozen.hanging(Path(node.host.functions.attribute(NIC, "sriov_numvfs"))):
        node.configure("apiVersion: nodeagent/v1\nsriov: [{match: [{vendors: ['8086']}], numVFs: 2}]\n")
        await eventually(lambda: freezing.sleeping(daemon.pid))
        yield


async def killed(daemon: Daemon) -> None:
    """All of its threads have ended but the one that sleeps."""
    daemon.send(signal.SIGKILL)
    await eventually(lambda: freezing.leader(daemon.pid) == "Z")


def two_cards(node: Node) -> None:
    """A GPU that is given away, and a network card that can have VFs."""
    node.add_gpus(1)
    node.host.add_function(
        NIC, vendor="8086", device="1572", pci_class="020000", driver="i40e", group=60, sriov=4
    )


async def test_another_serves_at_once_after_one_was_killed_whose_write_sleeps_on(
    node: Node, frozen: Frozen
) -> None:
    two_cards(node)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), AsyncExitStack() as later:
        async with asleep(node, frozen, daemon):
            await killed(daemon)
            seen = len(kubelet.statistics.lists[T4])
            heir = await later.enter_async_context(node.daemon())
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            assert (await kubelet.admit(pod("vm", {T4: 1}))).phase == "Running"
            assert (await node.status())["pid"] == heir.pid
            assert freezing.sleeping(daemon.pid)
            assert daemon.alive
        # The kubelet takes the end of the first one's stream for the end of the second, and forgets that.
        await kubelet.until(lambda: len(kubelet.statistics.accepted(T4)) == 3, PATIENCE)
        await kubelet.until_listed(T4, 1, PATIENCE)
        await eventually(lambda: not freezing.sleeping(heir.pid))
        assert (await node.status())["changes"]["problems"] == []


async def test_one_that_lives_keeps_others_away_also_while_its_write_sleeps(
    node: Node, frozen: Frozen
) -> None:
    two_cards(node)
    async with node.running(listed={T4: 1}) as (daemon, kubelet), asleep(node, frozen, daemon):
        second = await node.command("run")
        assert second.returncode == 1
        assert "another nodeagent serves" in second.stderr
        assert (await node.status())["pid"] == daemon.pid
        assert kubelet.statistics.streams == {T4: 1}


@pytest.mark.parametrize("_", range(3))
async def test_of_many_that_come_at_once_after_it_exactly_one_serves(
    node: Node, frozen: Frozen, _: int
) -> None:
    two_cards(node)
    async with node.daemon() as daemon, asleep(node, frozen, daemon):
        await killed(daemon)
        node.configure(NOTHING)  # else each of them sleeps there as well
        async with AsyncExitStack() as stack:
            heirs = [await stack.enter_async_context(node.daemon(ready=False)) for _ in range(3)]
            await eventually(lambda: sum(heir.alive for heir in heirs) == 1)
            (one,) = (heir for heir in heirs if heir.alive)
            await one.logged("ready")
            assert (await node.status())["pid"] == one.pid
            assert {heir.process.returncode for heir in heirs if heir is not one} == {1}
