# SPDX-License-Identifier: Apache-2.0
"""An IOMMU group by its number: may VFIO have it, and what becomes of each member. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from nodeagent.model.host import Group
from nodeagent.model.ids import GroupNumber
from nodeagent.policy import groups
from nodeagent.policy.offer import explain as devices
from nodeagent.policy.offer import fates
from nodeagent.policy.offer.explain import Member
from nodeagent.policy.offer.fates import Fate
from nodeagent.policy.offer.turn import Decision


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """A group with its functions, and the fates of these and of its mdevs."""

    group: Group
    viable: bool
    members: tuple[Member, ...]
    fates: tuple[Fate, ...]

    @property
    def hindered(self) -> bool:
        """True if a host driver keeps VFIO from the group, and that is not what its driver is for."""
        return devices.hindered(self.members)


def explain(number: int, decision: Decision) -> GroupExplanation | None:
    """The group of that number; None if there is none."""
    host = decision.snapshot.host
    group = host.groups.get(GroupNumber(number))
    if group is None:
        return None
    functions = host.members(group.number)
    return GroupExplanation(
        group,
        not groups.blockers(functions),
        tuple(devices.members_of(functions, host)),
        tuple(fates.fate(each, decision) for each in host.devices_in(group.number)),
    )
