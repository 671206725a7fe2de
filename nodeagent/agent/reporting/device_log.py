# SPDX-License-Identifier: Apache-2.0
"""Logs changes of devices: added, removed, Unhealthy, Healthy, allocated, refused.

Each line has the known facts of the device at that moment: its IOMMU group, and the pods that use devices of
the group. The callers of this module decide when a line is logged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from nodeagent.base import log
from nodeagent.base.errors import AllocationRefused
from nodeagent.model.ids import DeviceId, pci_address
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource, Via, waits
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer import grants
from nodeagent.policy.offer.turn import Decision

FEWER = "the rule now offers fewer shares of its device node"
LEFT = "it has left the node"
MOVED = {Via.DRA: "it is now advertised by DRA", Via.DEVICE_PLUGIN: "it is now advertised by a device plugin"}


class _Change(NamedTuple):
    """The change of a device, and its cause: a Reason or a text."""

    event: log.Event
    why: Reason | str | None = None


def changes(before: Resource | None, now: Resource, decision: Decision) -> None:
    """Log one line for each device that was added, was removed, or became Unhealthy or Healthy.

    Shares of one device node that change in the same way get one line together: there may be a thousand
    shares.
    """
    lines: dict[tuple[_Change, DeviceId | None], list[DeviceId]] = {}
    for device_id, change in _changed(before, now, decision):
        alone = device_id if not now.direct or _each_alone(now, decision) else None
        lines.setdefault((change, alone), []).append(device_id)
    for (change, _), ids in lines.items():
        _say(now.name, ids, change, decision.snapshot)


def _changed(
    before: Resource | None, now: Resource, decision: Decision
) -> Iterator[tuple[DeviceId, _Change]]:
    old: dict[DeviceId, Device] = {device.id: device for device in before.devices} if before else {}
    for device in now.devices:
        known = old.pop(device.id, None)
        if known is not None and _fact(known.reason) == _fact(device.reason):
            continue  # only the hint has changed
        if device.reason is not None:
            yield device.id, _unhealthy(now.name, device.id, device.reason, decision.snapshot)
        elif known is not None:
            yield device.id, _Change(log.DEVICE_HEALTHY)
        elif before is not None:
            yield device.id, _Change(log.DEVICE_ADDED)
    for device_id in old:
        yield device_id, _Change(log.DEVICE_REMOVED, whereabouts(now, device_id, decision))


def _each_alone(resource: Resource, decision: Decision) -> bool:
    """False for the shares of one device node, whose changes are logged in one line."""
    rule = grants.find_direct_rule(resource, decision)
    return rule is not None and rule.each_alone


def _fact(reason: Reason | None) -> tuple[ReasonCode, str] | None:
    """The parts of a Reason whose change is logged: its code and message, but not its hint."""
    return None if reason is None else (reason.code, reason.message)


def whereabouts(resource: Resource, device_id: str, decision: Decision) -> str:
    """Why this resource no longer lists a device, as a text."""
    if resource.direct:
        return LEFT if _each_alone(resource, decision) else FEWER
    if decision.snapshot.host.device(device_id) is None:
        return LEFT
    offer = decision.offer_with(device_id)
    if offer is None:
        return "neither a rule nor discovery matches the device now"
    if offer.match.resource == resource.name and offer.device.id == device_id:
        return MOVED[offer.match.rule.via]
    if offer.match.resource == resource.name:
        return f"it is now allocated together with others, as {offer.device.id}"
    return f"it is now offered as {offer.match.resource}"


def successors(resource: Resource, decision: Decision) -> str:
    """Why a resource was removed: the names under which its devices are offered now, if there are any."""
    offers = (decision.offer_with(device.id) for device in resource.devices)
    if resource.name in decision.resources:
        return MOVED[decision.resource(resource.name).via]
    names = sorted({offer.match.resource for offer in offers if offer is not None})
    if names:
        return f"its devices are now offered as {', '.join(names)}"
    return "no device is offered under this name any more"


def allocated(resource: Resource, ids: Sequence[str], snapshot: Snapshot) -> None:
    """Log that these devices were allocated; the ``snapshot`` includes the allocation."""
    group, pod = groups_of(ids, snapshot), pods_with(ids, snapshot)
    log.event(log.ALLOCATED, resource=resource.name, device=tuple(ids), group=group, pod=pod)


def refused(resource: Resource, ids: Sequence[str], why: AllocationRefused, snapshot: Snapshot) -> None:
    """Log that an Allocate was refused, with the pods that use devices of the groups."""
    found = (resource.device(each) for each in ids)
    reasons = (device.reason.code.value for device in found if device is not None and device.reason)
    log.event(
        log.ALLOCATE_REFUSED,
        resource=resource.name,
        device=tuple(ids),
        cause=why.what.removeprefix(f"{resource.name}: "),
        reason=next(reasons, None),
        group=groups_of(ids, snapshot),
        pod=pods_with(_neighbours(ids, snapshot), snapshot),
    )


def groups_of(ids: Collection[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The numbers of the IOMMU groups of these devices, each once."""
    found = (snapshot.host.device(each) for each in ids)
    return tuple(
        dict.fromkeys(
            str(device.group) for device in found if device is not None and device.group is not None
        )
    )


def pods_with(ids: Collection[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The pods that use any of these devices, as ``namespace/name``, without those of unknown name."""
    holders = map(snapshot.holder, ids)
    return tuple(sorted({str(holder) for holder in holders if holder is not None and holder.named}))


def _unhealthy(resource: str, device: str, reason: Reason, snapshot: Snapshot) -> _Change:
    holder = snapshot.holder(device)
    held = holder is not None and holder.resource == resource
    return _Change(log.DEVICE_WAITING if waits(reason.code, held=held) else log.DEVICE_UNHEALTHY, reason)


def _say(resource: str, ids: Sequence[str], change: _Change, snapshot: Snapshot) -> None:
    alone = ids if len(ids) == 1 else ()
    device = ids[0] if alone else f"each of {len(ids)} shares ({ids[0]} …)"
    address = pci_address(ids[0]) if alone else None
    group = groups_of(alone, snapshot)
    pod = pods_with(_neighbours(alone, snapshot), snapshot)  # the pods that use a device of its group
    if isinstance(change.why, Reason):
        log.event(
            log.DEVICE_WAITING if change.event is log.DEVICE_WAITING else log.DEVICE_UNHEALTHY,
            resource=resource,
            device=device,
            text=change.why.message,
            reason=change.why.code.value,
            hint=change.why.hint or None,
            pci_address=address,
            group=group,
            pod=pod,
        )
    elif change.why is not None:
        log.event(
            log.DEVICE_REMOVED,
            resource=resource,
            device=device,
            cause=change.why,
            pci_address=address,
            group=group,
            pod=pod,
        )
    else:
        log.event(
            log.DEVICE_ADDED if change.event is log.DEVICE_ADDED else log.DEVICE_HEALTHY,
            resource=resource,
            device=device,
            pci_address=address,
            group=group,
            pod=pod,
        )


def _neighbours(ids: Collection[str], snapshot: Snapshot) -> tuple[str, ...]:
    """These devices, and all devices of their IOMMU groups."""
    found = dict.fromkeys(ids)
    for device in map(snapshot.host.device, ids):
        if device is not None:
            found |= dict.fromkeys(member.id for member in snapshot.host.devices_in(device.group))
    return tuple(found)
