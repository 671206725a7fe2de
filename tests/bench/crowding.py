# SPDX-License-Identifier: Apache-2.0
"""Kubelet restarts with 60 resources of 1,000 devices each: nodes that are shared, whose ids all differ.

The kubelet is grpcio in a process of its own and does not decode the lists, so the figures are nearly the
daemon's; the fake kubelet takes a second for as many.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from tests.bench.daemon import Daemon, simulated
from tests.bench.figures import Figure

RESOURCES, SHARES = 60, 1000
RESTARTS = 10
AWAY = 1.0  # seconds without a kubelet
QUIET = 1.5  # seconds after the lists, so that nothing of one restart is done in the next
ANSWER = 1 << 20  # bytes of the kubelet's longest line, at most
RULE = "  - {{name: example.com/n{0}, node: {{path: /dev/n{0}, count: {1}}}}}\n"


class Reader:
    """The kubelet: a program that is told by lines."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._told = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def start(self) -> list[tuple[float, int]]:
        """Milliseconds until each list, and its bytes."""
        lists: list[tuple[float, int]] = json.loads(await self._tell("start"))
        return lists

    async def stop(self) -> None:
        """All its connections end."""
        await self._tell("stop")

    async def _tell(self, word: str) -> bytes:
        await self._told.send(f"{word}\n".encode())
        return await self._answers.receive_until(b"\n", ANSWER)


async def figures() -> list[Figure]:
    """The kubelet's socket → all lists, ten times; what that costs the daemon, and its size."""
    times, cpu, size = await restarted(RESTARTS)
    return [
        Figure(
            "kubelet back to all 60 lists of 1,000, median of 10", statistics.median(times), "ms", "<= 1000"
        ),
        Figure("kubelet back to all 60 lists of 1,000, worst of 10", max(times), "ms", "<= 1000"),
        Figure("the same, CPU of the daemon, median", statistics.median(cpu), "ms"),
        Figure("memory, 60 resources of 1,000 devices each", size, "MiB"),
    ]


async def restarted(restarts: int) -> tuple[list[float], list[float], float]:
    """Milliseconds until the last list and of the daemon's work, of each restart; its size in MiB."""
    with simulated(0, 1) as host:
        plugins = _configured(host)
        command = [sys.executable, "-m", "tests.bench.reader", plugins, str(RESOURCES)]
        async with await anyio.open_process(command, stderr=None) as process:
            reader = Reader(process)
            daemon = Daemon(host.path("/"))
            await reader.start()
            await anyio.sleep(QUIET)
            times, cpu = await _restarts(reader, daemon, restarts)
            size = daemon.memory()
            await threads.call(daemon.stop)
            process.terminate()
    return times, cpu, size


def _configured(host: SimulatedHost) -> str:
    """A rule for each node; the path of the directory of plugins."""
    for number in range(RESOURCES):
        host.node(f"/dev/n{number}")
    rules = "".join(RULE.format(number, SHARES) for number in range(RESOURCES))
    host.write_file("/etc/nodeagent/config.yaml", f"apiVersion: nodeagent/v1\nresources:\n{rules}")
    plugins = host.path("/var/lib/kubelet/device-plugins")
    Path(plugins).mkdir(parents=True)
    return plugins


async def _restarts(reader: Reader, daemon: Daemon, restarts: int) -> tuple[list[float], list[float]]:
    """Milliseconds until the last list, and of the daemon's work."""
    times, cpu = [], []
    for _ in range(restarts):
        await reader.stop()
        await anyio.sleep(AWAY)
        before = daemon.runtime()
        lists = await reader.start()
        cpu.append(daemon.runtime() - before)
        times.append(max(milliseconds for milliseconds, _ in lists))
        await anyio.sleep(QUIET)
    return times, cpu
