# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while one of its threads sleeps in the kernel: nothing of it keeps the next one away.

The kernel really lets that thread sleep, as it does with a write to sysfs that waits for a virtual machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

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


@asynccontextmanager
async def asleep(node: Node, frozen: Frozen, daemon: Daemon) -> AsyncIterator[None]:
    """The daemon writes what it cannot, until the end: VFs of a network card are wanted."""
    with frozen.hanging(Path(node.host.functions.attribute(NIC, "sriov_numvfs"))):
        node.configure("apiVersion: nodeagent/v1\nsriov: [{match: [{vendors: ['8086']}], numVFs: 2}]\n")
        await eventually(lambda: freezing.sleeping(daemon.pid))
        yield


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
    async with node.running(listed={T4: 1}) as (daemon, kubelet), asleep(node, frozen, daemon):
        daemon.send(signal.SIGKILL)
        await kubelet.until(lambda: not kubelet.statistics.streams.get(T4), PATIENCE)
        node.configure("apiVersion: nodeagent/v1\n")  # else another sleeps there as well
        seen = len(kubelet.statistics.lists[T4])
        async with node.daemon():
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            assert (await kubelet.admit(pod("vm", {T4: 1}))).phase == "Running"
            assert freezing.sleeping(daemon.pid)


async def test_what_may_sleep_for_ever_holds_nothing_of_ours(node: Node, frozen: Frozen) -> None:
    two_cards(node)
    async with node.running(listed={T4: 1}) as (daemon, _), asleep(node, frozen, daemon):
        (sleeper,) = (task for task in tasks(daemon) if state(task) == "D")
        assert set(os.listdir(sleeper / "fd")) == {"0", "1", "2"}


def tasks(daemon: Daemon) -> list[Path]:
    """The threads of the daemon, as directories of proc(5)."""
    return list(Path("/proc", str(daemon.pid), "task").iterdir())


def state(task: Path) -> str:
    """The letter of the thread's state."""
    return (task / "stat").read_text().rpartition(") ")[2][:1]
