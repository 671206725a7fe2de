# SPDX-License-Identifier: Apache-2.0
"""Nodes with much to look at: pods on them and trouble in them, and a daemon that serves its page."""

from __future__ import annotations

import errno
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nodeagent.base.terminal import Paint
from nodeagent.demo.node import DemoNode, Screen, open_node
from nodeagent.demo.story import CONFIG, GPU, TESLA, USB
from nodeagent.sim import nodes
from nodeagent.sim.host import SimulatedHost
from nodeagent.sim.kubelet.state import Pod
from nodeagent.sim.mdev import MdevKernel, SimulatedCards, fail_create, simulated_cards
from tests.sim import hosts

PATIENCE = 30.0
REBOUND = "0000:86:00.0"
_VGPUS = """\
apiVersion: nodeagent/v1
mdevs: {manage: true, types: [nvidia-222, nvidia-228]}
timing: {settle: 500ms, holders: 500ms}
"""


def _screen() -> Screen:
    return Screen(io.StringIO(), Paint(coloured=False))


@asynccontextmanager
async def gpus() -> AsyncIterator[DemoNode]:
    """Four GPUs: one held by a pod, one on the wrong driver; and a Tesla T4 that cannot be given."""
    async with open_node(_screen(), PATIENCE, page=True) as node:
        node.configure(CONFIG)
        await node.start_daemon()
        await node.until(lambda: node.serves({GPU: (4, 4), USB: (4, 4), TESLA: (1, 0)}))
        await node.kubelet.admit(Pod("games", "virt-launcher-red", [{GPU: 1}]))
        node.host.bind(REBOUND, "nvidia")
        await node.reason(REBOUND, "driver-changed")
        await node.until(lambda: node.kubelet.capacity(USB) == (4, 2))
        yield node


@asynccontextmanager
async def vgpus() -> AsyncIterator[tuple[DemoNode, SimulatedCards]]:
    """Three cards split into vGPUs, one of which a pod holds; then other types, and a card that fails."""
    async with (
        open_node(_screen(), PATIENCE, nodes.vgpu_node, page=True) as node,
        simulated_cards(node.host, MdevKernel(nodes.vgpu_cards())) as split,
    ):
        node.configure(_VGPUS)
        await node.start_daemon()
        await node.until(lambda: node.kubelet.capacity("nvidia.com/GRID_T4-1B") == (32, 32))
        await node.kubelet.admit(Pod("desks", "virt-launcher-blue", [{"nvidia.com/GRID_T4-1B": 1}]))
        fail_create(node.host, "0000:5e:00.0", "nvidia-223", errno.EIO)
        node.configure(_VGPUS.replace("nvidia-222, nvidia-228", "nvidia-223"))
        await node.change("waiting", "0000:3b:00.0")
        await node.change("failing", "0000:5e:00.0")
        yield node, split


@asynccontextmanager
async def many(count: int) -> AsyncIterator[DemoNode]:
    """A node with so many GPUs, all of which can be given."""

    def host(where: str) -> SimulatedHost:
        return hosts.many(where, count)

    async with open_node(_screen(), PATIENCE, host, page=True) as node:
        node.configure(CONFIG)
        await node.start_daemon()
        await node.until(lambda: bool(node.kubelet.statistics.streams))
        yield node
