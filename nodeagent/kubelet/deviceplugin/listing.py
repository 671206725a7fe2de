# SPDX-License-Identifier: Apache-2.0
"""The list of one resource as the kubelet is to see it, and the ids that may not vanish from it.

Kubelet 1.36.2 crashes when an id leaves the list while its Allocate runs (pkg/kubelet/cm/devicemanager/
manager.go). So an id that is being allocated stays listed, Unhealthy, until a moment after the answer.
Outlives servers and registrations; each stream reads it at its own pace.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

from nodeagent.base.latest import Latest
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Device, Reason, ReasonCode

LINGER = 1.0  # seconds that an id stays protected after its Allocate was answered

_LEAVING = Reason(ReasonCode.GONE, "it vanished while it was being allocated", "try the pod again")


class Listing:
    """The devices to show; ``cell`` holds what streams send."""

    def __init__(self, devices: tuple[Device, ...] = ()) -> None:
        self._devices = devices
        self._allocating: Counter[str] = Counter()
        self.cell: Latest[tuple[Device, ...]] = Latest(devices)
        self.repeats = 0  # how often streams were to send what they have sent

    def show(self, devices: tuple[Device, ...]) -> bool:
        """Replace the list; return False if the kubelet need not hear of it."""
        self._devices = devices
        return self._publish()

    def send_again(self) -> None:
        """Send the list although it is no other: the kubelet writes its checkpoint at each one."""
        self.repeats += 1
        self.cell.touch()

    @contextlib.contextmanager
    def allocating(self, ids: Sequence[str]) -> Iterator[None]:
        """Keep these ids listed until a moment after the block."""
        listed = [device_id for device_id in ids if self._lists(device_id)]
        self._allocating.update(listed)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(LINGER, self._release, listed)

    def _lists(self, device_id: str) -> bool:
        return any(device.id == device_id for device in self.cell.get())

    def _release(self, ids: Sequence[str]) -> None:
        self._allocating.subtract(ids)
        self._allocating = +self._allocating
        self._publish()

    def _publish(self) -> bool:
        if not self._allocating:
            return self.cell.set(self._devices)
        present = {device.id for device in self._devices}
        kept = tuple(
            Device(device.id, device.reason or _LEAVING, device.numa)
            for device in self.cell.get()
            if device.id in self._allocating and device.id not in present
        )
        return self.cell.set((*self._devices, *kept))


def ids(devices: Sequence[Device]) -> tuple[DeviceId, ...]:
    """The ids of a list."""
    return tuple(device.id for device in devices)
