# SPDX-License-Identifier: Apache-2.0
"""Scan requests: the parts of the host that are to be scanned again, and verdicts after PCI errors.

The cell between the sources of events and the scanner: neither knows the other. A request names a part of
the host and says nothing about it. Verdicts on PCI errors are the exception, since sysfs does not show them:
one is kept here until the device is removed, bound again, or proves well. So are the contents of CDI files,
which another component reads. For the event loop only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.base.latest import Latest
from nodeagent.model.host import Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress
from nodeagent.model.nodes import CdiFile


class ScanRequests(Latest[None]):
    """At the start everything is due. Each request makes a new version of the cell."""

    def __init__(self) -> None:
        super().__init__(None)
        self._due: set[str] | None = None  # None: everything
        self.verdicts: Latest[Mapping[PciAddress, Recovery]] = Latest(MappingProxyType({}))
        self._lowest: dict[PciAddress, int] = {}  # count of opens that was seen since the verdict
        self.specs: Mapping[str, CdiFile] = MappingProxyType({})  # what is known of CDI files, by path

    @property
    def due(self) -> bool:
        """True if there is something to scan."""
        return self._due is None or bool(self._due)

    @property
    def recoveries(self) -> Mapping[PciAddress, Recovery]:
        """The verdict on each function, as far as that is not settled."""
        return self.verdicts.get()

    def add(self, key: str | None) -> None:
        """Ask for a scan of what the key names (see ``scanner.resolve``); None: of everything."""
        if key is None:
            self._due = None
        elif self._due is not None:
            self._due.add(key)
        self.touch()

    def recovery(self, address: PciAddress, recovery: Recovery | None) -> None:
        """Note a verdict, None if nothing is wrong any more, and ask for a scan."""
        self._lowest.pop(address, None)
        verdicts = {key: verdict for key, verdict in self.recoveries.items() if key != address}
        self.verdicts.set(verdicts if recovery is None else {**verdicts, address: recovery})
        self.add(address)

    def settle(self, host: Host) -> None:
        """Forget the verdicts on functions that are gone or unbound, or have proved well.

        The former start with a clean slate. One that was opened after its verdict, and answers while it is
        open, works: VFIO enables and resets a device when it is opened. A count that rises tells of that,
        whatever a driver before has left of it.
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
        """Return the keys that are due, None for everything; nothing is due afterwards."""
        due, self._due = self._due, set()
        return None if due is None else frozenset(due)


def _well(function: PciFunction, verdict: Recovery, opened: bool) -> bool:
    """``opened``: it was seen to be opened since the verdict."""
    return function.answers is True and (opened or verdict is Recovery.FALLEN)
