# SPDX-License-Identifier: Apache-2.0
"""Looks in /proc for who has those functions open whose count of opens is above zero.

The count alone proves nothing: i915 and radeon leave it above zero when they let go of a card, for they never
call pci_disable_device. One look is good for as long as the count stays what it is. But who was seen has the
node of the group open, perhaps for another function of it: where the count may be one that was left, that
process is looked at whenever the function is read, and all of them when it has let go. A look has a deadline:
what is not found out in time is not known, but who was seen is asked for himself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import anyio

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction, Sight
from nodeagent.model.ids import PciAddress


class Sights:
    """Looks for what a scan has found. A look that does not end is left behind, and is the last one."""

    def __init__(self, root: Root, limit: float) -> None:
        """``limit``: seconds for one look at all processes."""
        self._limit = limit
        self._root = root
        self._still = threads.OneByOne()
        self._left: threads.Call[in_use.Seen] | None = None

    async def added(self, host: Host, read: Collection[str]) -> Host:
        """The Host with what is seen of the functions that nobody has looked for; the same without any.

        ``read`` has the addresses of those that were read just now.
        """
        wanted = [each for each in host.functions.values() if _unseen(each)]
        wanted += [each for each in host.functions.values() if each.address in read and _doubtful(each)]
        sights = await self._looked(wanted) if wanted else {}
        changed = {
            function.address: function._replace(sight=sight)
            for function in wanted
            if (sight := sights[function.address]) != function.sight
        }
        if not changed:
            return host
        return replace(host, functions={**host.functions, **changed}, changes=None)

    async def _looked(self, wanted: Sequence[PciFunction]) -> Mapping[PciAddress, Sight]:
        """What is seen now of each, but of those that whoever was seen has yet."""
        same = await self._same(wanted)
        searched = [each.address for each in wanted if each.address not in same]
        found = await self._found(searched) if searched else None
        openers, whole = ({}, False) if found is None else (found.openers, found.whole)
        return {**{each: _sight(openers.get(each, ()), whole=whole) for each in searched}, **same}

    async def _same(self, wanted: Sequence[PciFunction]) -> dict[PciAddress, Sight]:
        """What was seen that is so yet, or of which that is not found out in time."""
        seen = {each.address: each.sight for each in wanted if each.sight is not None and each.sight.process}
        openers: in_use.Openers = {each: (*one.others, one.process or "") for each, one in seen.items()}
        still = await self._still.call(self._limit, in_use.still, self._root, openers) if openers else {}
        if still is None:
            return seen
        return {each: _sight(still[each], whole=sight.whole) for each, sight in seen.items() if each in still}

    async def _found(self, searched: Sequence[PciAddress]) -> in_use.Seen | None:
        if self._left is not None and not self._left.ended:
            return None
        self._left = threads.start(in_use.look, self._root, searched)
        with anyio.move_on_after(self._limit):
            return await self._left.result()
        return None


def _sight(who: tuple[str, ...], *, whole: bool) -> Sight:
    """That these have it open. One is named."""
    return Sight(who[-1], whole, who[:-1]) if who else Sight(None, whole)


def _unseen(function: PciFunction) -> bool:
    return function.vfio and function.driver is not None and bool(function.enable) and function.sight is None


def _doubtful(function: PciFunction) -> bool:
    """True if somebody was seen, and the count does not tell whether that is over."""
    seen = function.sight is not None and function.sight.process is not None
    return seen and function.enable == function.idle
