# SPDX-License-Identifier: Apache-2.0
"""A small node: its memory, and what an idle daemon does in a minute."""

from __future__ import annotations

import anyio

from nodeagent.base import threads
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.bench import listing
from tests.bench.daemon import Daemon, simulated
from tests.bench.figures import Figure


async def figures() -> list[Figure]:
    """With 8 resources and 16 devices."""
    with simulated(16, 8) as host:
        async with FakeKubelet(host.path("/")) as kubelet:
            daemon = Daemon(host.path("/"))
            await listing.all_listed(kubelet, resources=8)
            await anyio.sleep(5)
            measured = await _minute(daemon)
            await threads.call(daemon.stop)
            return measured


async def _minute(daemon: Daemon) -> list[Figure]:
    ticks, runtime, switches = daemon.ticks(), daemon.runtime(), daemon.switches()
    await anyio.sleep(60)
    switched = daemon.switches() - switches
    return [
        Figure("memory, 8 resources / 16 devices", daemon.memory(), "MiB", "<= 31.4"),
        Figure("CPU ticks in an idle minute", daemon.ticks() - ticks, "", "<= 1"),
        Figure("CPU time in an idle minute", daemon.runtime() - runtime, "ms"),
        Figure("context switches in an idle minute", switched, "", "slow timers only"),
    ]
