# SPDX-License-Identifier: Apache-2.0
"""The daemon below systemd, whose end of the socket is here: status, reloads, and a watchdog that bites.

A component is made to stand still as it would in earnest: a wakeup is lost, and the loop goes on turning.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import anyio
import pytest

from tests.blackbox import wakeups
from tests.blackbox.harness import PATIENCE, T4, Node

WATCHDOG = 2.0  # seconds


class Systemd:
    """What was heard, and when."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.socket.bind(str(path))

    @property
    def environ(self) -> Mapping[str, str]:
        """As systemd sets it up; the process that it is for is not known before."""
        return {"NOTIFY_SOCKET": str(self.path), "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}

    async def hears(self, word: str, seconds: float = PATIENCE) -> str:
        """The next message that has the word. Raises TimeoutError."""
        with anyio.fail_after(seconds):
            while True:
                await anyio.wait_readable(self.socket)
                message = self.socket.recv(4096).decode()
                if word in message:
                    return message

    def forget(self) -> None:
        """What has come so far is not asked about."""
        try:
            while self.socket.recv(4096):
                pass
        except BlockingIOError:
            return


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    made = Systemd(tmp_path / "notify")
    yield made
    made.socket.close()


async def test_who_starts_it_can_ask_it_as_soon_as_it_is_ready(node: Node, systemd: Systemd) -> None:
    async with node.daemon(environ=systemd.environ, ready=False):
        await systemd.hears("READY=1")
        assert (node.root / "run/nodeagent/status.sock").is_socket()


async def test_the_status_line_follows_and_a_reload_ends_with_ready(node: Node, systemd: Systemd) -> None:
    first, _ = node.add_gpus(2)
    async with node.daemon(environ=systemd.environ) as daemon:
        assert "kubelet" in await systemd.hears("STATUS=")
        async with node.kubelet():
            assert "1 resources, 2 of 2 devices Healthy" in await systemd.hears("kubelet connected")
            node.host.bind(first, "nouveau")
            await systemd.hears("1 of 2 devices Healthy")
            node.configure("apiVersion: nodeagent/v1\nlog: {level: debug}\n")
            await daemon.logged("config-reloaded")
            systemd.forget()
            daemon.send(signal.SIGHUP)
            assert "MONOTONIC_USEC=" in await systemd.hears("RELOADING=1")
            await systemd.hears("READY=1")
            node.configure("nonsense")
            assert "config.yaml" in await systemd.hears("STATUS=")
            systemd.forget()
            daemon.send(signal.SIGHUP)
            await systemd.hears("RELOADING=1")
            await systemd.hears("READY=1")


async def test_a_process_that_is_stopped_feeds_no_watchdog(node: Node, systemd: Systemd) -> None:
    async with node.daemon(environ=systemd.environ) as daemon:
        await systemd.hears("WATCHDOG=1")
        daemon.send(signal.SIGSTOP)
        systemd.forget()
        with pytest.raises(TimeoutError):
            await systemd.hears("WATCHDOG=1", WATCHDOG)
        daemon.send(signal.SIGCONT)
        await systemd.hears("WATCHDOG=1")
        assert daemon.lines("subsystem-stuck") == []


@pytest.mark.slow
@pytest.mark.timeout(90)
async def test_components_that_stand_still_starve_the_watchdog_while_the_loop_turns(
    node: Node, systemd: Systemd
) -> None:
    node.add_gpus(2)
    losing = (sys.executable, os.fspath(Path(wakeups.__file__)), "observe,offering")
    environ = {**systemd.environ, "PYTHONPATH": os.getcwd()}
    async with node.kubelet() as kubelet, node.daemon(environ=environ, under=losing) as daemon:
        await kubelet.until_listed(T4, 2, PATIENCE)
        await systemd.hears("WATCHDOG=1")
        daemon.send(signal.SIGUSR1)
        await anyio.sleep(0.5)
        node.configure(f"aliases: {{{T4}: nvidia.com/t4}}")
        assert "STATUS=" in await systemd.hears("scan", 60)
        for stuck in ("observe", "offering"):
            assert (await daemon.logged("subsystem-stuck", subsystem=stuck))["level"] == "error"
        systemd.forget()
        with pytest.raises(TimeoutError):
            await systemd.hears("WATCHDOG=1", 2 * WATCHDOG)
        assert (await node.status())["pid"] == daemon.pid, "the loop turns, and it is asked in vain"
