# SPDX-License-Identifier: Apache-2.0
"""Where devices sit, among whose, and what their groups lack: what a preference is made of. Pure.

What somebody wants besides is not known when the kubelet asks: it asks for one resource after the other. So a
group that has less than others have of other resources is told apart from a whole one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Host, HostDevice, PciFunction
from nodeagent.model.ids import GroupNumber, ResourceName
from nodeagent.model.resource import Device, Resource, Resources
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import kinds, units


class Whose(IntEnum):
    """Who has something of a device's group, the best first."""

    ASKER = 0  # the pod that asks, of another resource
    NOBODY = 1
    LEFT = 2  # as the next, but all of the group is seen to be closed; what is alone in its group is nobody's
    LEAVING = 3  # a pod that was forgotten a moment ago
    ANOTHER = 4


class Topology(NamedTuple):
    """Where a device sits, and among whose."""

    group: int | str | None = None
    numa: int | None = None
    root: str = ""
    whose: Whose = Whose.NOBODY
    lacks: int = 0  # resources of which its group has less than others have


NOWHERE = Topology()


def topologies(
    ids: Iterable[str],
    resource: Resource,
    resources: Resources,
    snapshot: Snapshot,
    lately: frozenset[str] = frozenset(),
    *,
    same: bool,
) -> dict[str, Topology]:
    """Where each of these devices sits; nowhere, if the host has none of that id.

    ``lately`` are ids that pods had which the kubelet has forgotten a moment ago. ``same``: the pod that is
    being admitted asks again.
    """
    lacking = lacks(resource, resources, snapshot.host)
    found: dict[str, Topology] = {}
    for device_id in ids:
        host_device, device = snapshot.host.device(device_id), resource.device(device_id)
        if host_device is None:
            found[device_id] = NOWHERE
            continue
        function = kinds.of(host_device).function(host_device, snapshot.host)
        root = "" if function is None else function.pcie_root
        if device is None or not device.healthy:  # a moment ago: the kubelet does not know it yet
            found[device_id] = Topology(None, host_device.numa_node, root, Whose.ANOTHER)
            continue
        number, whose = host_device.group, _whose(host_device, resource.name, snapshot, lately, same=same)
        less = 0 if number is None else lacking[number]
        found[device_id] = Topology(number, host_device.numa_node, root, whose, less)
    return found


def lacks(resource: Resource, resources: Resources, host: Host) -> Counter[GroupNumber]:
    """Of how many other resources a group has less in order than another that has as many of this one.

    Something of it is Unhealthy, or is not there, such as a function that has left the bus.
    """
    ours = _counted(resource.devices, host)
    found: Counter[GroupNumber] = Counter()
    for other in resources.values():
        if other.name != resource.name:
            healthy = _counted((device for device in other.devices if device.healthy), host)
            most: dict[int, int] = {}
            for number, count in ours.items():
                most[count] = max(most.get(count, 0), healthy[number])
            found.update(number for number, count in ours.items() if healthy[number] < most[count])
    return found


def _counted(devices: Iterable[Device], host: Host) -> Counter[GroupNumber]:
    """How many of these each group has."""
    known = (host.device(device.id) for device in devices)
    return Counter(each.group for each in known if each is not None and each.group is not None)


def _whose(
    host_device: HostDevice, resource: ResourceName, snapshot: Snapshot, lately: frozenset[str], *, same: bool
) -> Whose:
    """By who has something of its group. Of the same resource the asker takes nothing twice of one group."""
    holders = _holders(host_device, snapshot)
    if not holders:
        return _since_lately(host_device, snapshot, lately) if lately else Whose.NOBODY
    mine = snapshot.reservations.admitting if same else frozenset()
    others = (holder.got(each) not in mine or holder.resource == resource for each, holder in holders.items())
    return Whose.ANOTHER if any(others) else Whose.ASKER


def _holders(host_device: HostDevice, snapshot: Snapshot) -> Mapping[str, Holder]:
    """Who has something of its group; what has no group shares none, though all USB devices are one unit."""
    holders = units.holders_in(units.unit_of(host_device), snapshot)
    if host_device.group is not None:
        return holders
    return {each: holder for each, holder in holders.items() if each == host_device.id}


def _since_lately(host_device: HostDevice, snapshot: Snapshot, lately: frozenset[str]) -> Whose:
    """Whose it is that nobody has: something of the group may have been a pod's a moment ago.

    It may be open yet. And the others of its group were Unhealthy: the kubelet may have them so yet.
    """
    members = snapshot.host.devices_in(host_device.group) or (host_device,)
    if all(lately.isdisjoint((each.id, str(each.group))) for each in members):
        return Whose.NOBODY
    if not all(isinstance(each, PciFunction) and not groups.uncertain(each) for each in members):
        return Whose.LEAVING
    return Whose.LEFT if len(members) > 1 else Whose.NOBODY
