# SPDX-License-Identifier: Apache-2.0
"""Allocates for pods that request both functions of a board, which two resources offer.

The first Allocate of a pod has a sibling that another resource offers, the second one a sibling that its own
pod uses, so each queries PodResources. The fake kubelet is the client, in this process: it also answers
PodResources, so its own time is in the figures.
"""

from __future__ import annotations

import anyio

from nodeagent.base import threads
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.server import FakeKubelet
from nodeagent.sim.kubelet.state import Pod
from tests import places
from tests.bench import listing
from tests.bench.daemon import Daemon
from tests.bench.figures import Figure, both

BOARDS = 200
PODS = 150
HELD = 10  # pods at once
WARM = 20  # pods that do not count
PAUSE = 0.05  # seconds between two pods
DEVICES = ("1000", "1001")  # PCI device ids of the two functions of each board


async def figures() -> list[Figure]:
    """p50 and p99 of the first and of the second Allocate of a pod."""
    with places.in_memory("nodeagent-bench-") as directory:
        host = SimulatedHost(directory)
        _add_boards(host)
        async with FakeKubelet(directory) as kubelet:
            daemon = Daemon(host.path("/"))
            await listing.all_listed(kubelet, daemon.started, resources=len(DEVICES))
            await _admit_pods(kubelet)
            await threads.call(daemon.stop)
            seconds = [each.seconds for each in kubelet.statistics.allocations[len(DEVICES) * WARM :]]
    return [
        *both("Allocate, another resource offers a sibling", seconds[::2], "<= 5", "<= 12"),
        *both("Allocate, its own pod uses a sibling", seconds[1::2], "<= 5", "<= 12"),
    ]


def _add_boards(host: SimulatedHost) -> None:
    for number in range(BOARDS):
        for function, device in enumerate(DEVICES):
            address = f"0000:{number + 1:02x}:00.{function}"
            host.add_function(
                address, vendor="10de", device=device, pci_class="030200", driver="vfio-pci", group=number
            )


async def _admit_pods(kubelet: FakeKubelet) -> None:
    """Admit one pod after the other; the oldest one is deleted when there are too many."""
    limits = dict.fromkeys(sorted(kubelet.state.table.devices), 1)
    pods: list[Pod] = []
    for number in range(PODS):
        pod = await kubelet.admit(Pod("default", f"vm-{number}", [limits]))
        assert pod.phase == "Running", pod.message
        pods.append(pod)
        if len(pods) > HELD:
            kubelet.delete(pods.pop(0))
        await anyio.sleep(PAUSE)
