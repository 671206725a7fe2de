# SPDX-License-Identifier: Apache-2.0
"""Whole scans, and the decision after one change, in this process, on hosts of growing size."""

from __future__ import annotations

import statistics
import time

from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan.scanner import Scanner
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Host
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import Spec
from nodeagent.policy.offer import turn
from nodeagent.sim.host import SimulatedHost
from tests.bench import listing
from tests.bench.daemon import simulated
from tests.bench.figures import Figure
from tests.sim import hosts


async def figures() -> list[Figure]:
    """Whole scans, and one changed device, on hosts of growing size."""
    measured = []
    for count in (10, 100, 1000, 10000):
        with simulated(count, min(count, listing.RESOURCES)) as host:
            runner = Scanner(Root(host.path("/")), ScanRequests(), deadline=2.0, timeouts=Timeouts())
            began = time.perf_counter()
            first = await runner.scan(None, Host(), (), {})
            took = time.perf_counter() - began
            measured.append(Figure(f"scan of {count:,} functions", took * 1e3, "ms", "linear"))
            measured.append(Figure(f"scan per function, {count:,} functions", took / count * 1e6, "us"))
            measured.append(await _one_change(host, runner, first, count))
    return measured


async def _one_change(host: SimulatedHost, runner: Scanner, before: Host, count: int) -> Figure:
    """Decide anew after one driver change, without the reading."""
    decision = turn.decide_first(Snapshot(before, Spec()))
    address = hosts.address(count // 2)
    times = []
    for driver in ("nvidia", "vfio-pci") * 10:
        host.bind(address, driver)
        now = await runner.scan(frozenset({address}), decision.snapshot.host, (), {})
        began = time.perf_counter()
        decision = turn.decide_next(decision, Snapshot(now, decision.snapshot.spec))
        times.append(time.perf_counter() - began)
    return Figure(
        f"one changed device of {count:,}, deciding", statistics.median(times) * 1e3, "ms", "the same"
    )
