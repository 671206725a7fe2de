# SPDX-License-Identifier: Apache-2.0
"""The uid of a pod that has a device: PodResources names pods without it, the kubelet's checkpoint has it.

``kubectl describe pod`` shows only Events that name the uid. No right to read pods is needed for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeagent.agent.core import Core
from nodeagent.base import threads
from nodeagent.kubelet.checkpoint import CheckpointFile, Entry
from nodeagent.kubelet.socket_dir import CHECKPOINT
from nodeagent.model.allocation import Possession


async def uid(core: Core, pod: str) -> str:
    """Of ``namespace/name``; "" if it cannot be known."""
    held = core.snapshots.now.allocations.held()
    has = {(holder.resource, each) for each, holder in held if str(holder) == pod}
    directory = Path(core.root.path(core.settings.get().kubelet.device_plugin_dir))
    checkpoint = CheckpointFile(str(directory / CHECKPOINT))
    return only((await threads.call(checkpoint.read)).entries, has)


def only(entries: Iterable[Entry], has: set[Possession]) -> str:
    """The one uid under which all of this is written down; "" if there are several, or none."""
    found = {entry.uid for entry in entries if (entry.resource, entry.device_id) in has}
    return found.pop() if len(found) == 1 else ""
