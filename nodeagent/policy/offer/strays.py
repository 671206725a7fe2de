# SPDX-License-Identifier: Apache-2.0
"""What has left the host while a pod held it: its group is that pod's until it lets go. Pure.

The host does not show the group of a device that is not there. The turn before knew it; where it left before
this daemon was there, the answer to its Allocate had the group's node, and counts if what has that number now
can be of one group with it. A group that is gone ends it: the kernel gives the lowest free number to the next
one (``iommu_group_alloc`` in its drivers/iommu/iommu.c), maybe before the host is looked at again. So one
without any member of before is another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nodeagent.model.host import Host
from nodeagent.model.ids import GroupNumber
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups


def handed_on(before: Snapshot, now: Snapshot) -> Snapshot:
    """The Snapshot with its strays: those of before that are still held and away, and new ones."""
    same = before.host is now.host and before.allocations.groups is now.allocations.groups
    if same and not before.strays:
        return now
    left: dict[GroupNumber, frozenset[str]] = {}
    for device_id, group in (*_strays(before), *_strays(now), *_left(before, now), *_told(before, now)):
        held = now.holder(device_id) is not None
        if held and _remains(group, before.host, now.host) and now.host.device(device_id) is None:
            left[group] = left.get(group, frozenset()) | {device_id}
    return now if left == now.strays else replace(now, strays=left)


def _remains(number: GroupNumber, before: Host, now: Host) -> bool:
    if not before.functions:
        return number in now.groups
    one, other = before.groups.get(number), now.groups.get(number)
    return one is not None and other is not None and not {*one.members}.isdisjoint(other.members)


def _strays(snapshot: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    return ((device_id, group) for group, ids in snapshot.strays.items() for device_id in ids)


def _left(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    for device_id in now.host.changes_since(before.host).devices:
        host_device = before.host.device(device_id)
        if host_device is not None and host_device.group is not None:
            yield device_id, host_device.group


def _told(before: Snapshot, now: Snapshot) -> Iterator[tuple[str, GroupNumber]]:
    """The groups of what was held before there was a host to look at, or the kubelet had told of it."""
    known = before.allocations.groups if before.host.functions else {}
    for device_id, numbers in now.allocations.groups.items():
        if device_id not in known:
            yield from (
                (device_id, number) for number in numbers if groups.may_have_had(device_id, number, now.host)
            )
