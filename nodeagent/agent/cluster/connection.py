# SPDX-License-Identifier: Apache-2.0
"""How this node reaches the API server, according to the settings.

``follow`` and the publisher of ResourceSlices use ``follow_connection``, which starts their work again when
the settings name other credentials or another node.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import anyio

from nodeagent.base.latest import Latest
from nodeagent.cluster.credentials import Credentials, has_service_account, is_followed
from nodeagent.config import Settings
from nodeagent.kernel.root import Root
from nodeagent.model.spec import ClusterMode


class Connection(NamedTuple):
    """How to reach the API server, if at all, and the name of this node."""

    following: ClusterMode
    kubeconfig: str
    node: str

    @classmethod
    def of(cls, settings: Settings, root: Root) -> Connection:
        """Return the connection that these settings configure."""
        configuration = settings.configuration
        kubeconfig = configuration.kubeconfig and root.path(configuration.kubeconfig)
        return cls(configuration.following, kubeconfig, configuration.node.name)

    @property
    def credentials(self) -> Credentials | None:
        """The credentials; None if the KubeVirt CR is not followed."""
        return Credentials(self.kubeconfig) if is_followed(self.following) else None

    @property
    def credentials_for_dra(self) -> Credentials | None:
        """The credentials, also if the KubeVirt CR is not followed; None if there are none."""
        return Credentials(self.kubeconfig) if self.kubeconfig or has_service_account() else None


async def follow_connection(
    settings: Latest[Settings], root: Root, use: Callable[[Connection], Coroutine[Any, Any, None]]
) -> None:
    """Call ``use`` for ever with the connection of the settings; cancel it when that changes."""
    seen = -1
    while True:
        connection = Connection.of(settings.get(), root)
        async with anyio.create_task_group() as group:
            group.start_soon(use, connection, name="API server")
            while Connection.of(settings.get(), root) == connection:
                seen, _ = await settings.newer(seen)
            group.cancel_scope.cancel()
