# SPDX-License-Identifier: Apache-2.0
"""What stands in a Status and is worth an Event when it begins: key → what to tell. Pure.

A device that waits for a pod to end is as it should be and is not told: that would be an Event for each start
of a virtual machine. Nor is it told that the API server is silent: when it could be written, it is over, and
all nodes would write it at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from nodeagent.agent.cluster import reasons
from nodeagent.agent.cluster.reasons import EventReason, Notice
from nodeagent.model.resource import ReasonCode
from nodeagent.model.status import DeviceStatus, HolderStatus, ResourceStatus, Status

Key = tuple[str, ...]
Facts = Mapping[Key, Notice]

DEVICE, ON_POD = "device", "pod"
CONFIGURATION = "configuration"


def facts(status: Status) -> Facts:
    """All of them; a key stands for the same thing from one Status to the next."""
    found: dict[Key, Notice] = {}
    for key, notice in (*_devices(status), *_changes(status), *_settings(status)):
        found.setdefault(key, notice)
    return found


def waits(device: DeviceStatus) -> bool:
    """True if the device becomes available when a pod ends; a removal is told, for it takes it away."""
    return device.reason == ReasonCode.GROUP_HELD


def holder(resource: str, device_id: str, status: Status) -> HolderStatus | None:
    """The pod that has this device under this resource, if its name is known."""
    found = status.holders.get(device_id)
    return found if found is not None and found.resource == resource and "/" in found.pod else None


def _devices(status: Status) -> Iterator[tuple[Key, Notice]]:
    rivals = _rivals(status)
    for resource in status.resources:
        for device in resource.devices:
            if not device.healthy:
                yield from _device(resource, device, status, rivals)


def _device(
    resource: ResourceStatus, device: DeviceStatus, status: Status, rivals: Mapping[str, frozenset[str]]
) -> Iterator[tuple[Key, Notice]]:
    """On the Node, and on the pod that has it."""
    has = holder(resource.name, device.id, status)
    shared = has is not None and len(rivals.get(device.id, ())) > 1
    if waits(device) and not shared:
        return
    conflict = shared or device.reason == ReasonCode.GROUP_NOT_VIABLE
    reason = reasons.GROUP_CONFLICT if conflict else reasons.DEVICE_UNHEALTHY
    notice = Notice(reason, f"{resource.name}: {device.id}: {device.what}", device.hint or "")
    yield (DEVICE, resource.name, device.id), notice
    if has is not None:
        yield (ON_POD, resource.name, device.id, has.pod), notice._replace(pod=has.pod)


def _rivals(status: Status) -> Mapping[str, frozenset[str]]:
    """Device → the pods that have something of its IOMMU group, under a name."""
    found: dict[str, frozenset[str]] = {}
    for group in status.groups:
        ids = [member.device for member in group.members if member.device in status.holders]
        pods = frozenset(status.holders[each].pod for each in ids if each is not None)
        found |= {each: pods for each in ids if each is not None}
    return found


def _changes(status: Status) -> Iterator[tuple[Key, Notice]]:
    changes = status.changes
    refused = {(failing.card, failing.action) for failing in changes.failing}
    for waiting in changes.waiting:
        if (waiting.card, waiting.action) in refused:
            continue  # it waits for its next try
        what = f"{waiting.card}: waiting to {waiting.action}: {waiting.why}"
        yield ("waiting", waiting.card, waiting.action), Notice(reasons.CHANGE_WAITING, what)
    for failing in changes.failing:
        notice = Notice(reasons.APPLY_FAILED, f"{failing.card}: {failing.what}", failing.hint)
        yield ("failing", failing.card, failing.type or ""), notice
    for action in changes.late:
        yield ("late", action), Notice(reasons.APPLY_FAILED, f"the kernel does not answer: {action}")
    for problem in changes.problems:
        remedy = changes.remedies.get(problem, "")
        yield ("wish", problem), Notice(_with_virt_handler(problem, reasons.WISH_UNMET), problem, remedy)


def _settings(status: Status) -> Iterator[tuple[Key, Notice]]:
    if status.configuration.error:
        what, _, rest = status.configuration.error.partition("\n")
        yield (CONFIGURATION,), Notice(reasons.CONFIGURATION_REFUSED, what, rest.partition("\n")[0])
    for line in status.cluster.doubts:
        if "KubeVirt CR" in line:
            yield ("cr", line), Notice(reasons.CR_NOT_IN_FORCE, line)
    for line in status.cluster.refused:
        yield ("wish", line), Notice(_with_virt_handler(line, reasons.CR_ENTRY_REFUSED), line)


def _with_virt_handler(line: str, other: EventReason) -> EventReason:
    """Whom a line is about is in its words alone."""
    return reasons.VIRT_HANDLER_CONFLICT if "virt-handler" in line else other
