# SPDX-License-Identifier: Apache-2.0
"""The watchdog: a loop that has stopped is reported and starves it; a kubelet or device that hangs is not."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from nodeagent import config
from nodeagent.agent.reporting.systemd import Watchdog
from nodeagent.app import Daemon
from nodeagent.base import log
from nodeagent.base.supervise import Heartbeat
from nodeagent.base.systemd import Notifier
from nodeagent.base.timeouts import Timeouts
from nodeagent.config import Sources
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests import virtual
from tests.conftest import Said
from tests.sim import fifos, hosts

GPU = "example.com/gpu"
CONFIG = "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]\n"
TURN = 2.4  # seconds; a scan in which a device does not answer takes less


@virtual.TIME
async def test_a_loop_that_has_stopped_is_reported_once_and_starves_the_watchdog(
    tmp_path: Path, said: Said
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as peer:
        peer.bind(str(tmp_path / "notify"))
        heartbeat = Heartbeat("the loop", 40.0)
        notifier = Notifier(str(tmp_path / "notify"), 30.0)
        watchdog = Watchdog(notifier, lambda: {"it": heartbeat}, Timeouts())
        heartbeat.turned()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watchdog.run)
            await anyio.sleep(40)
            assert peer.recv(4096) == b"WATCHDOG=1"
            assert watchdog.problem() is None
            await anyio.sleep(20)
            while _received(peer):
                pass
            await anyio.sleep(60)
            assert not _received(peer)
            assert watchdog.problem() == "it: the loop made no iteration for 40 s"
            assert [each["subsystem"] for each in said(log.SUBSYSTEM_STUCK)] == ["it"]
            heartbeat.turned()
            await anyio.sleep(16)
            assert _received(peer)
            assert said(log.SUBSYSTEM_RECOVERED) == [{"subsystem": "it"}]
            tasks.cancel_scope.cancel()


def _received(peer: socket.socket) -> bytes:
    """The next message; empty if there is none."""
    try:
        return peer.recv(4096)
    except BlockingIOError:
        return b""


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    made = hosts.many(tmp_path, 2)
    made.write_file("/etc/nodeagent/config.yaml", CONFIG)
    return made


@pytest.fixture
async def daemon(host: SimulatedHost) -> AsyncIterator[Daemon]:
    sources = Sources(host.directory, {"http.listen": ""}, {})
    made = Daemon(config.load(sources), sources, Timeouts()._replace(loop_turn=TURN), lambda _: None)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


async def problems(daemon: Daemon) -> list[str]:
    """The problems of loops within twice the time that each may take for a turn."""
    found = []
    for _ in range(10):
        await anyio.sleep(TURN / 5)
        found += [text for each in daemon.heartbeats().values() if (text := each.problem()) is not None]
    return found


@pytest.mark.slow
async def test_neither_a_kubelet_that_is_away_nor_a_device_that_hangs_asks_for_a_restart(
    host: SimulatedHost, daemon: Daemon
) -> None:
    async with FakeKubelet(host.directory) as kubelet:
        await kubelet.until_listed(GPU, 2)
        assert daemon.heartbeats().keys() == {"observe", "offering"}
        address = next(iter(daemon.core.snapshots.now.host.functions))
        fifos.hang(host, address, "enable")
        daemon.core.scan_requests.add(None)
        await kubelet.until(lambda: kubelet.capacity(GPU) == (2, 1))
        assert await problems(daemon) == []
    assert await problems(daemon) == []
    fifos.unhang(host, address, "enable")


@pytest.mark.slow
async def test_a_daemon_that_never_saw_a_kubelet_asks_for_no_restart(daemon: Daemon) -> None:
    daemon.core.usage.request_soon()
    assert await problems(daemon) == []
