# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a pod that has devices, and of an IOMMU group by its number."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.policy.explain.devices import DeviceRow, Member
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.pods import PodExplanation, PodResource
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
    viable = explain.viability(explanation.viable, explanation.members) if functions else "an mdev's own"
    node = f"/dev/vfio/{found.number} {'is there' if found.node else 'is not there'}"
    rows = [(row.id, "" if member is None else explain.means(member), str(row)) for row, member in members]
    head = f"IOMMU group {found.number}  {viable}; {node}"
    return "\n".join([head, "", table(("DEVICE", "MEANS", "WHAT BECOMES OF IT"), rows, indent="  ")])


def _members(explanation: GroupExplanation) -> list[tuple[DeviceRow, Member | None]]:
    """Each device of the group, with what it means for the group if it is a function."""
    members: dict[str, Member] = {member.address: member for member in explanation.members}
    return [(row, members.get(row.id)) for row in explanation.rows]


def group_answer(explanation: GroupExplanation) -> GroupAnswer:
    """The same for programs."""
    return GroupAnswer(
        explanation.group.number,
        explanation.viable,
        explanation.group.node,
        tuple(
            GroupMemberAnswer(
                row.id,
                None if member is None else member.driver,
                _OF_MDEV if member is None else member.role,
                row.resource,
                str(row),
                row.holder,
            )
            for row, member in _members(explanation)
        ),
    )
