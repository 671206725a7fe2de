# SPDX-License-Identifier: Apache-2.0
"""What waits for somebody to let go: the devices whose Reason ends by a release. Pure.

Closing a device raises no event, so who acts on this asks for them from time to time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.model.allocation import Pods, Possession, possessions
from nodeagent.model.host import HostDevice, PciFunction
from nodeagent.model.resource import Isolation, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import units
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


def unaccounted(
    resource: Resource, device_ids: Iterable[str], decision: Decision, pods: Pods
) -> Iterator[HostDevice]:
    """What of the groups of these devices none of the pods shows: it must not be open when they are given.

    After a force deletion the kubelet gives a device away while the old container still has it open.
    """
    snapshot = decision.snapshot
    shown = possessions(pods)
    for device_id in device_ids:
        offer, host_device = decision.offer_of(device_id), snapshot.host.device(device_id)
        if offer is None or host_device is None:
            continue
        unit = units.unit_of(host_device)
        alone = resource.isolation is Isolation.NONE
        accounting = offer.host_devices if alone else units.ids_in(unit, snapshot.host)
        if not _shown(accounting, shown, snapshot):
            members = units.unit_at(unit, snapshot).devices
            yield from (each for each in members if not alone or each.id in offer.host_devices)


def _shown(ids: Iterable[str], shown: frozenset[Possession], snapshot: Snapshot) -> bool:
    """True if one of the ids is shown, or came with what is.

    A number is a group only where it holds one, else a share of another plugin.
    """
    allocations, shown_ids = snapshot.allocations, {device_id for _, device_id in shown}
    for device_id in ids:
        holder = allocations.holders.get(device_id)
        of_holder = holder is not None and (holder.resource, device_id) in shown
        if of_holder or (device_id in shown_ids and not device_id.isdecimal()):
            return True
        bringer = allocations.brought.get(device_id)
        if bringer is not None and (bringer.resource, bringer.brought) in shown:
            return True
    return False
