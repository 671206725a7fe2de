# SPDX-License-Identifier: Apache-2.0
"""Looks at the processes of the host: which of them have devices open.

One open file of a dead file system, in any process, keeps a look at all files from ending. So those come
first that have the name of a device's node: a name costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root

LOOK = 2.0  # seconds for a look at all processes
NAME = 0.5  # seconds to find out who it is, for a refusal that is due
NOT_SEEN = in_use.Seen({}, whole=False, closed=frozenset())


class Looks:
    """One after the other; remembers who was seen."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._near = threads.OneByOne()
        self._at_all = threads.OneByOne()
        self._openers: Mapping[str, str] = {}  # when they were seen last

    async def at_all(self, ids: frozenset[str], by_group: frozenset[str]) -> in_use.Seen:
        """Who has these open, and what is closed for sure; those ``by_group`` through the group's node."""
        near = await self.near(LOOK, ids, by_group)
        left = ids - near.keys()
        seen = await self._at_all.call(LOOK, in_use.look, self._root, left, by_group) if left else None
        seen = seen or NOT_SEEN
        openers = {**seen.openers, **near}
        others = {each: process for each, process in self._openers.items() if each not in ids}
        self._openers = {**others, **openers}
        return seen._replace(openers=openers)

    async def near(
        self, seconds: float, ids: frozenset[str], by_group: frozenset[str] = frozenset()
    ) -> Mapping[str, str]:
        """Who has these open, as a container has them; who had them last, if that is not known in time."""
        known = {each: process for each, process in self._openers.items() if each in ids}
        seen = await self._near.call(seconds, in_use.near, self._root, ids, by_group, known)
        return known if seen is None else seen

    async def by_whom(self, device_id: str) -> str:
        """The process that has it open, or had it last; empty if that is not known."""
        known = self._openers.get(device_id, "")
        return (await self.near(NAME, frozenset({device_id}))).get(device_id, known)
