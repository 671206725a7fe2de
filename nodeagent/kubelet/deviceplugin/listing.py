# SPDX-License-Identifier: Apache-2.0
"""The list of one resource as the kubelet is to see it, and the ids that may not vanish from it.

Kubelet 1.36.2 crashes when an id leaves the list while its Allocate runs (pkg/kubelet/cm/devicemanager/
manager.go). So an id that is being allocated stays listed, Unhealthy, until a moment after the answer.
Outlives servers and registrations; each stream reads it at its own pace. What is sent is encoded once for
all streams, also those of a kubelet that comes later: after its restart every list goes out again.
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


_LEAVING = Reason(ReasonCode.GONE, "it vanished while it was being allocated", "try the pod again")
HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_DEVICES_FIELD = _ID_FIELD = b"\x0a"  # field 1 of ListAndWatchResponse and of Device, length-delimited


class Listing:
    """The devices to show; ``cell`` holds what streams send."""

    def __init__(self, devices: tuple[Device, ...] = ()) -> None:
        self._devices = devices
        self._allocating: Counter[str] = Counter()
        self.cell: Latest[tuple[Device, ...]] = Latest(devices)
        self.repeats = 0  # how often streams were to send what they have sent
        self._encoded: tuple[tuple[Device, ...], bytes] | None = None

    @property
    def encoded(self) -> bytes:
        """The list in ``cell``, as the ListAndWatchResponse that is ready to be sent."""
        devices = self.cell.get()
        if self._encoded is None or self._encoded[0] is not devices:
            self._encoded = devices, encode_list(devices)
        return self._encoded[1]

    def show(self, devices: tuple[Device, ...]) -> bool:
        """Replace the list; return False if the kubelet need not hear of it."""
        self._devices = devices
        return self._publish()

    def send_again(self) -> None:
        """Send the list although it is no other: the kubelet writes its checkpoint at each one."""
        self.repeats += 1
        self.cell.touch()

    @contextlib.contextmanager
    def allocating(self, ids: Sequence[str], linger: float) -> Iterator[None]:
        """Keep these ids listed until ``linger`` seconds after the block."""
        known = {device.id for device in self.cell.get()}
        listed = [device_id for device_id in ids if device_id in known]
        self._allocating.update(listed)
        try:
            yield
        finally:
            asyncio.get_running_loop().call_later(linger, self._release, listed)

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
    pieces: list[bytes] = []
    for device in devices:
        body = _ID_FIELD + wire.delimited(device.id.encode()) + _after_id(device.healthy, device.numa)
        pieces += (_DEVICES_FIELD, wire.delimited(body))
    return b"".join(pieces)


@lru_cache(maxsize=64)  # as many as there are NUMA nodes, twice
def _after_id(healthy: bool, numa: int | None) -> bytes:
    """What all entries with that health and place have in common."""
    return wire.encode(v1beta1.Device("", HEALTHY if healthy else UNHEALTHY, _topology(numa)))


def _topology(numa: int | None) -> v1beta1.TopologyInfo | None:
    """No topology for an unknown node: -1 on the wire fails pods under strict topology policies."""
    if numa is None or numa < 0:
        return None
    return v1beta1.TopologyInfo(nodes=[v1beta1.NumaNode(id=numa)])
