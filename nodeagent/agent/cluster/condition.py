# SPDX-License-Identifier: Apache-2.0
"""Writes the condition DevicesUsable of the Node: False while ``nodeagent status`` shows a problem.

The condition is compared with the watched Node, so a starting daemon writes nothing if it is the same. The
condition has no heartbeat, because controllers read only status and lastTransitionTime, and each patch writes
the whole Node to etcd. To avoid patches, a difference is written only after it has lasted for a moment, or
for longer if only the text differs.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import anyio

from nodeagent.agent.cluster.state import CONDITION
from nodeagent.agent.cluster.writer import Api, WritePermission
from nodeagent.agent.core import Core
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import events, node_status
from nodeagent.cluster.api import retry_delay
from nodeagent.cluster.node_status import Condition
from nodeagent.model.status import ClusterStatus, Status
from nodeagent.policy import diagnose

NO_PROBLEMS = Condition("True", "NoProblems", "all devices can be allocated, or are in use")
_ACTION_REQUIRED = "ActionRequired"
_ADVICE = "nodeagent status on the node says what to do"


def condition(status: Status) -> Condition:
    """The condition of the Node for this Status. Pure.

    An unreachable API server is left out: it is no problem of this node, and the condition could not be
    written meanwhile.
    """
    problems = [each.message for each in status.found if each.key != diagnose.API_SERVER]
    if not problems:
        return NO_PROBLEMS
    message = events.on_one_line(f"{_ADVICE}: {'; '.join(problems)}")
    return Condition("False", _ACTION_REQUIRED, message)


class _Difference(NamedTuple):
    """A difference between the desired and the present condition, and when the condition is to be written.

    ``of_status``: the status (True or False) differs, not only the text.
    """

    of_status: bool
    due: float


class ConditionWriter:
    """The task that writes the condition, or removes it if the setting ``cluster.condition`` is off."""

    name = "condition of the Node"

    def __init__(
        self,
        core: Core,
        status: Callable[[], Status],
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._core = core
        self._status = status
        self._clock = clock
        self._jitter = jitter
        self._permission = WritePermission(f"the condition {CONDITION}", core.timeouts.missing_right_retry)
        self._difference: _Difference | None = None

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """Add a missing permission to the status."""
        return self._permission.add_status(status)

    async def run(self, api: Api) -> None:
        """Compare the condition with the Node and write it, for ever."""
        await api.wait_for_node()
        failures, timeouts = 0, self._core.timeouts
        while True:
            seen = self._core.snapshots.version
            try:
                pause = await self._update(api)
                failures = 0
            except ClusterUnavailable as error:
                await anyio.sleep(retry_delay(error, failures, self._jitter(), timeouts))
                failures += 1
                continue
            with anyio.move_on_after(pause):
                await self._core.snapshots.newer(seen)
            await anyio.sleep(timeouts.condition_gather)

    async def _update(self, api: Api) -> float:
        """Write the condition if it has differed for long enough; return the seconds until the next check."""
        timeouts = self._core.timeouts
        poll = timeouts.cluster_status_poll
        if api.document is None or self._permission.missing:
            return poll
        present = node_status.read_condition(api.document, CONDITION)
        enabled = self._core.settings.get().cluster.condition
        wanted = condition(self._status()) if enabled else None
        if wanted == present or (wanted is not None and wanted.equals(present)):
            self._difference = None
            return poll
        of_status = present is None or wanted is None or present.status != wanted.status
        now = anyio.current_time()
        if self._difference is None or self._difference.of_status != of_status:
            wait = timeouts.condition_settle if of_status else timeouts.condition_text_settle
            due = now + wait + timeouts.condition_spread * self._jitter()
            self._difference = _Difference(of_status, due)
        if now < self._difference.due:
            return min(self._difference.due - now, poll)
        await self._permission.write(self._write(api, present, wanted))
        self._difference = None  # the watched Node shows it soon
        return poll

    async def _write(self, api: Api, present: Condition | None, wanted: Condition | None) -> None:
        if wanted is None:
            await node_status.remove_condition(api.session, api.node, CONDITION)
            return
        since = present.since if present is not None and present.status == wanted.status else ""
        wanted = wanted._replace(since=since)
        await node_status.write_condition(api.session, api.node, CONDITION, wanted, self._clock())
