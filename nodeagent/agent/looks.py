# SPDX-License-Identifier: Apache-2.0
"""Looks at the processes of the host: which of them have devices open.

One open file of a dead file system, in any process, keeps a look at all of them from ending. Whoever was seen
with a device before is asked alone then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root

LOOK = 2.0  # seconds for a look at all processes
NAME = 0.5  # seconds for a look at single ones; and to find out who it is, for a refusal that is due
NOT_SEEN = in_use.Seen({}, whole=False, closed=frozenset())


class Looks:
    """One after the other; remembers who was seen."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._at_all = threads.OneByOne()
        self._at_single = threads.OneByOne()  # also while a look at all does not end
        self._openers: Mapping[str, str] = {}  # when they were seen last

    async def at_all(self, ids: frozenset[str], by_group: frozenset[str]) -> in_use.Seen:
        """Who has these open, and what is closed for sure; those ``by_group`` through the group's node."""
        seen = await self._at_all.call(LOOK, in_use.look, self._root, ids, by_group)
        if seen is None:
            known = {each: process for each, process in self._openers.items() if each in ids}
            still = await self.still(known, by_group)
            seen = NOT_SEEN._replace(openers={each: known[each] for each in still})
        others = {each: process for each, process in self._openers.items() if each not in ids}
        self._openers = {**others, **seen.openers}
        return seen

    async def still(self, openers: Mapping[str, str], by_group: Collection[str]) -> frozenset[str]:
        """Those that these processes have open yet; all, if they cannot be looked at."""
        if not openers:
            return frozenset()
        still = await self._at_single.call(NAME, in_use.still, self._root, openers, by_group)
        return frozenset(openers) if still is None else still

    async def by_whom(self, device_id: str) -> str:
        """The process that has it open; empty if that is not known."""
        seen = await self._at_all.call(NAME, in_use.openers, self._root, [device_id]) or self._openers
        return seen.get(device_id, "")
