# SPDX-License-Identifier: Apache-2.0
"""Devices in use that are not offered any more, and groups of devices in use that were unplugged. Pure.

An id that leaves the list of its resource while a pod has it can crash the kubelet (seen on 1.36.2). So a
device that left the host or its rule stays listed as Unhealthy until it is released. And its group stays in
use: the pod may have it open. ``turn`` keeps one mapping of each from turn to turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, HostDevice
from nodeagent.model.ids import DeviceId, GroupNumber, ResourceName, mdev_uuid, pci_address, usb_id
from nodeagent.model.resource import Device, Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import DirectRule
from nodeagent.policy import groups, selectors
from nodeagent.policy.offer import health, kinds, units

NotOffered = Mapping[ResourceName, tuple[Device, ...]]
"""By resource, in the order of a list; no resource has an empty tuple."""


def update(
    before: NotOffered, snapshot: Snapshot, ids: frozenset[str], is_offered: Callable[[str, Holder], bool]
) -> NotOffered:
    """The devices in use that their resource does not offer, where only these ids may differ from before."""
    found = {name: [each for each in devices if each.id not in ids] for name, devices in before.items()}
    for table in (*snapshot.allocations.table.values(), snapshot.reservations.pending):
        for each in ids:
            holder = table.get(each)
            if holder is not None and not is_offered(each, holder):
                found.setdefault(holder.resource, []).append(device(each, holder, snapshot))
    return {name: units.in_order(devices) for name, devices in found.items() if devices}


def device(device_id: str, holder: Holder, snapshot: Snapshot) -> Device:
    """The device with the Reason why its resource does not offer it."""
    host_device = snapshot.host.device(device_id)
    if host_device is None:
        is_host_device = any(parse(device_id) is not None for parse in (pci_address, mdev_uuid, usb_id))
        gone = is_host_device or _is_of_direct_rule(holder, snapshot)
        return Device(DeviceId(device_id), _gone(holder) if gone else _excluded(holder), holder.numa)
    reason = health.reason(host_device, units.unit_at(units.unit_of(host_device), snapshot), health.ANY_USE)
    reason = reason or _other_type(host_device, holder, snapshot) or _excluded(holder)
    return Device(DeviceId(device_id), reason, units.numa(host_device, snapshot))


def _is_of_direct_rule(holder: Holder, snapshot: Snapshot) -> bool:
    """True if there is a rule for nodes or CDI devices that would offer the device if it were there."""
    rules = (rule for rule in snapshot.spec.rules if rule.name == holder.resource)
    return any(isinstance(rule, DirectRule) and rule.each_alone for rule in rules)


def _other_type(host_device: HostDevice, holder: Holder, snapshot: Snapshot) -> Reason | None:
    """Why a rule by type does not offer the device any more, if it is for its type."""
    type_id = kinds.of(host_device).type_of(host_device)
    rules = [rule for rule in snapshot.spec.rules if rule.name == holder.resource]
    if type_id is None or not rules:
        return None
    if any(selectors.picks(rule, host_device, snapshot.names) for rule in rules):
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type is {type_id} now, which {holder.resource} does not offer, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )


def _gone(holder: Holder) -> Reason:
    pod = holder if holder.named else "that pod"
    return Reason(
        ReasonCode.GONE,
        f"it is no longer on the host, and {holder} still has it",
        f"stop {pod}; re-plug it or look at the kernel log if it should be there",
    )


def _excluded(holder: Holder) -> Reason:
    return Reason(
        ReasonCode.EXCLUDED,
        f"no rule offers it under this name any more, and {holder} still has it",
        f"it leaves this resource when {holder} ends",
    )


def with_unplugged(before: Snapshot, now: Snapshot) -> Snapshot:
    """The Snapshot with ``unplugged``: from the turn before, devices that left since, and from the kubelet.

    A number stays the group's only while a device of before is in it: the kernel gives the lowest free number
    to the next group (``iommu_group_alloc`` in drivers/iommu/iommu.c), maybe before the next scan.
    """
    same = before.host is now.host and before.allocations.groups is now.allocations.groups
    if same and not before.unplugged:
        return now
    known = chain(before.unplugged, now.unplugged, _left(before, now), _answered(before, now))
    unplugged = frozenset(
        (each, group)
        for each, group in known
        if now.host.device(each) is None and _is_same_group(group, before.host, now.host)
    )
    return now if unplugged == now.unplugged else replace(now, unplugged=unplugged)


def _left(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    """Devices in use that have left the host since."""
    for each in now.host.changes_since(before.host).devices:
        host_device = before.host.device(each)
        if host_device is not None and host_device.group is not None and now.holder(each) is not None:
            yield each, host_device.group


def _answered(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    """Devices that left before this daemon was started; the answer to an Allocate has the group's node."""
    known = before.allocations.groups if before.host.functions else {}
    for each, numbers in now.allocations.groups.items():
        if each not in known:
            yield from ((each, group) for group in numbers if groups.may_have_had(each, group, now.host))


def _is_same_group(number: GroupNumber, before: Host, now: Host) -> bool:
    if not before.functions:
        return number in now.groups
    one, other = before.groups.get(number), now.groups.get(number)
    return one is not None and other is not None and not {*one.members}.isdisjoint(other.members)
