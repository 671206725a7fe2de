# SPDX-License-Identifier: Apache-2.0
"""The daemon in this process: start in order, work, reload, stop in bounded time, leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from nodeagent import config
from nodeagent.app import Daemon
from nodeagent.base import log, sockets, threads
from nodeagent.base.errors import AlreadyRunning
from nodeagent.base.timeouts import Timeouts
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests.agent.parts import until
from tests.conftest import Said
from tests.sim import hosts

GPU = "example.com/gpu"
CONFIG = "apiVersion: nodeagent/v1\nresources: [{name: example.com/gpu, pci: [{vendors: ['10de']}]}]\n"


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    made = hosts.many(tmp_path, 2)
    made.node("/dev/kvm")
    configure(made, CONFIG)
    return made


@pytest.fixture
async def kubelet(host: SimulatedHost) -> AsyncIterator[FakeKubelet]:
    async with FakeKubelet(host.directory) as running:
        yield running


def configure(host: SimulatedHost, text: str) -> None:
    directory = Path(host.path("/etc/nodeagent"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(text)


def sources(host: SimulatedHost, **environ: str) -> config.Sources:
    return config.Sources(host.directory, {"http.listen": ""}, environ)


def status_socket(host: SimulatedHost) -> str:
    return host.path(config.load(sources(host)).status.socket)


async def status(host: SimulatedHost) -> dict[str, Any]:
    """What the daemon tells, as soon as it can be asked: its socket comes after its plugins."""
    with anyio.fail_after(10):
        while True:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                found: dict[str, Any] = await threads.call(sockets.ask, status_socket(host), "/status", 5.0)
                return found
            await anyio.sleep(0.01)


def _exists(path: str) -> bool:
    return os.path.exists(path)


def made(host: SimulatedHost, **environ: str) -> Daemon:
    """A daemon that does not run yet; its inotify instance is to be closed by who runs it."""
    return Daemon(config.load(sources(host)), sources(host, **environ), Timeouts(), lambda _: None)


@asynccontextmanager
async def running(host: SimulatedHost, **environ: str) -> AsyncIterator[Daemon]:
    """A daemon, stopped by SIGTERM at the end."""
    daemon, ended = made(host, **environ), anyio.Event()

    async def life() -> None:
        await daemon.run()
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(life)
        yield daemon
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(10):
            await ended.wait()


async def test_it_serves_works_and_stops_on_a_signal(
    host: SimulatedHost, kubelet: FakeKubelet, said: Said
) -> None:
    async with running(host) as daemon:
        await kubelet.until_listed(GPU, 2)
        pod = await kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
        assert pod.phase == "Running"
        await until(daemon.core.snapshots, lambda snapshot: bool(snapshot.allocations.holders))
        told = await status(host)
        assert [held["pod"] for held in told["holders"].values()] == ["ns/p"]
        assert told["problems"] == []
        began = anyio.current_time()
    assert anyio.current_time() - began < 4.0
    assert not _exists(status_socket(host))
    assert [name for name in os.listdir(daemon.kubelet.directory.path) if name.endswith(".sock")] == [
        "kubelet.sock"
    ]
    assert said(log.READY) == [{"resources": 1, "devices": 2}]
    assert said(log.STOPPING) == [{"cause": "SIGTERM"}]
    assert said(log.SUBSYSTEM_FAILED) == []


async def test_garbage_is_collected_once_it_is_ready(host: SimulatedHost, kubelet: FakeKubelet) -> None:
    gc.disable()
    try:
        async with running(host):
            await kubelet.until_listed(GPU, 2, 10)
            assert gc.isenabled()
            assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        gc.enable()


async def test_systemd_is_told_that_it_is_ready_alive_and_stopping(
    host: SimulatedHost, kubelet: FakeKubelet, tmp_path: Path
) -> None:
    loop, told = asyncio.get_running_loop(), list[str]()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        async with running(host, NOTIFY_SOCKET=systemd.getsockname(), WATCHDOG_USEC="100000"):
            with anyio.fail_after(10):
                while told.count("WATCHDOG=1") < 3:
                    told.append((await loop.sock_recv(systemd, 4096)).decode())
        with anyio.fail_after(5):
            while told[-1] != "STOPPING=1":
                told.append((await loop.sock_recv(systemd, 4096)).decode())
    assert told.count("READY=1") == 1


async def test_a_second_daemon_may_not_start(host: SimulatedHost, kubelet: FakeKubelet) -> None:
    async with running(host):
        await kubelet.until_listed(GPU, 2)
        second = made(host)
        with pytest.raises(AlreadyRunning):
            second.kubelet.open()
        second.core.watcher.close()
        assert (await status(host))["resources"][0]["registered"]
        assert len(kubelet.statistics.accepted(GPU)) == 1


async def test_a_new_kubelet_is_doubted_and_said(
    host: SimulatedHost, kubelet: FakeKubelet, said: Said
) -> None:
    async with running(host) as daemon:
        await kubelet.until_listed(GPU, 2)
        await kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
        await until(daemon.core.snapshots, lambda snapshot: bool(snapshot.allocations.holders))
        kubelet.faults.set("pod-resources-empty", 60)
        await kubelet.restart(away=0.1)
        await kubelet.until(lambda: len(kubelet.statistics.accepted(GPU)) == 2)
        await daemon.core.usage.first()
        assert [str(each) for each in daemon.core.snapshots.now.allocations.holders.values()] == ["ns/p"]


async def test_what_waits_for_a_release_is_asked_about_often(
    host: SimulatedHost, kubelet: FakeKubelet
) -> None:
    async with running(host) as daemon:
        await kubelet.until_listed(GPU, 2)
        pod = await kubelet.admit(Pod("ns", "p", [{GPU: 1}]))
        (given,) = pod.result.ids[GPU]
        await until(daemon.core.snapshots, lambda snapshot: bool(snapshot.allocations.holders))
        host.unplug(given)
        await kubelet.until(lambda: kubelet.capacity(GPU) == (2, 1))
        assert given in daemon.core.releases.awaited.get()


async def test_the_daemon_waits_for_a_kubelet(host: SimulatedHost, said: Said) -> None:
    async with running(host):
        await anyio.wait_all_tasks_blocked()
        async with FakeKubelet(host.directory) as late:
            await late.until_listed(GPU, 2, timeout=15.0)
    assert said(log.KUBELET_UNREACHABLE)[0]["socket"] == host.path(
        "/var/lib/kubelet/device-plugins/kubelet.sock"
    )
    assert said(log.KUBELET_REACHABLE)


async def test_sighup_reads_the_settings_again(host: SimulatedHost, kubelet: FakeKubelet, said: Said) -> None:
    async with running(host):
        await kubelet.until_listed(GPU, 2)
        rule = "  - {name: example.com/kvm, node: {path: /dev/kvm, count: 5}}\n"
        configure(host, f"apiVersion: nodeagent/v1\nresources:\n{rule}")
        os.kill(os.getpid(), signal.SIGHUP)
        await kubelet.until_listed("example.com/kvm", 5)
        await kubelet.until(lambda: kubelet.capacity("example.com/kvm") == (5, 5))
        await kubelet.until(lambda: kubelet.statistics.streams[GPU] == 0)


async def test_a_directory_that_another_daemon_took_ends_this_one(
    host: SimulatedHost, kubelet: FakeKubelet
) -> None:
    first, raised = made(host), list[BaseException]()

    async def life() -> None:
        try:
            await first.run()
        except BaseExceptionGroup as group:
            raised.extend(group.exceptions)
        except AlreadyRunning as error:
            raised.append(error)

    with anyio.fail_after(15):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(life)
            await kubelet.until_listed(GPU, 2)
            for directory in (first.kubelet.directory.path, host.path("/run/nodeagent")):
                os.unlink(f"{directory}/nodeagent.lock")
            second = made(host)
            second.kubelet.open()
            first.kubelet.directory.kubelet.touch()
            await kubelet.restart()
    second.kubelet.close()
    second.core.watcher.close()
    assert [type(error) for error in raised] == [AlreadyRunning]


@pytest.mark.parametrize(
    "module",
    [
        "nodeagent.agent.changing.loop",
        "nodeagent.kernel.apply.bind",
        "nodeagent.policy.change.bindings",
        "nodeagent.policy.change.mdevs",
        "yaml",
    ],
)
def test_a_node_without_wishes_never_loads_the_code_for_them(module: str) -> None:
    code = f"import sys, nodeagent.cli, nodeagent.app; print({module!r} in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert told.stdout == "False\n"
