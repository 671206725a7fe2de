# SPDX-License-Identifier: Apache-2.0
"""Saves the states of PCI error recoveries (AER), and marks a recovery that takes too long as failed.

Only events of the kernel show the states of recoveries, so each state is saved at once, and loaded before the
first scan after a restart. A state is saved with the binding of its device, and is dropped if the device was
bound again. Kernel events set a state, and a scan clears it (``kernel.scan_requests``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio

from nodeagent.base import state, threads
from nodeagent.base.state import Section
from nodeagent.kernel import aer
from nodeagent.kernel.root import Root
from nodeagent.kernel.scan_requests import ScanRequests
from nodeagent.model.host import Recovery
from nodeagent.model.ids import PciAddress, pci_address

Verdicts = Mapping[PciAddress, Recovery]


def _parse(document: dict[str, Any]) -> dict[PciAddress, tuple[Recovery, str]]:
    known = {verdict.value: verdict for verdict in Recovery}
    return {
        PciAddress(key): (known[entry["verdict"]], entry["binding"])
        for key, entry in document.items()
        if pci_address(key) == key and entry["verdict"] in known
    }


def _plain(verdicts: Mapping[PciAddress, tuple[Recovery, str]]) -> dict[str, Any]:
    return {
        address: {"verdict": verdict, "binding": binding} for address, (verdict, binding) in verdicts.items()
    }


SECTION: Section[Mapping[PciAddress, tuple[Recovery, str]]] = Section(
    state.RECOVERIES, {}, _parse, _plain, "after a restart nodeagent does not know which devices have failed"
)


def load(root: Root) -> Verdicts:
    """Load the states of devices that were not bound again. :raises KernelRefused: if none can be read."""
    saved = SECTION.load(root.prefix).items()
    return {each: verdict for each, (verdict, binding) in saved if aer.read_binding(root, each) == binding}


def save(root: Root, verdicts: Verdicts) -> None:
    """Save the states of the devices that still exist. :raises KernelRefused: if they cannot be written."""
    bindings = {address: aer.read_binding(root, address) for address in verdicts}
    SECTION.save(
        root.prefix,
        {each: (verdicts[each], binding) for each, binding in bindings.items() if binding is not None},
    )


async def restore(root: Root, scan_requests: ScanRequests) -> None:
    """Load the states that the previous daemon saved. :raises KernelRefused: if the file cannot be read."""
    for address, verdict in (await threads.call(load, root)).items():
        scan_requests.recovery(address, verdict)


class Recoveries:
    """The component that saves the states, and marks a recovery without a final event as failed."""

    name = "recoveries"

    def __init__(self, root: Root, scan_requests: ScanRequests, patience: float) -> None:
        """``patience``: how long a recovery may take, in seconds."""
        self._root = root
        self._scan_requests = scan_requests
        self._patience = patience
        self._saved: Verdicts | None = None
        self._since: dict[PciAddress, float] = {}  # when each running recovery began

    async def run(self) -> None:
        """Save the states when they change, for ever. :raises KernelRefused: if it cannot be written."""
        while True:
            seen = self._scan_requests.verdicts.version
            self._end_recoveries(self._find_overdue())
            await self._save(self._scan_requests.recoveries)
            with anyio.move_on_after(self._time_left()):
                await self._scan_requests.verdicts.newer(seen)

    def _find_overdue(self) -> list[PciAddress]:
        now = anyio.current_time()
        running = [
            each for each, verdict in self._scan_requests.recoveries.items() if verdict is Recovery.RUNNING
        ]
        self._since = {each: self._since.get(each, now) for each in running}
        return [each for each, since in self._since.items() if now - since >= self._patience]

    def _end_recoveries(self, overdue: list[PciAddress]) -> None:
        for address in overdue:
            del self._since[address]
            self._scan_requests.recovery(address, Recovery.UNHEARD)

    def _time_left(self) -> float | None:
        """The seconds until the next running recovery takes too long; None if no recovery is running."""
        if not self._since:
            return None
        return max(0.0, min(self._since.values()) + self._patience - anyio.current_time())

    async def _save(self, verdicts: Verdicts) -> None:
        if verdicts != self._saved:
            await threads.call(save, self._root, verdicts)
            self._saved = verdicts
