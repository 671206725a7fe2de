# SPDX-License-Identifier: Apache-2.0
"""The condition DevicesUsable of the Node: False while something needs a person, as in ``nodeagent status``.

It is compared with what the Node has, which is followed anyway: so a daemon that starts writes nothing if it
has nothing else to say. There is no heartbeat: those who act on conditions look at their status and at
lastTransitionTime, and each patch would write the whole Node anew. So the status must have stood for a moment
before it is written, and a text that alone is another one waits for longer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

import anyio

from nodeagent.agent.cluster.session_task import Api, WritePermission
from nodeagent.agent.cluster.state import CONDITION
from nodeagent.agent.core import Core
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.cluster import events, node_status
from nodeagent.cluster.api import retry_delay
from nodeagent.cluster.node_status import Condition
from nodeagent.model.status import ClusterStatus, Status
from nodeagent.policy import diagnose

GOOD = Condition("True", "NothingNeedsAPerson", "all devices can be given, or are in use")
_BAD = "SomethingNeedsAPerson"
_ADVICE = "nodeagent status on the node says what to do"


def condition(status: Status) -> Condition:
    """What the Node is to say. Pure."""
    lines = needing_a_person(status)
    if not lines:
        return GOOD
    return Condition("False", _BAD, events.on_one_line(f"{_ADVICE}: {'; '.join(lines)}"))


def needing_a_person(status: Status) -> tuple[str, ...]:
    """The problems, without the silence of the API server: that is no matter of the node, and whoever reads
    the condition cannot hear of it in time. Pure.
    """
    return tuple(each.what for each in status.found if each.key != diagnose.API_SERVER)


class _Stands(NamedTuple):
    """For how long a difference must stand; ``flips``: it is one of True and False, not of the text alone."""

    flips: bool
    due: float


class ConditionKeeper:
    """A task of ``follow``. Where ``cluster.condition`` is off, it removes what it has set before."""

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
        self._stands: _Stands | None = None

    def add_status(self, status: ClusterStatus) -> ClusterStatus:
        """The status with a missing permission."""
        return self._permission.add_status(status)

    async def run(self, api: Api) -> None:
        """Keep it as it is to be, for ever."""
        await api.wait_for_node()
        failures, timeouts = 0, self._core.timeouts
        while True:
            seen = self._core.snapshots.version
            try:
                pause = await self._turn(api)
                failures = 0
            except ClusterUnavailable as error:
                await anyio.sleep(retry_delay(error, failures, self._jitter(), timeouts))
                failures += 1
                continue
            with anyio.move_on_after(pause):
                await self._core.snapshots.newer(seen)
            await anyio.sleep(timeouts.condition_gather)

    async def _turn(self, api: Api) -> float:
        """Write it, if it has stood for long enough; seconds until the next look."""
        timeouts = self._core.timeouts
        poll = timeouts.cluster_status_poll
        if api.document is None or self._permission.missing:
            return poll
        has, wanted, now = self._has(api), self._wanted, anyio.current_time()
        if wanted == has or (wanted is not None and wanted.equals(has)):
            self._stands = None
            return poll
        flips = has is None or wanted is None or has.status != wanted.status
        if self._stands is None or self._stands.flips != flips:
            wait = timeouts.condition_settle if flips else timeouts.condition_text_settle
            self._stands = _Stands(flips, now + wait + timeouts.condition_spread * self._jitter())
        if now >= self._stands.due:
            await self._permission.write(self._write(api, has, wanted))
            self._stands = None  # and with the next look the Node says so
            return poll
        return min(self._stands.due - now, poll)

    async def _write(self, api: Api, has: Condition | None, wanted: Condition | None) -> None:
        if wanted is None:
            await node_status.remove_condition(api.session, api.node, CONDITION)
            return
        since = has.since if has is not None and has.status == wanted.status else ""
        wanted = wanted._replace(since=since)
        await node_status.write_condition(api.session, api.node, CONDITION, wanted, self._clock())

    @property
    def _wanted(self) -> Condition | None:
        return condition(self._status()) if self._core.settings.get().cluster.condition else None

    def _has(self, api: Api) -> Condition | None:
        document = api.document
        return None if document is None else node_status.read_condition(document, CONDITION)
