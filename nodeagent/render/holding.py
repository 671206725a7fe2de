# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent explain`` says of a pod that has devices, and of an IOMMU group by its number."""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.base.terminal import table
from nodeagent.policy.explain.groups import GroupExplanation
from nodeagent.policy.explain.pods import PodExplanation, PodResource
from nodeagent.render import explain

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
    yield from (f"env    {key}={value}" for key, value in part.env.items())
    yield from (f"node   {path}" for path in part.nodes)
    yield from (f"cdi    {name}" for name in part.cdi)


def group(found: GroupExplanation) -> str:
    """The group, and each of its devices."""
    roles = [member.role for member in found.members if member.role != _OF_MDEV]
    viable = explain.viability(found.viable, roles) if roles else "an mdev's own"
    node = f"/dev/vfio/{found.number} {'is there' if found.node else 'is not there'}"
    rows = [
        (each.id, "" if each.role == _OF_MDEV else explain.means(each.role), each.fate)
        for each in found.members
    ]
    head = f"IOMMU group {found.number}  {viable}; {node}"
    return "\n".join([head, "", table(("DEVICE", "MEANS", "WHAT BECOMES OF IT"), rows, indent="  ")])
