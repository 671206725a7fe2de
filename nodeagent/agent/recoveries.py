# SPDX-License-Identifier: Apache-2.0
"""Keeps the states of PCI error recoveries on disk, and lets a recovery that does not end fail.

Only events of the kernel show them, so each state is written at once, and read before the first scan after a
restart. Events set a state, and a scan clears it (``kernel.scan_requests``).
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio

from nodeagent.base import threads
from nodeagent.kernel import aer
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress

Verdicts = Mapping[PciAddress, Recovery]


async def restore(root: Root, scan_requests: ScanRequests) -> None:
    """Load the states that the last daemon wrote. :raises KernelRefused: if the file cannot be read."""
    for address, verdict in (await threads.call(aer.load, root)).items():
        scan_requests.recovery(address, verdict)


class Recoveries:
    """The component that writes the record, and ends a recovery without a final event."""

    name = "recoveries"

    def __init__(self, root: Root, scan_requests: ScanRequests, patience: float) -> None:
        """``patience``: seconds that a recovery may take."""
        self._root = root
        self._scan_requests = scan_requests
        self._patience = patience
        self._saved: Verdicts | None = None
        self._since: dict[PciAddress, float] = {}  # when the running recoveries began

    async def run(self) -> None:
        """Keep the record, for ever. :raises KernelRefused: if it cannot be written."""
        while True:
            seen = self._scan_requests.verdicts.version
            self._end(self._overdue())
            await self._save(self._scan_requests.recoveries)
            with anyio.move_on_after(self._rest()):
                await self._scan_requests.verdicts.newer(seen)

    def _overdue(self) -> list[PciAddress]:
        now = anyio.current_time()
        running = [
            each for each, verdict in self._scan_requests.recoveries.items() if verdict is Recovery.RUNNING
        ]
        self._since = {each: self._since.get(each, now) for each in running}
        return [each for each, since in self._since.items() if now - since >= self._patience]

    def _end(self, overdue: list[PciAddress]) -> None:
        for address in overdue:
            del self._since[address]
            self._scan_requests.recovery(address, Recovery.UNHEARD)

    def _rest(self) -> float | None:
        """Seconds until the next recovery is overdue; None if none is running."""
        if not self._since:
            return None
        return max(0.0, min(self._since.values()) + self._patience - anyio.current_time())

    async def _save(self, verdicts: Verdicts) -> None:
        if verdicts != self._saved:
            await threads.call(aer.save, self._root, verdicts)
            self._saved = verdicts
