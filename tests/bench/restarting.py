# SPDX-License-Identifier: Apache-2.0
"""Kubelet restarts, what they cost in memory and descriptors, and how quickly the daemon ends."""

from __future__ import annotations

import statistics
import time

import anyio

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.bench import listing
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure


async def figures(host: SimulatedHost, kubelet: FakeKubelet) -> list[Figure]:
    """Memory after the start, restarts one by one, restarts in a row, and the end."""
    daemon = Daemon(host.path("/"))
    await listing.all_listed(kubelet, daemon.started)
    await anyio.sleep(1)
    size = Figure("memory, 60 resources / 1,000 devices", daemon.memory(), "MiB", "<= 39.6")
    measured = [size, *await _restarts(kubelet), *await _many(kubelet, daemon)]
    ending = await threads.call(daemon.stop)
    return [*measured, Figure("SIGTERM to exit", ending * 1e3, "ms", "<= 2000")]


async def _restarts(kubelet: FakeKubelet) -> list[Figure]:
    """Socket connectable again → all registered, all lists there."""
    times = []
    for _ in range(15):
        await kubelet.stop()
        await anyio.sleep(0.3)
        before = kubelet.statistics.lists_total
        await kubelet.start()
        began = time.monotonic()
        await listing.lists(kubelet, before + listing.RESOURCES)
        await listing.all_listed(kubelet)
        times.append(time.monotonic() - began)
    return [
        Figure("kubelet back to all 60 listed, median", statistics.median(times) * 1e3, "ms", "<= 120"),
        Figure("kubelet back to all 60 listed, worst of 15", max(times) * 1e3, "ms", "<= 160"),
    ]


async def _many(kubelet: FakeKubelet, daemon: Daemon) -> list[Figure]:
    """200 kubelet restarts in a row: memory and descriptors."""
    memory, files = daemon.memory(), daemon.files()
    for _ in range(200):
        before = kubelet.statistics.lists_total
        await kubelet.restart()
        await listing.lists(kubelet, before + listing.RESOURCES)
    await anyio.sleep(2)
    return [
        Figure("memory after 200 kubelet restarts", daemon.memory(), "MiB", "<= 45, flat"),
        Figure("growth over 200 kubelet restarts", daemon.memory() - memory, "MiB", "flat"),
        Figure("descriptors gained over 200 restarts", daemon.files() - files, "", "0"),
    ]
