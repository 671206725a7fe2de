# SPDX-License-Identifier: Apache-2.0
"""Features: components whose code is loaded when what is desired of the node, or a hand, first asks for it.

A node that asks for nothing of the kind starts sooner, stays smaller, and has no code in memory that writes
to sysfs. A feature is a module with ``components(core)``, which returns them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import anyio

from nodeagent.agent.core import Core
from nodeagent.agent.tell.status import report
from nodeagent.base import process, threads
from nodeagent.base.supervise import Component
from nodeagent.cluster import account
from nodeagent.model.ledger import DRIVERS_RECORD
from nodeagent.model.status import Status
from nodeagent.model.usb import LOANS_RECORD, NODES


class Feature(NamedTuple):
    """What a feature is called, when it is wanted, and where its code is.

    ``left``: a file that is there while an earlier daemon has left something to do, or "".
    """

    name: str
    wanted: Callable[[Core], bool]
    module: str
    left: str = ""


FEATURES = (
    Feature(
        "changes",
        lambda core: core.snapshots.now.desired.changes_host or core.requests.wanted,
        "nodeagent.agent.changing.loop",
        left=DRIVERS_RECORD,
    ),
    Feature(
        "USB",
        lambda core: NODES in core.snapshots.now.desired.node_paths,
        "nodeagent.agent.usb",
        left=LOANS_RECORD,
    ),
    Feature(
        "CDI specifications",
        lambda core: bool(core.snapshots.now.desired.cdi_kinds),
        "nodeagent.agent.cdi_specs",
    ),
    Feature(
        "cluster",
        lambda core: account.reaches(core.snapshots.now.desired.following),
        "nodeagent.agent.cluster.follow",
    ),
)


class LateFeature:
    """The component that waits until its feature is wanted, and then runs the components of that."""

    def __init__(self, core: Core, feature: Feature) -> None:
        self.name = feature.name
        self.components: Sequence[Component] = ()
        self._core = core
        self._feature = feature

    def report(self, status: Status) -> Status:
        """The reports of its components, once they are loaded."""
        return report(self.components, status)

    async def run(self) -> None:
        """Wait, load, run; for ever: a feature that is wanted no more has nothing to do."""
        seen = -1
        left = self._feature.left and self._core.root.exists(self._feature.left)
        while not left and not self._feature.wanted(self._core):
            seen, _ = await self._core.snapshots.newer(seen)
        if not self.components:
            module = await threads.call(importlib.import_module, self._feature.module)
            process.release_memory()  # loading leaves much behind that is not needed again
            self.components = module.components(self._core)
        async with anyio.create_task_group() as group:
            for component in self.components:
                group.start_soon(self._core.supervisor.run, component, name=component.name)
