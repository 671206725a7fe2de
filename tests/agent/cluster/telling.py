# SPDX-License-Identifier: Apache-2.0
"""A session task with a fake API server, and a Status that the test decides on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from nodeagent import config
from nodeagent.agent import core as cores
from nodeagent.agent.cluster import state
from nodeagent.agent.cluster.writer import Api, ClusterWriter
from nodeagent.agent.core import Core
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster.watch import Resource
from nodeagent.config import Sources
from nodeagent.kernel.root import Root
from nodeagent.model.status import ClusterStatus, Status
from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import EVENTS, NODES, Object
from tests.agent.cluster.statuses import status
from tests.cluster.following import followed, served, session

NAME = "node1"
READY = {"type": "Ready", "status": "True"}
OWN = state.CONDITION
OWN_NODE = Resource("/api/v1/nodes", "Nodes", f"metadata.name={NAME}", state.trim_node)


DEFAULTS = config.load(Sources("/nowhere", {}, {}))

Make = Callable[[Core, Callable[[], Status]], ClusterWriter]
"""By the Core, and the Status of now."""


class Telling:
    """The server, the task, and its Core."""

    def __init__(self, server: FakeApiServer, core: Core, make: Make) -> None:
        self.server = server
        self.core = core
        self._told = status()
        self.task = make(core, lambda: self._told)

    def now(self, told: Status) -> None:
        """This is the Status now."""
        self._told = told
        self.core.snapshots.touch()

    def configure(self, **cluster: Any) -> None:
        """Other settings of the section ``cluster``."""
        settings = self.core.settings.get()
        self.core.settings.set(replace(settings, cluster=settings.cluster._replace(**cluster)))

    @property
    def status(self) -> ClusterStatus:
        """The status of the task."""
        return self.task.add_status(ClusterStatus())

    @property
    def written(self) -> list[Object]:
        """The Events on the Node."""
        return [each for each in self.server.store.all(EVENTS) if each["involvedObject"]["kind"] == "Node"]

    @property
    def requests(self) -> list[str]:
        """The methods of all that was asked but for the watch."""
        return [each.method for each in self.server.statistics.requests if each.method != "GET"]

    def condition(self) -> Any:
        """Ours, as the Node has it."""
        node = self.server.store.get(NODES, NAME) or {}
        listed = node.get("status", {}).get("conditions", ())
        return next((each for each in listed if each["type"] == OWN), None)

    async def until_written(self, number: int, within: float = 5.0) -> None:
        """Wait until there are so many Events on the Node."""
        await self.server.until(lambda: len(self.written) == number, within)


def put_node(server: FakeApiServer) -> None:
    """The Node is there, as a kubelet makes it."""
    server.store.put(NODES, {"metadata": {"name": NAME}, "status": {"conditions": [READY]}})


@asynccontextmanager
async def living(task: ClusterWriter, server: FakeApiServer, folder: Path) -> AsyncIterator[None]:
    """The task runs, with a session of its own; it has met its Node and had its first look."""
    async with (
        followed(server, folder, OWN_NODE) as watch,
        session(server, folder) as api,
        anyio.create_task_group() as group,
    ):
        group.start_soon(task.run, Api(api, NAME, watch.state))
        await anyio.sleep(1.0)
        yield
        group.cancel_scope.cancel()


@asynccontextmanager
async def telling(folder: Path, make: Make, **cluster: Any) -> AsyncIterator[Telling]:
    """A task that runs; it has met its Node and had its first look."""
    core = cores.build(Root(str(folder)), Latest(DEFAULTS), Timeouts())
    try:
        async with served() as server:
            put_node(server)
            made = Telling(server, core, make)
            made.configure(**cluster)
            async with living(made.task, server, folder):
                yield made
    finally:
        core.watcher.close()
