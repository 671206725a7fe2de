# SPDX-License-Identifier: Apache-2.0
"""Looks at the processes of the host: which of them have devices open.

A look at all files takes its time, and may not end where somebody's file system neither answers nor lets the
kernel tell what it has in memory. So those come first that have the name of a device's node, and each kind of
question waits for its own kind alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from nodeagent.base import threads
from nodeagent.base.timeouts import Timeouts
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, HostDevice, VfioDevice

NOT_SEEN = in_use.Seen({}, whole=False, closed=frozenset())


class _Memory(NamedTuple):
    """Who had a device when it was looked at last."""

    inode: int | None  # another one means another device under the same id
    openers: tuple[str, ...]


class Looks:
    """One of a kind after the other; remembers who was seen."""

    def __init__(self, root: Root, timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._root = root
        self._near = threads.OneByOne()
        self._still = threads.OneByOne()
        self._at_all = threads.OneByOne()
        self._lasting = threads.OneByOne()
        self._remembered: dict[str, _Memory] = {}  # by id
        self._named: dict[
            str, tuple[int, tuple[str, ...]]
        ] = {}  # by id: the last look by name that saw somebody
        self._looks_by_name = 0

    async def at_all(
        self, members: Collection[HostDevice], by_group: frozenset[str], quickly: frozenset[str] = frozenset()
    ) -> in_use.Seen:
        """Who has these open, and what is closed for sure; those ``by_group`` through the group's node.

        Of what is to be seen ``quickly`` it is only known who has it by the node's name. Who was seen before,
        and is ending, has it yet.
        """
        ids, known = frozenset(each.id for each in members), self._known(members)
        near, began = await self._by_name(ids, by_group)
        left = ids - (known if near is None else near).keys() - (quickly - known.keys())
        seen = (
            await self._at_all.call(self._timeouts.open_file_scan, in_use.look, self._root, left, by_group)
            if left
            else None
        )
        seen = seen or NOT_SEEN
        before = {each: who for each, who in known.items() if each not in seen.closed}
        unseen = before.keys() if seen is NOT_SEEN else before.keys() - left
        last = before if near is None else await self._have_yet(before, unseen, by_group)
        found = _joined(last, seen.openers, near or {}, self._since(members, known, began))
        self._remember(members, found)
        return seen._replace(openers=found)

    async def by_names(self, members: Collection[HostDevice], by_group: frozenset[str]) -> None:
        """Remember who has these open by the names of their nodes, and who had them and may yet. Quick."""
        ids, known = frozenset(each.id for each in members), self._known(members)
        near, began = await self._by_name(ids, by_group)
        still = (
            await self._still.call(self._timeouts.open_file_scan, in_use.still, self._root, known)
            if known
            else {}
        )
        had = known if still is None else still
        self._remember(members, _joined(had, near or {}, self._since(members, known, began)))

    async def by_whom(self, member: HostDevice, *, by_group: bool) -> str:
        """A process that has it open, or had it last; empty if that is not known."""
        ids = frozenset({member.id})
        near = await self._near.call(
            self._timeouts.opener_name, in_use.near, self._root, ids, ids if by_group else frozenset()
        )
        found = near or self._known([member])
        return next(reversed(found.get(member.id, ())), "")

    def remembered(self, host: Host) -> Sequence[HostDevice]:
        """The devices of the host that somebody had open when they were looked at last.

        What has left it is forgotten: one that comes again is another one.
        """
        found = [each for each in map(host.device, self._remembered) if each is not None]
        self._remembered = {each.id: self._remembered[each.id] for each in found}
        self._named = {each: told for each, told in self._named.items() if host.device(each) is not None}
        return found

    async def _have_yet(
        self, openers: in_use.Openers, unseen: Collection[str], by_group: frozenset[str]
    ) -> in_use.Openers:
        """Who of them has them yet: who is ending, and of what was ``unseen`` by the look also who is not.

        All of whom that is not found out, but where a count tells that the device is closed. Who is ending is
        asked last.
        """
        asked = {each: openers[each] for each in unseen}
        still = (
            await self._still.call(self._timeouts.opener_name, in_use.still, self._root, asked)
            if asked
            else {}
        )
        if still is None:
            still = {each: who for each, who in asked.items() if each not in by_group}
        seen = (
            await self._lasting.call(self._timeouts.open_file_scan, in_use.lasting, self._root, openers)
            if openers
            else {}
        )
        return openers if seen is None else _joined(seen, still)

    async def _by_name(
        self, ids: frozenset[str], by_group: frozenset[str]
    ) -> tuple[in_use.Openers | None, int]:
        """Who has these open by the names of their nodes, if that is found out; which look that was."""
        near = await self._near.call(self._timeouts.open_file_scan, in_use.near, self._root, ids, by_group)
        self._looks_by_name += 1
        self._named |= {each: (self._looks_by_name, who) for each, who in (near or {}).items()}
        return near, self._looks_by_name

    def _known(self, members: Collection[HostDevice]) -> dict[str, tuple[str, ...]]:
        """Who had them last. To remove a device waits until it is closed: of another one nobody is known."""
        memories = ((each, self._remembered.get(each.id)) for each in members)
        return {each.id: known.openers for each, known in memories if known and known.inode == _inode(each)}

    def _since(
        self, members: Collection[HostDevice], known: in_use.Openers, began: int
    ) -> dict[str, tuple[str, ...]]:
        """Whom another look has seen since these were ``known``, and a later one by name.

        Another look at all that has seen them may be the older one: it takes its time.
        """
        others: dict[str, tuple[str, ...]] = {}
        for each, who in self._known(members).items():
            number, named = self._named.get(each, (0, ()))
            later = named if number > began else ()
            others[each] = tuple(one for one in who if one not in known.get(each, ()) or one in later)
        return {each: who for each, who in others.items() if who}

    def _remember(self, members: Collection[HostDevice], openers: in_use.Openers) -> None:
        for each in members:
            self._remembered.pop(each.id, None)
            if each.id in openers:
                self._remembered[each.id] = _Memory(_inode(each), openers[each.id])


def _inode(member: HostDevice) -> int | None:
    return member.inode if isinstance(member, VfioDevice) else None


def _joined(*tables: in_use.Openers) -> dict[str, tuple[str, ...]]:
    """All who are in one of the tables, each once; of the last table last."""
    joined: dict[str, tuple[str, ...]] = {}
    for table in tables:
        for each, who in table.items():
            joined[each] = (*(one for one in joined.get(each, ()) if one not in who), *who)
    return joined
