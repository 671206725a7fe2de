# SPDX-License-Identifier: Apache-2.0
"""Devices in use that are not offered any more, and groups of unplugged devices in use. Pure.

Removing an id from the list of its resource while a pod uses it can crash the kubelet (seen on 1.36.2). So a
device that has left the host, or that its rule no longer matches, remains listed as Unhealthy until it is
released. The IOMMU group of an unplugged device counts as in use, because the pod may still have the group
open. ``turn`` keeps both mappings (devices and groups) from one Decision to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, HostDevice, kind_of_id
from nodeagent.model.ids import DeviceId, GroupNumber, ResourceName
from nodeagent.model.resource import Device, Reason, ReasonCode
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import DirectRule
from nodeagent.policy import groups, selectors
from nodeagent.policy.offer import health, kinds, units

NotOffered = Mapping[ResourceName, tuple[Device, ...]]
"""The devices of each resource, in the order of its list; no resource has an empty tuple."""


def update(
    before: NotOffered, snapshot: Snapshot, ids: frozenset[str], is_offered: Callable[[str, Holder], bool]
) -> NotOffered:
    """The devices in use that their resource does not offer; only these ids are checked again."""
    found = {name: [each for each in devices if each.id not in ids] for name, devices in before.items()}
    for table in (*snapshot.allocations.table.values(), snapshot.reservations.pending):
        for each in ids:
            holder = table.get(each)
            if holder is not None and not is_offered(each, holder):
                found.setdefault(holder.resource, []).append(build_device(each, holder, snapshot))
    return {name: units.sort_devices(devices) for name, devices in found.items() if devices}


def build_device(device_id: str, holder: Holder, snapshot: Snapshot) -> Device:
    """The Device with the Reason why its resource does not offer it any more."""
    host_device = snapshot.host.device(device_id)
    if host_device is None and DeviceId(device_id) in snapshot.loans:
        from nodeagent.policy.offer import usb_health  # here: most nodes have no rule for USB devices

        replaced = usb_health.explain_replaced(device_id, holder, snapshot)
        if replaced is not None:
            return Device(DeviceId(device_id), replaced, holder.numa)
    if host_device is None:
        gone = kind_of_id(device_id) is not None or _is_of_direct_rule(holder, snapshot)
        return Device(
            DeviceId(device_id), _describe_gone(holder) if gone else _describe_excluded(holder), holder.numa
        )
    reason = kinds.find_reason(
        host_device, units.build_unit(units.find_unit_id(host_device), snapshot), health.ANY_USE
    )
    reason = reason or _explain_type(host_device, holder, snapshot) or _describe_excluded(holder)
    return Device(DeviceId(device_id), reason, units.find_numa(host_device, snapshot))


def _is_of_direct_rule(holder: Holder, snapshot: Snapshot) -> bool:
    """True if a rule for nodes or CDI devices would offer the device if it existed."""
    rules = (rule for rule in snapshot.spec.rules if rule.name == holder.resource)
    return any(isinstance(rule, DirectRule) and rule.each_alone for rule in rules)


def _explain_type(host_device: HostDevice, holder: Holder, snapshot: Snapshot) -> Reason | None:
    """The Reason if the rule does not match the present vGPU type of the device; None for other causes."""
    type_id = kinds.find_kind(host_device).type_of(host_device)
    rules = [rule for rule in snapshot.spec.rules if rule.name == holder.resource]
    if type_id is None or not rules:
        return None
    if any(selectors.is_matched_by_rule(rule, host_device, snapshot.names) for rule in rules):
        return None
    return Reason(
        ReasonCode.MDEV_TYPE_CHANGED,
        f"its type is {type_id} now, which {holder.resource} does not offer; still in use by {holder}",
        f"it is removed from this resource when {holder} ends",
    )


def _describe_gone(holder: Holder) -> Reason:
    pod = holder if holder.named else "that pod"
    return Reason(
        ReasonCode.GONE,
        f"no longer on the host; still in use by {holder}",
        f"stop {pod}; if the device should be there, re-plug it or check the kernel log",
    )


def _describe_excluded(holder: Holder) -> Reason:
    return Reason(
        ReasonCode.EXCLUDED,
        f"no rule offers it under this name any more; still in use by {holder}",
        f"it is removed from this resource when {holder} ends",
    )


def with_unplugged(before: Snapshot, now: Snapshot) -> Snapshot:
    """Return the Snapshot with ``unplugged``: from the last Decision, the host, and the kubelet's checkpoint.

    A group number means the same group only while a former device is in it: the kernel assigns the lowest
    free number to the next group (``iommu_group_alloc`` in drivers/iommu/iommu.c), maybe before the next
    scan.
    """
    same = before.host is now.host and before.allocations.groups is now.allocations.groups
    if same and not before.unplugged:
        return now
    known = chain(
        before.unplugged, now.unplugged, _find_unplugged(before, now), _find_unplugged_before(before, now)
    )
    unplugged = frozenset(
        (each, group)
        for each, group in known
        if now.host.device(each) is None and _is_same_group(group, before.host, now.host)
    )
    return now if unplugged == now.unplugged else replace(now, unplugged=unplugged)


def _find_unplugged(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    """The devices in use that have left the host since the last Decision, with their groups."""
    for each in now.host.changes_since(before.host).devices:
        host_device = before.host.device(each)
        if host_device is not None and host_device.group is not None and now.holder(each) is not None:
            yield each, host_device.group


def _find_unplugged_before(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    """The devices that left the host before the daemon started, found by group nodes in the checkpoint."""
    known = before.allocations.groups if before.host.functions else {}
    for each, numbers in now.allocations.groups.items():
        if each not in known:
            yield from (
                (each, group) for group in numbers if groups.may_be_former_group(each, group, now.host)
            )


def _is_same_group(number: GroupNumber, before: Host, now: Host) -> bool:
    if not before.functions:
        return number in now.groups
    one, other = before.groups.get(number), now.groups.get(number)
    return one is not None and other is not None and not {*one.members}.isdisjoint(other.members)
