# SPDX-License-Identifier: Apache-2.0
"""What waits for somebody to let go: the devices whose Reason ends by a release. Pure.

Closing a device raises no event, so who acts on this asks for them from time to time.
"""

from __future__ import annotations

from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.resource import ReasonCode
from nodeagent.policy.offer.turn import Decision

_ENDS_BY_RELEASE = frozenset(
    {
        ReasonCode.GROUP_HELD,
        ReasonCode.HELD_OUTSIDE,
        ReasonCode.GONE,
        ReasonCode.EXCLUDED,
        ReasonCode.RE_ENUMERATED,
    }
)


def awaited(decision: Decision) -> frozenset[str]:
    """The functions and mdevs whose release would make a device Healthy, or end its listing."""
    host = decision.snapshot.host
    waiting = (
        device.id
        for resource in decision.resources.values()
        for device in resource.devices
        if device.reason is not None and _ends_by_release(device.reason.code, host.device(device.id))
    )
    ids: set[str] = set()
    for device_id in waiting:
        host_device = host.device(device_id)
        members = host.devices_in(host_device.group) if host_device is not None else ()
        ids |= {device_id, *(member.id for member in members)}
        ids |= {vf for member in members if isinstance(member, PciFunction) for vf in member.vfs}
    return frozenset(ids)


def _ends_by_release(code: ReasonCode, host_device: HostDevice | None) -> bool:
    """A function that has fallen off the bus, and is still on the host, waits for nobody."""
    return code in _ENDS_BY_RELEASE and not (code is ReasonCode.GONE and isinstance(host_device, PciFunction))
