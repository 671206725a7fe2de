# SPDX-License-Identifier: Apache-2.0
"""The common code of the tasks that write to the API server: Events, condition, stale resources.

``follow`` runs these tasks during each session with the API server. The tasks share the client and the
watched Node; each task remembers which of its writes are not permitted.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

import anyio

from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.cluster.api import FORBIDDEN, Object, Session
from nodeagent.cluster.watch import WatchState
from nodeagent.model.status import ClusterStatus


class Api(NamedTuple):
    """The session, the name of this node, and the watched Node."""

    session: Session
    node: str
    own: Latest[WatchState]

    @property
    def document(self) -> Object | None:
        """The kept parts of this node's Node; None if the Node is unknown or does not exist."""
        return (self.own.get().objects or {}).get(self.node)

    async def wait_for_node(self) -> None:
        """Wait for the first answer about the Node, so that the first requests of many nodes stay spread."""
        seen = -1
        while self.own.get().objects is None:
            seen, _ = await self.own.newer(seen)


class ClusterWriter(Protocol):
    """A task that writes to the cluster; it starts again with each session."""

    @property
    def name(self) -> str:
        """The task's name in the log and the status."""

    async def run(self, api: Api) -> None:
        """Run until cancelled. An error ends only this task, which is started again later."""

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """Return the cluster status, with the part of this task added."""
        ...


class WritePermission:
    """Whether a kind of object may be written to the API server, according to its last refusal.

    ``objects``: a plural text such as "Events about this node". ``pause``: seconds without a try after a
    refusal. ``line``: the text for the status, or "".
    """

    def __init__(self, objects: str, pause: float) -> None:
        self.line = ""
        self._objects = objects
        self._pause = pause
        self._until = 0.0

    @property
    def missing(self) -> bool:
        """True while the API server would probably refuse the write again."""
        return anyio.current_time() < self._until

    async def write(self, request: Awaitable[object]) -> bool:
        """Send the request; False if it is not permitted. :raises ClusterUnavailable: on other failures."""
        try:
            await request
        except ClusterUnavailable as error:
            # no object can be created in a namespace that is being terminated
            if error.status != FORBIDDEN:
                raise
            if "being terminated" in error.what:
                return False
            if not self.line:
                log.event(log.CLUSTER_WRITE_REFUSED, object=self._objects, error=error.what, hint=error.hint)
            self.line = f"{self._objects} cannot be written: {error.what}; {error.hint}"
            self._until = anyio.current_time() + self._pause
            return False
        if self.line:
            log.event(log.CLUSTER_WRITE_RECOVERED, object=self._objects)
        self.line, self._until = "", 0.0
        return True

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """Add the missing permission to the status, if any."""
        return status._replace(write_errors=(*status.write_errors, self.line)) if self.line else status
