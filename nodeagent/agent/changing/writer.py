# SPDX-License-Identifier: Apache-2.0
"""Makes one write to the host in a thread, and answers there what is asked between two parts of it.

A change of a group's drivers takes as long as these take to let go, and no event tells what other plugins
give meanwhile: so the kubelet is asked. Knows no plan and no deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import CancelledError
from functools import partial

import anyio
from anyio.from_thread import BlockingPortal

from nodeagent.agent.releases import Releases
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base.errors import KernelRefused
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel.apply import actions
from nodeagent.kernel.root import Root
from nodeagent.model.action import Action, Move
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import containers
from nodeagent.policy.change import guards


class Writer:
    """Writes to one host, and the component that answers its threads."""

    name = "writes"

    def __init__(self, root: Root, snapshots: Snapshots, releases: Releases, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._root = root
        self._snapshots = snapshots
        self._releases = releases
        self._portal: BlockingPortal | None = None

    async def run(self) -> None:
        """Answer, for ever."""
        async with BlockingPortal() as self._portal:
            await anyio.sleep_forever()

    def write(self, action: Action) -> None:
        """Make the change. Blocks, and belongs in a thread.

        :raises KernelRefused: as ``actions.apply``.
        """
        actions.apply(self._root, action, partial(self._given, self._snapshots.now), self._timeouts)

    def _given(self, before: Snapshot, moves: Sequence[Move]) -> str | None:
        """Who has got one of these by now.

        :raises KernelRefused: if nobody answers any more: the daemon ends, or its other part has failed.
        """
        error = KernelRefused(guards.UNKNOWN, "it is tried again as soon as somebody of this daemon answers")
        if self._portal is None:
            raise error
        try:
            return self._portal.call(self._asked, before, moves)
        except (RuntimeError, CancelledError) as failed:
            raise error from failed

    async def _asked(self, before: Snapshot, moves: Sequence[Move]) -> str | None:
        await self._releases.asked()
        with anyio.move_on_after(self._timeouts.checkpoint_read_before_write):
            while any(map(guards.from_host, moves)) and containers.unknown(self._snapshots.now):
                await self._snapshots.newer(self._snapshots.version)
        return guards.given_since(moves, before, self._snapshots.now)
