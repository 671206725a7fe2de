# SPDX-License-Identifier: Apache-2.0
"""Explains IOMMU groups: whether VFIO can use a group, the effect of each member, and the groups of the page.

The status page shows a group if one of its devices is offered, is ready for VFIO, or has a class that is
discovered, so it also shows a GPU that is not offered, with the reason. Groups with only bridges and host
controllers are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.model.ids import GroupNumber
from nodeagent.model.status import GroupStatus, MemberStatus
from nodeagent.policy import groups
from nodeagent.policy.explain.devices import is_viable, members_of, row
from nodeagent.policy.explain.why import why_not_offered
from nodeagent.policy.offer import discovery, kinds, units
from nodeagent.policy.offer.turn import Decision


def overview(decision: Decision) -> tuple[GroupStatus, ...]:
    """Return the groups that the status page shows, in the order of their devices."""
    return tuple(_shown_groups(decision))


def _shown_groups(decision: Decision) -> Iterator[GroupStatus]:
    host = decision.snapshot.host
    seen: set[units.UnitId] = set()
    for host_device in host.devices():
        unit = units.find_unit_id(host_device)
        if unit in seen or not _is_shown(host_device, decision):
            continue
        seen.add(unit)
        devices = host.devices_in(host_device.group) or (host_device,)
        functions = tuple(each for each in devices if isinstance(each, PciFunction))
        roles = {member.address: member.role for member in members_of(functions, host)}
        members = tuple(_member(each, roles.get(each.id, "mdev"), decision) for each in devices)
        yield GroupStatus(host_device.group, is_viable(functions), members)


def _is_shown(host_device: HostDevice, decision: Decision) -> bool:
    if isinstance(host_device, Mdev) or host_device.id in decision.matched:
        return True
    if not isinstance(host_device, PciFunction):
        return False
    settings = decision.snapshot.spec.discovery
    return groups.is_assignable(host_device) or discovery.class_refusal(host_device, settings) is None


def _member(host_device: HostDevice, role: str, decision: Decision) -> MemberStatus:
    offer = decision.offer_with(host_device.id)
    return MemberStatus(
        host_device.id,
        kinds.find_kind(host_device).text(host_device, decision.snapshot.names),
        host_device.driver,
        role,
        getattr(host_device, "physfn", None) or getattr(host_device, "parent", None),
        offer.device.id if offer is not None else None,
        None if offer is not None else why_not_offered(host_device, decision.snapshot).text,
    )


class GroupMember(NamedTuple):
    """A device of an IOMMU group, and its resource or why it has none; ``role``: its effect on the group."""

    id: str
    driver: str | None
    role: str
    resource: str | None
    status: str
    holder: str | None


class GroupExplanation(NamedTuple):
    """An IOMMU group; ``viable``: VFIO can use it; ``node``: /dev/vfio/NUMBER exists."""

    number: int
    viable: bool
    node: bool
    members: tuple[GroupMember, ...]


def explain(number: int, decision: Decision) -> GroupExplanation | None:
    """Return the group with that number; None if it does not exist."""
    host = decision.snapshot.host
    group = host.groups.get(GroupNumber(number))
    if group is None:
        return None
    functions = host.members(group.number)
    roles = {member.address: member.role for member in members_of(functions, host)}
    members = tuple(_explain_member(each, roles, decision) for each in host.devices_in(group.number))
    return GroupExplanation(group.number, is_viable(functions), group.node, members)


def _explain_member(host_device: HostDevice, roles: Mapping[str, str], decision: Decision) -> GroupMember:
    found = row(host_device, decision)
    if host_device.id not in roles:
        return GroupMember(found.id, None, "mdev", found.resource, str(found), found.holder)
    role = roles[host_device.id]
    return GroupMember(found.id, host_device.driver, role, found.resource, str(found), found.holder)
