# SPDX-License-Identifier: Apache-2.0
"""The host as a person looks at it: the IOMMU groups that matter here, and what becomes of each member. Pure.

A group matters if a device of it is offered, is ready for VFIO, or is of a class that is discovered: whoever
misses a GPU finds it here, with the reason. Bridges and host controllers by themselves are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.model.host import Group, HostDevice, Mdev, PciFunction
from nodeagent.model.status import GroupStatus, MemberStatus
from nodeagent.policy import groups
from nodeagent.policy.offer import discovery, explain, kinds, matches, units
from nodeagent.policy.offer.turn import Decision


def overview(decision: Decision) -> tuple[GroupStatus, ...]:
    """The groups, in the order of their devices."""
    return tuple(_groups(decision))


def _groups(decision: Decision) -> Iterator[GroupStatus]:
    host = decision.snapshot.host
    seen: set[units.UnitId] = set()
    for host_device in host.devices():
        unit = units.unit_of(host_device)
        if unit in seen or not _matters(host_device, decision):
            continue
        seen.add(unit)
        members = host.devices_in(host_device.group) or (host_device,)
        functions = tuple(member for member in members if isinstance(member, PciFunction))
        roles = {member.address: member.role for member in explain.members_of(functions, host)}
        yield GroupStatus(
            host_device.group,
            not groups.blockers(functions),
            tuple(_member(member, roles, decision) for member in members),
        )


def _matters(host_device: HostDevice, decision: Decision) -> bool:
    if isinstance(host_device, Mdev) or host_device.id in decision.matched:
        return True
    if not isinstance(host_device, PciFunction):
        return False
    if groups.ready(host_device):
        return True
    return discovery.of_its_class(host_device, decision.snapshot.desired.discovery)


def _member(host_device: HostDevice, roles: Mapping[str, str], decision: Decision) -> MemberStatus:
    """``roles``: what the functions of its group mean for that."""
    names = decision.snapshot.names
    offer = decision.offer_with(host_device.id)
    function = host_device if isinstance(host_device, PciFunction) else None
    return MemberStatus(
        host_device.id,
        kinds.of(host_device).text(host_device, names),
        host_device.driver,
        roles.get(host_device.id, "mdev"),
        function.physfn if function is not None else getattr(host_device, "parent", None),
        offer.device.id if offer is not None else None,
        None if offer is not None else _why_not(host_device, decision),
    )


def _why_not(host_device: HostDevice, decision: Decision) -> str:
    """Why nobody takes the device; of rules only that they are for others."""
    snapshot = decision.snapshot
    group: Group | None = None
    if host_device.group is not None:
        group = snapshot.host.groups.get(host_device.group)
    said = [why for _, why in matches.verdicts(host_device, group, snapshot.desired, snapshot.names) if why]
    return host_device.unreadable or (said[-1] if said else "bridges are never given away")
