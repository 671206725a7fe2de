# SPDX-License-Identifier: Apache-2.0
"""The daemon is killed while a write of it sleeps in the kernel: the next daemon serves at once.

The kernel really lets that write sleep, as it does with a write to sysfs that waits for a virtual machine.
A read that sleeps is left out: the next daemon waits until it returns.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from nodeagent.base import sockets
from tests import freezing
from tests.blackbox.harness import PATIENCE, T4, Daemon, Node, eventually, pod
from tests.freezing import Frozen

NIC = "0000:60:00.0"
CONFIGURATION = "apiVersion: nodeagent/v1\nsriov: [{match: [{vendors: ['8086']}], numVFs: 2}]\n"
AT_ONCE = 5.0  # seconds
pytestmark = pytest.mark.skipif(
    not freezing.possible(), reason="file systems that hang take root and loop devices"
)


@pytest.fixture
def frozen(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """A GPU that is offered, and a network card whose ``sriov_numvfs`` can hang."""
    node.add_gpus(1)
    node.host.add_function(
        NIC, vendor="8086", device="1572", pci_class="020000", driver="i40e", group=60, sriov=4
    )
    with freezing.frozen(tmp_path_factory.mktemp("frozen")) as disk:
        disk.take(node.root / f"sys/bus/pci/devices/{NIC}/sriov_numvfs")
        yield disk


@asynccontextmanager
async def writer(node: Node, frozen: Frozen, daemon: Daemon) -> AsyncIterator[int]:
    """The process of the daemon whose write sleeps until the end."""

    def sleeping() -> list[int]:
        return [child for child in freezing.children(daemon.pid) if frozen.sleepers(child)]

    with frozen.hanging():
        node.configure(CONFIGURATION)
        await eventually(lambda: bool(sleeping()))
        (child,) = sleeping()
        yield child


async def killed(daemon: Daemon) -> None:
    """Kill the daemon; it ends, although its write does not."""
    daemon.send(signal.SIGKILL)
    with anyio.fail_after(AT_ONCE):
        await daemon.process.wait()


async def test_the_next_daemon_serves_while_the_write_sleeps(node: Node, frozen: Frozen) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet), AsyncExitStack() as later:
        async with writer(node, frozen, daemon) as child:
            (socket,) = node.sockets()
            await killed(daemon)
            await kubelet.until(lambda: not kubelet.statistics.streams.get(T4), PATIENCE)
            assert not sockets.is_served(node.plugins / socket)
            seen = len(kubelet.statistics.lists[T4])
            before = anyio.current_time()
            heir = await later.enter_async_context(node.daemon())
            await kubelet.until(lambda: len(kubelet.statistics.lists[T4]) > seen, PATIENCE)
            assert anyio.current_time() - before < AT_ONCE
            given = await kubelet.admit(pod("vm", {T4: 1}))
            assert given.phase == "Running", given.message
            assert (await node.status())["pid"] == heir.pid
            assert frozen.sleepers(child)
        await eventually(lambda: not freezing.children(heir.pid))
        assert (await node.status())["changes"]["problems"] == []


async def test_a_living_daemon_keeps_others_away_while_its_write_sleeps(node: Node, frozen: Frozen) -> None:
    async with node.running(listed={T4: 1}) as (daemon, kubelet), writer(node, frozen, daemon):
        second = await node.command("run")
        assert second.returncode == 1
        assert "another nodeagent serves" in second.stderr
        assert (await node.status())["pid"] == daemon.pid
        assert kubelet.statistics.streams == {T4: 1}


async def test_of_many_that_start_at_once_after_it_exactly_one_serves(node: Node, frozen: Frozen) -> None:
    async with node.daemon() as daemon, AsyncExitStack() as later, writer(node, frozen, daemon):
        await killed(daemon)
        heirs = [await later.enter_async_context(node.daemon(ready=False)) for _ in range(3)]
        await eventually(lambda: sum(heir.alive for heir in heirs) == 1)
        (one,) = (heir for heir in heirs if heir.alive)
        await one.logged("ready")
        assert (await node.status())["pid"] == one.pid
        assert {heir.process.returncode for heir in heirs if heir is not one} == {1}
