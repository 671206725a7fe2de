# SPDX-License-Identifier: Apache-2.0
"""What the kernel's AER events said last of each function: sysfs shows nothing of it."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.model.host import Host, Recovery
from nodeagent.model.ids import PciAddress


class Recoveries:
    """The last verdict on each function that has one."""

    def __init__(self) -> None:
        self._verdicts: dict[PciAddress, Recovery] = {}

    @property
    def now(self) -> Mapping[PciAddress, Recovery]:
        """All verdicts."""
        return dict(self._verdicts)

    def note(self, address: PciAddress, verdict: Recovery | None) -> None:
        """Remember a verdict; None takes it back."""
        if verdict is None:
            self._verdicts.pop(address, None)
        else:
            self._verdicts[address] = verdict

    def forget(self, host: Host) -> None:
        """A function that was removed or unbound starts with a clean slate."""
        for address in tuple(self._verdicts):
            function = host.functions.get(address)
            if function is None or function.driver is None:
                del self._verdicts[address]
