# SPDX-License-Identifier: Apache-2.0
"""Looks at the processes of the host: which of them have devices open.

A look at all files takes its time, and may not end where somebody's file system neither answers nor lets the
kernel tell what it has in memory. So those come first that have the name of a device's node.
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
        self._openers: dict[str, tuple[str, ...]] = {}  # when they were seen last

    async def at_all(
        self, ids: frozenset[str], by_group: frozenset[str], quickly: frozenset[str] = frozenset()
    ) -> in_use.Seen:
        """Who has these open, and what is closed for sure; those ``by_group`` through the group's node.

        Of what is to be seen ``quickly`` it is only known who has it by the node's name.
        """
        near = await self.near(LOOK, ids, by_group)
        left = ids - near.keys() - quickly
        seen = await self._at_all.call(LOOK, in_use.look, self._root, left, by_group) if left else None
        seen = seen or NOT_SEEN
        others = {each: known for each, known in self._openers.items() if each not in ids}
        self._openers = {**others, **{each: (process,) for each, process in seen.openers.items()}, **near}
        return seen._replace(openers={**seen.openers, **{each: near[each][-1] for each in near}})

    def saw(self, device_id: str, process: str) -> None:
        """This one has it open, as was seen elsewhere; nothing if that is empty."""
        known = self._openers.get(device_id, ())
        if process and process not in known:
            self._openers[device_id] = (process, *known)

    async def near(
        self, seconds: float, ids: frozenset[str], by_group: frozenset[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """All who have these open, as a container has them; if that takes too long, who had them last."""
        known = {each: processes for each, processes in self._openers.items() if each in ids}
        seen = await self._near.call(seconds, in_use.near, self._root, ids, by_group, known)
        return known if seen is None else seen

    async def by_whom(self, device_id: str, *, by_group: bool) -> str:
        """A process that has it open, or had it last; empty if that is not known."""
        known, asked = self._openers.get(device_id, ()), frozenset({device_id})
        found = await self.near(NAME, asked, asked if by_group else frozenset())
        return next(reversed(found.get(device_id, known)), "")
