# SPDX-License-Identifier: Apache-2.0
"""The list of one resource as the kubelet is to see it, and the ids that may not vanish from it.

Kubelet 1.36.2 crashes when an id leaves the list while its Allocate runs (pkg/kubelet/cm/devicemanager/
manager.go). So an id that is being allocated stays listed, Unhealthy, until a moment after the answer.
Outlives servers and registrations; each stream reads it at its own pace. What is sent is one cached frame for
each device: after a change of one in a thousand only that one is encoded again, and all streams of the
resource send the same bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from nodeagent.base.latest import Latest
from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import wire
from nodeagent.model.ids import DeviceId
from nodeagent.model.resource import Device, Reason, ReasonCode

if TYPE_CHECKING:
    from nodeagent.model.resource import Device


LINGER = 1.0  # seconds that an id stays protected after its Allocate was answered

_LEAVING = Reason(ReasonCode.GONE, "it vanished while it was being allocated", "try the pod again")
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_DEVICES_FIELD = b"\x0a"  # field 1 of ListAndWatchResponse, length-delimited
_CACHED_FRAMES = 8192


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
        known = {device.id for device in self.cell.get()}
        listed = [device_id for device_id in ids if device_id in known]
        self._allocating.update(listed)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(LINGER, self._release, listed)

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


def encode_list(devices: Sequence[Device]) -> bytes:
    """The ListAndWatchResponse with these devices, in this order, ready to be sent."""
    return b"".join(_frame(device.id, device.healthy, device.numa) for device in devices)


@lru_cache(maxsize=_CACHED_FRAMES)
def _frame(device_id: str, healthy: bool, numa: int | None) -> bytes:
    """One entry of the repeated field: tag, length, message."""
    health = HEALTHY if healthy else UNHEALTHY
    body = wire.encode(v1beta1.Device(device_id, health, _topology(numa)))
    return _DEVICES_FIELD + wire.delimited(body)


def _topology(numa: int | None) -> v1beta1.TopologyInfo | None:
    """No topology for an unknown node: -1 on the wire fails pods under strict topology policies."""
    if numa is None or numa < 0:
        return None
    return v1beta1.TopologyInfo(nodes=[v1beta1.NumaNode(id=numa)])
