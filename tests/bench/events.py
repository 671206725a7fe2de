# SPDX-License-Identifier: Apache-2.0
"""A device's driver changes → the new list is at the kubelet: after quiet, and soon after the last event."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import anyio

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from tests.bench import listing
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure, both
from tests.sim import hosts

FIRST, FOLLOWING = 60, 200
QUIET = 0.5  # seconds without an event
SOON = 0.03
DRIVERS = ("nvidia", "vfio-pci")


async def figures(host: SimulatedHost, kubelet: FakeKubelet) -> list[Figure]:
    """Both ways to come, with the time in which events are gathered."""
    daemon = Daemon(host.path("/"))
    await listing.all_listed(kubelet)
    first = await _times(host, kubelet, FIRST, QUIET)
    following = await _times(host, kubelet, FOLLOWING, SOON)
    await threads.call(daemon.stop)
    return [
        *both("first event after quiet to list", first, "<= 5", "<= 8"),
        *both("event 30 ms after the last to list", following, p99="<= 25"),
    ]


async def _times(host: SimulatedHost, kubelet: FakeKubelet, count: int, pause: float) -> Sequence[float]:
    """Seconds from the first change of a file to the next list: a device leaves its driver, or comes back."""
    times = []
    for number, driver in zip(range(count), itertools.cycle(DRIVERS), strict=False):
        await anyio.sleep(pause)
        before = kubelet.statistics.lists_total
        began = time.monotonic()
        host.bind(hosts.address(number // 2 * 7), driver)
        await listing.lists(kubelet, before + 1)
        times.append(time.monotonic() - began)
    return times
