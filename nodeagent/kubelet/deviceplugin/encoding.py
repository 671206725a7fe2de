# SPDX-License-Identifier: Apache-2.0
"""A device list as bytes: one cached frame for each device.

After a change of one device in a thousand only that one is encoded again, and all streams of the resource
send the same bytes. The generated messages of ``kubelet.api`` do the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.kubelet.grpc import wire

if TYPE_CHECKING:
    from nodeagent.model.resource import Device

HEALTHY = "Healthy"
UNHEALTHY = "Unhealthy"

_DEVICES_FIELD = b"\x0a"  # field 1 of ListAndWatchResponse, length-delimited
_CACHED_FRAMES = 8192


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
