# SPDX-License-Identifier: Apache-2.0
"""Tells the API server what is in the outbox, one letter after the other, and never in a hurry.

A server that fails is left alone, longer each time; what is fresh is told when it is back. What it will never
take is dropped: an Event is not worth more than that.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio

from nodeagent.agent.cluster.guests import Api, Right, forbidden
from nodeagent.agent.cluster.outbox import Letter, Outbox
from nodeagent.agent.cluster.reasons import Notice
from nodeagent.base.errors import ClusterUnavailable
from nodeagent.base.latest import Latest
from nodeagent.base.timeouts import Timeouts
from nodeagent.cluster import events, pauses, refusals
from nodeagent.cluster.events import Event, Involved, Seen

_KEPT = 256  # Events of which the number is remembered
_AGAIN = (0, refusals.UNAUTHORIZED, 408, refusals.CONFLICT, refusals.TOO_MANY)  # and all from 500 on

UidOf = Callable[[str], Awaitable[str]]
"""``namespace/name`` of a pod that has a device → its uid, or ""."""


class Sender:
    """Empties an outbox. ``rights`` are two: to write about the Node, and about pods in their namespaces."""

    def __init__(
        self,
        outbox: Outbox,
        uid_of: UidOf,
        timeouts: Timeouts,
        clock: Callable[[], float] = time.time,
    ) -> None:
        pause = timeouts.missing_right_retry
        self.rights = (Right("Events about this node", pause), Right("Events about pods", pause))
        self._timeouts = timeouts
        self.more: Latest[None] = Latest(None)  # touched when the outbox has more
        self._outbox = outbox
        self._uid_of = uid_of
        self._clock = clock
        self._counts: OrderedDict[Event, int] = OrderedDict()

    async def run(self, api: Api) -> None:
        """Tell, for ever."""
        await api.met()
        failures = 0
        while True:
            seen = self.more.version
            letter = self._outbox.due(anyio.current_time())
            if letter is None:
                with anyio.move_on_after(self._outbox.next - anyio.current_time()):
                    await self.more.newer(seen)
                continue
            try:
                await self._tell(api, letter)
                failures = 0
            except ClusterUnavailable as error:
                self._outbox.postpone(letter)
                await anyio.sleep(pauses.after(error, failures, random.random(), self._timeouts))
                failures += 1

    async def _tell(self, api: Api, letter: Letter) -> None:
        """Tell it, or drop it. :raises ClusterUnavailable: if it may be tried again."""
        right, involved = self._right(letter.notice), await self._involved(api, letter.notice)
        if right.missing or involved is None:
            self._outbox.drop(letter)
            return
        try:
            await self._write(api, letter, involved)
        except ClusterUnavailable as error:
            if forbidden(error):
                right.refused(error)
            elif error.status in _AGAIN or error.status >= 500:
                raise
            self._outbox.drop(letter)
        else:
            right.given()
            self._outbox.sent(letter)

    def _right(self, notice: Notice) -> Right:
        return self.rights[bool(notice.pod)]

    async def _involved(self, api: Api, notice: Notice) -> Involved | None:
        """What it is about; None if there is no such Node."""
        if notice.pod:
            namespace, _, name = notice.pod.partition("/")
            return Involved(name, await self._uid_of(notice.pod), namespace)
        if api.document is None:
            return None
        return Involved(api.node, str(api.document["metadata"].get("uid", "")))

    async def _write(self, api: Api, letter: Letter, involved: Involved) -> None:
        notice, since = letter.notice, self._clock() - anyio.current_time()
        event = Event(involved, notice.reason.name, events.line(notice.message), notice.reason.warning)
        seen = Seen(letter.often, since + letter.first, since + letter.last)
        count = await events.write(api.session, api.node, event, seen, self._counts.pop(event, 0))
        self._counts[event] = count
        if len(self._counts) > _KEPT:
            self._counts.popitem(last=False)
