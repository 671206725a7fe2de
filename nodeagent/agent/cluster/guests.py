# SPDX-License-Identifier: Apache-2.0
"""Guests of the cluster side: components that ask or tell the API server something while there is a session.

They share its client and what is known of this node's Node; the cluster side knows nothing of their business.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import anyio

from nodeagent.base import log
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.cluster import refusals
from nodeagent.cluster.contact import Known
from nodeagent.cluster.session import Object, Session
from nodeagent.model.status import ClusterStatus


class Api(NamedTuple):
    """What guests get: the session, the name of the node, and what is known of its Node."""

    session: Session
    node: str
    own: Latest[Known]

    @property
    def document(self) -> Object | None:
        """This node's Node, as far as it is kept; None if it is not known, or not there."""
        return (self.own.get().objects or {}).get(self.node)

    async def met(self) -> None:
        """Wait for the first answer on the Node: so the first questions of many nodes stay spread."""
        seen = -1
        while self.own.get().objects is None:
            seen, _ = await self.own.newer(seen)


class Guest(Protocol):
    """What the cluster side runs, anew with each session."""

    @property
    def name(self) -> str:
        """What people call it."""

    async def run(self, api: Api) -> None:
        """Live, until cancelled. What it raises ends this guest alone, for a while."""

    def told(self, status: ClusterStatus) -> ClusterStatus:
        """The status with what it has to say itself."""
        ...


class Right:
    """Whether something may be written to the cluster. It is said when it turns out that it may not.

    ``what`` is the plural that people read: "Events about this node". ``line`` is for the status, or "".
    ``pause``: seconds for which nothing is tried without the right.
    """

    def __init__(self, what: str, pause: float) -> None:
        self.line = ""
        self._what = what
        self._pause = pause
        self._until = 0.0

    @property
    def missing(self) -> bool:
        """True as long as it is of no use to try."""
        return anyio.current_time() < self._until

    def refused(self, error: ClusterUnavailable) -> None:
        """The server says that we may not."""
        self._until = anyio.current_time() + self._pause
        line = f"{self._what} cannot be written: {error.what}; {error.hint}"
        if not self.line:
            log.event(log.CLUSTER_REFUSES, what=self._what, error=error.what, hint=error.hint)
        self.line = line

    def given(self) -> None:
        """It was written."""
        if self.line:
            log.event(log.CLUSTER_ACCEPTS, what=self._what)
        self.line, self._until = "", 0.0


def forbidden(error: ClusterUnavailable) -> bool:
    """True if a right is missing. A namespace that ends refuses everybody, which is no matter of rights."""
    return error.status == refusals.FORBIDDEN and "being terminated" not in error.what
