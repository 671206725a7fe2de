# SPDX-License-Identifier: Apache-2.0
"""Events: looks at the Status whenever it may be another one, and has told to the cluster what is new.

Nobody waits for it. Each look takes what came within a moment, so that a card that falls off with all its
functions is one Event and not twenty.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import anyio

from nodeagent.agent.cluster import pods
from nodeagent.agent.cluster.guests import Api
from nodeagent.agent.cluster.notices import Notices
from nodeagent.agent.cluster.outbox import Outbox
from nodeagent.agent.cluster.sending import Sender
from nodeagent.agent.core import Core
from nodeagent.base import log
from nodeagent.model.status import ClusterStatus


class Events:
    """A guest of the cluster side, as long as ``cluster.events`` says so."""

    name = "Events"

    def __init__(self, core: Core, jitter: Callable[[], float] = random.random) -> None:
        self._core = core
        self._jitter = jitter
        self._outbox = Outbox(core.timeouts)
        self._sender = Sender(self._outbox, self._uid, core.timeouts)
        self._full = False  # more happens than is told

    def told(self, status: ClusterStatus) -> ClusterStatus:
        """With the rights that are missing, and what was left out."""
        lines = tuple(right.line for right in self._sender.rights if right.line)
        return status._replace(unwritten=(*status.unwritten, *lines), events_left_out=self._outbox.left_out)

    async def run(self, api: Api) -> None:
        """Tell while the settings want it, for ever."""
        settings, seen = self._core.settings, -1
        while True:
            wanted = settings.get().cluster.events
            async with anyio.create_task_group() as group:
                if wanted:
                    group.start_soon(self._sender.run, api, name="sending of Events")
                    group.start_soon(self._look, name="looking for Events")
                while settings.get().cluster.events == wanted:
                    seen, _ = await settings.newer(seen)
                group.cancel_scope.cancel()

    async def _look(self) -> None:
        timeouts = self._core.timeouts
        settled = timeouts.event_settle + timeouts.event_spread * self._jitter()
        news, notices, seen = self._core.news, Notices(settled), -1
        while True:
            now = anyio.current_time()
            for notice in notices.of(news.asked(), now):
                delay = timeouts.event_spread * self._jitter() * notice.reason.everywhere
                self._take(self._outbox.add(notice, now, delay))
            with anyio.move_on_after(min(timeouts.cluster_status_poll, notices.due - now)):
                seen, _ = await news.bell.newer(seen)
            await anyio.sleep(timeouts.event_gather)

    def _take(self, taken: bool) -> None:
        """Say when more begins to happen than is told, and when that is over."""
        if taken:
            self._sender.more.touch()
        if taken == self._full:
            self._full = not taken
            if self._full:
                log.event(log.EVENTS_LEFT_OUT)

    async def _uid(self, pod: str) -> str:
        return await pods.uid(self._core, pod)
