# SPDX-License-Identifier: Apache-2.0
"""Scan requests: the parts of the host to scan again, and the results of PCI error recoveries.

This cell connects the sources of events with the scanner, so that neither imports the other. A request names
the part of the host to scan, and contains no state of that part. Results of PCI error recovery are an
exception, because sysfs does not show them: a result is kept here until the device is removed, bound again,
or proves to work. The contents of CDI files, which another component reads, are also kept here. All methods
must be called on the event loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.base.latest import Latest
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import CdiFile


class ScanRequests(Latest[None]):
    """The pending scan requests; at first everything is to be scanned. Each request increases the version."""

    def __init__(self) -> None:
        super().__init__(None)
        self._due: set[str] | None = None  # None: scan everything
        self.verdicts: Latest[Mapping[PciAddress, Recovery]] = Latest(MappingProxyType({}))
        self._lowest: dict[PciAddress, int] = {}  # the open count that was read since the result
        self.specs: Mapping[str, CdiFile] = MappingProxyType({})  # the known contents of CDI files by path

    @property
    def due(self) -> bool:
        """Return True if a scan is pending."""
        return self._due is None or bool(self._due)

    @property
    def recoveries(self) -> Mapping[PciAddress, Recovery]:
        """Return the recovery result of each function for which it still holds."""
        return self.verdicts.get()

    def add(self, key: str | None) -> None:
        """Request a scan of the part that the key names (see ``scanner.resolve``); None: of everything."""
        if key is None:
            self._due = None
        elif self._due is not None:
            self._due.add(key)
        self.touch()

    def recovery(self, address: PciAddress, recovery: Recovery | None) -> None:
        """Store the result of a PCI error recovery (None after a success), and request a scan."""
        self._lowest.pop(address, None)
        verdicts = {key: verdict for key, verdict in self.recoveries.items() if key != address}
        self.verdicts.set(verdicts if recovery is None else {**verdicts, address: recovery})
        self.add(address)

    def settle(self, host: Host) -> None:
        """Remove the recovery results of functions that were removed or unbound, or that work again.

        A function that is opened after its failed recovery, and answers while it is open, works: VFIO
        enables and resets a device when it is opened. A rising open count shows that the function was opened,
        even if a previous driver left a count above zero.
        """
        for address, verdict in tuple(self.recoveries.items()):
            function = host.functions.get(address)
            if function is None or function.driver is None:
                self.recovery(address, None)
            elif function.enable is not None:
                lowest = self._lowest.setdefault(address, function.enable)
                self._lowest[address] = min(lowest, function.enable)
                if _well(function, verdict, function.enable > lowest):
                    self.recovery(address, None)

    def take(self) -> frozenset[str] | None:
        """Return the pending keys, None for everything; nothing is pending afterwards."""
        due, self._due = self._due, set()
        return None if due is None else frozenset(due)


def _well(function: PciFunction, verdict: Recovery, opened: bool) -> bool:
    """Return True if the function works; ``opened``: it was opened after its PCI error recovery."""
    return function.answers is True and (opened or verdict is Recovery.FALLEN)
