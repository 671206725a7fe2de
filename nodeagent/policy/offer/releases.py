# SPDX-License-Identifier: Apache-2.0
"""What waits for somebody to let go: the devices whose Reason ends by a release. Pure.

Closing a device raises no event, so who acts on this looks at them from time to time.
"""

from __future__ import annotations

from nodeagent.model.resource import ReasonCode
from nodeagent.policy.offer.turn import Outcome

_ENDS_BY_RELEASE = frozenset(
    {ReasonCode.GROUP_HELD, ReasonCode.HELD_OUTSIDE, ReasonCode.GONE, ReasonCode.EXCLUDED}
)


def awaited(outcome: Outcome) -> frozenset[str]:
    """The functions and mdevs whose release would make a device Healthy, or end its listing."""
    waiting = (
        device.id
        for resource in outcome.resources.values()
        for device in resource.devices
        if device.reason is not None and device.reason.code in _ENDS_BY_RELEASE
    )
    host = outcome.facts.host
    found: set[str] = set()
    for device_id in waiting:
        part = host.part(device_id)
        members = host.parts(part.group) if part is not None else ()
        found |= {device_id, *(member.id for member in members)}
    return frozenset(found)
