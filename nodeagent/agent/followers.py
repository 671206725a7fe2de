# SPDX-License-Identifier: Apache-2.0
"""Who is told when a cell of another component changes: each a component of its own, and nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nodeagent.agent.core import Core
from nodeagent.agent.kubelet_side import KubeletSide
from nodeagent.agent.tell.holding import HolderLines
from nodeagent.base.supervise import Component, Task
from nodeagent.model.snapshot import Snapshot


def of(core: Core, kubelet: KubeletSide) -> Sequence[Component]:
    """The followers. A kubelet is new only if it comes after the start, and so are settings."""
    socket, checkpoint = kubelet.directory.kubelet, kubelet.directory.checkpoint
    usage = core.usage
    return (
        Task("kubelet", partial(socket.follow, kubelet.registrar.note_socket)),
        Task("new kubelet", partial(socket.follow, lambda _: usage.kubelet_changed(), socket.version)),
        Task("checkpoint", partial(usage.follow_checkpoint, checkpoint)),
        HolderLines(core.snapshots, core.offering),
        Task("device nodes", partial(_follow_nodes, core)),
        Task("settings", partial(_follow_settings, core)),
    )


async def _follow_nodes(core: Core) -> None:
    """Watch the device nodes that rules name, and scan when they are others, or those that pods have."""
    seen, paths, before = -1, tuple[str, ...](), Snapshot()
    while True:
        seen, snapshot = await core.snapshots.newer(seen)
        if snapshot.desired.node_paths != paths:
            paths = snapshot.desired.node_paths
            core.events.watch_nodes(paths)
            core.wakes.wake(None)
        given = snapshot.allocations.nodes is not before.allocations.nodes
        if (given or snapshot.loans is not before.loans) and not snapshot.given_nodes_seen:
            core.wakes.wake(snapshot.given_nodes[0])
        before = snapshot


async def _follow_settings(core: Core) -> None:
    """After other settings: who waits, does so by the old ones."""
    seen = core.settings.version
    while True:
        seen, _ = await core.settings.newer(seen)
        core.wakes.wake(None)
        core.usage.request_soon()
