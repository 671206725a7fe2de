# SPDX-License-Identifier: Apache-2.0
"""Looks in /proc for who has those functions open whose count of opens is above zero.

The count alone proves nothing: i915 and radeon leave it above zero when they let go of a card, for they never
call pci_disable_device. One look is good for as long as the count stays what it is. It has a deadline: what
was not found out in time is not known, and is not asked again.
"""

from __future__ import annotations

from dataclasses import replace

import anyio

from nodeagent.base import threads
from nodeagent.kernel import in_use
from nodeagent.kernel.root import Root
from nodeagent.model.host import Host, PciFunction, Sight
from nodeagent.model.ids import PciAddress

DEADLINE = 1.0  # seconds for one look at all processes
UNKNOWN = Sight()


class Sights:
    """Looks for what a scan has found. A look that does not end is left behind, and is the last one."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._left: threads.Call[dict[PciAddress, Sight]] | None = None

    async def added(self, host: Host) -> Host:
        """The Host with what is seen of the functions that nobody has looked for; the same without any."""
        wanted = [function.address for function in host.functions.values() if _unseen(function)]
        if not wanted:
            return host
        sights = await self._looked(wanted)
        seen = {each: host.functions[each]._replace(sight=sights.get(each, UNKNOWN)) for each in wanted}
        return replace(host, functions={**host.functions, **seen}, changes=None)

    async def _looked(self, wanted: list[PciAddress]) -> dict[PciAddress, Sight]:
        if self._left is not None and not self._left.ended:
            return {}
        self._left = threads.start(_look, self._root, wanted)
        with anyio.move_on_after(DEADLINE):
            return await self._left.result()
        return {}


def _unseen(function: PciFunction) -> bool:
    return function.vfio and function.driver is not None and bool(function.enable) and function.sight is None


def _look(root: Root, wanted: list[PciAddress]) -> dict[PciAddress, Sight]:
    openers, whole = in_use.look(root, wanted)
    return {each: Sight(openers.get(each), whole) for each in wanted}
