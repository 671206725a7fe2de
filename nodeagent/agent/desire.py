# SPDX-License-Identifier: Apache-2.0
"""What is desired of this node, kept fresh: the newest configuration, merged by ``policy``, is published.

The KubeVirt CR and the labels of the Node object will be further arguments of the same merge. Whatever says
the same as before wakes nobody. Reads no file: that is ``config_loop``.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.latest import Latest
from nodeagent.config import Settings
from nodeagent.policy import merge


class Desire:
    """The one writer of ``Snapshot.desired``."""

    name = "desired state"

    def __init__(self, settings: Latest[Settings], snapshots: Snapshots) -> None:
        self._settings = settings
        self._snapshots = snapshots

    async def run(self) -> None:
        """Merge and publish now, and whenever the settings have changed, for ever."""
        await self._settings.follow(self._publish)

    def _publish(self, settings: Settings) -> None:
        desired = merge.merge(settings.configuration)
        self._snapshots.publish(replace(self._snapshots.now, desired=desired))
