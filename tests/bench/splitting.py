# SPDX-License-Identifier: Apache-2.0
"""Eight cards that are split: how long that takes, how many writes and reads it costs, and how both grow.

The simulated kernel and the fake kubelet run in this process. It notices writes by inotify and makes a
dozen files and links for each instance, which is most of the time that is measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio

from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.mdev import Card, MdevKernel, Type, add_card, simulated_cards
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure

CARDS = 8
SIZES = (4, 8, 16)
CONFIG = "apiVersion: nodeagent/v1\nmdevs: {{manage: true, types: [{types}]}}\n"


async def figures() -> list[Figure]:
    """All figures of this module."""
    rows: list[Figure] = []
    reads: dict[int, float] = {}
    for size in SIZES:
        reads[size] = await _measured(size, rows)
    growth = (reads[16] - reads[8]) / (reads[8] - reads[4])
    rows.append(Figure("reads for 8 to 16 instances against those for 4 to 8", growth, "x", "2 (linear)"))
    return rows


async def _measured(size: int, rows: list[Figure]) -> float:
    """Fill all cards with ``size`` instances each; return the reads that this took."""
    split = [Card(f"0000:{0x10 + number:02x}:00.0", (Type("t-1", size),)) for number in range(CARDS)]
    with tempfile.TemporaryDirectory(prefix="nodeagent-bench-") as directory:
        host = SimulatedHost(directory)
        for number, card in enumerate(split):
            add_card(host, card, 10 + number)
        host.write_file("/etc/machine-id", "5f2a0c6e8b3d4f17a9c1e0d2b4f68a37")
        host.write_file("/etc/nodeagent/config.yaml", CONFIG.format(types=""))
        async with FakeKubelet(directory) as kubelet, simulated_cards(host, MdevKernel(split)) as made:
            daemon = Daemon(directory)
            await _until(lambda: _ready(directory))
            await anyio.sleep(1)
            before, began = daemon.reads(), time.monotonic()
            host.write_file("/etc/nodeagent/config.yaml", CONFIG.format(types="t-1"))
            total = CARDS * size
            await _until(lambda: len(made.instances) == total)
            last = made.last_bind
            await _until(lambda: sum(map(len, kubelet.state.table.devices.values())) == total)
            listed = max(seen[-1].when for seen in kubelet.statistics.lists.values() if seen)
            await anyio.sleep(1)
            reads = float(daemon.reads() - before)
            name = f"{CARDS} cards x {size} instances"
            rows.append(Figure(f"{name}, to the last bind", (last - began) * 1e3, "ms", "linear"))
            rows.append(Figure(f"{name}, writes", made.writes, "", str(total)))
            rows.append(Figure(f"{name}, read calls of the daemon", reads, "", "linear"))
            if size == max(SIZES):
                rows.append(Figure("last bind to complete list", (listed - last) * 1e3, "ms", "<= 100"))
            daemon.stop()
    return reads


def _ready(directory: str) -> bool:
    return Path(directory, "run/nodeagent/status.sock").exists()


async def _until(state: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not state():  # noqa: ASYNC110 - files and counts give no event
            await anyio.sleep(0.002)
