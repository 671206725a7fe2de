# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a pod that has devices, and of an IOMMU group by its number."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.policy.explaining.groups import GroupExplanation
from nodeagent.policy.explaining.pods import PodExplanation, PodResource
from nodeagent.policy.offer.explain import Member
from nodeagent.policy.offer.fates import Fate
from nodeagent.render import explain, resources
from nodeagent.render.answers import GroupAnswer, GroupMemberAnswer, PodAnswer, PodResourceAnswer
from nodeagent.render.table import table

_OF_MDEV = "mdev"


def pod(explanation: PodExplanation) -> str:
    """What a pod has, resource by resource."""
    count = sum(len(part.devices) + len(part.gone) for part in explanation.resources)
    lines = [f"{explanation.pod}  has {count} device{'s' * (count > 1)} of this node"]
    for part in explanation.resources:
        lines += ["", f"  {part.resource}", *(f"    {line}" for line in _part(part))]
    return "\n".join(lines)


def _part(part: PodResource) -> Iterator[str]:
    if not part.ours:
        yield f"{', '.join(device.id for device in part.devices)}: given by another device plugin"
        return
    for device in part.devices:
        yield f"{device.id}: {'Healthy' if device.reason is None else f'Unhealthy: {device.reason.what}'}"
        if device.reason is not None and device.reason.hint:
            yield f"  to do: {device.reason.hint}"
    for device_id in part.gone:
        yield f"{device_id}: not listed any more"
    yield from (f"env    {key}={value}" for key, value in part.grant.envs)
    yield from (f"node   {node.path}" for node in part.grant.nodes)
    yield from (f"cdi    {name}" for name in part.grant.cdi)


def pod_answer(explanation: PodExplanation) -> PodAnswer:
    """The same for programs."""
    return PodAnswer(
        explanation.pod,
        tuple(
            PodResourceAnswer(
                part.resource,
                part.ours,
                tuple(resources.listed(device, explanation.pod) for device in part.devices),
                part.gone,
                dict(part.grant.envs),
                tuple(node.path for node in part.grant.nodes),
                part.grant.cdi,
            )
            for part in explanation.resources
        ),
    )


def group(explanation: GroupExplanation) -> str:
    """The group, and each of its devices."""
    found, members = explanation.group, _members(explanation)
    functions = any(member is not None for _, member in members)
    viable = explain.viability(explanation.viable, explanation.hindered) if functions else "an mdev's own"
    node = f"/dev/vfio/{found.number} {'is there' if found.node else 'is not there'}"
    rows = [(fate.id, "" if member is None else explain.means(member), str(fate)) for fate, member in members]
    head = f"IOMMU group {found.number}  {viable}; {node}"
    return "\n".join([head, "", table(("DEVICE", "MEANS", "WHAT BECOMES OF IT"), rows, indent="  ")])


def _members(explanation: GroupExplanation) -> list[tuple[Fate, Member | None]]:
    """Each device of the group, with what it means for the group if it is a function."""
    members: dict[str, Member] = {member.address: member for member in explanation.members}
    return [(fate, members.get(fate.id)) for fate in explanation.fates]


def group_answer(explanation: GroupExplanation) -> GroupAnswer:
    """The same for programs."""
    return GroupAnswer(
        explanation.group.number,
        explanation.viable,
        explanation.group.node,
        tuple(
            GroupMemberAnswer(
                fate.id,
                None if member is None else member.driver,
                _OF_MDEV if member is None else member.role,
                fate.resource,
                str(fate),
                fate.holder,
            )
            for fate, member in _members(explanation)
        ),
    )
