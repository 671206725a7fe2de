# SPDX-License-Identifier: Apache-2.0
"""Two Decisions side by side: what another configuration would change for the kubelet and for pods. Pure.

Knows neither configuration nor words for people. A pod keeps what it has whatever changes; so the pods that a
change touches are those that hold a device which is listed otherwise then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import Device, Reason, Resource
from nodeagent.policy.offer.turn import Decision


class Counted(NamedTuple):
    """How many devices a resource has, and how many of them are Healthy."""

    devices: int
    healthy: int


class ResourceChange(NamedTuple):
    """A resource whose numbers differ; null: there is no such resource."""

    name: ResourceName
    before: Counted | None
    after: Counted | None


class Listed(NamedTuple):
    """Under which resource a device is listed, and why it is Unhealthy, if it is."""

    resource: ResourceName
    reason: Reason | None


class DeviceChange(NamedTuple):
    """A device that is listed otherwise; null: it is not listed. ``holder`` is the pod that has it now."""

    id: DeviceId
    before: Listed | None
    after: Listed | None
    holder: str | None


class Comparison(NamedTuple):
    """All that differs, in the order of the resources, the new ones last."""

    resources: tuple[ResourceChange, ...]
    devices: tuple[DeviceChange, ...]

    @property
    def pods(self) -> dict[str, tuple[DeviceId, ...]]:
        """The pods that are touched, each with its devices that are listed otherwise."""
        found: dict[str, dict[DeviceId, None]] = {}
        for each in self.devices:
            if each.holder is not None:
                found.setdefault(each.holder, {})[each.id] = None
        return {pod: tuple(ids) for pod, ids in found.items()}


def compared(before: Decision, after: Decision) -> Comparison:
    """What differs from one to the other."""
    names = tuple(dict.fromkeys((*before.resources, *after.resources)))
    pairs = [(name, before.resources.get(name), after.resources.get(name)) for name in names]
    changes = (ResourceChange(name, _counted(old), _counted(new)) for name, old, new in pairs)
    return Comparison(
        tuple(change for change in changes if change.before != change.after),
        tuple(_changes(before, after)),
    )


def _counted(resource: Resource | None) -> Counted | None:
    if resource is None:
        return None
    return Counted(len(resource.devices), sum(device.healthy for device in resource.devices))


def _changes(before: Decision, after: Decision) -> Iterator[DeviceChange]:
    """An id that leaves one resource and comes to another is one change."""
    old, new = _listed(before), _listed(after)
    for device_id in dict.fromkeys((*old, *new)):
        left, came = dict(old.get(device_id, {})), dict(new.get(device_id, {}))
        allocation = after.snapshot.holder(device_id)
        holder = None if allocation is None else str(allocation)
        for name in [name for name in left if name in came]:
            was, now = left.pop(name), came.pop(name)
            if _verdict(was) != _verdict(now):
                yield DeviceChange(device_id, _of(name, was), _of(name, now), holder)
        gone = [_of(name, device) for name, device in left.items()]
        fresh = [_of(name, device) for name, device in came.items()]
        for place in range(max(len(gone), len(fresh))):
            one, other = (each[place] if place < len(each) else None for each in (gone, fresh))
            yield DeviceChange(device_id, one, other, holder)


def _listed(decision: Decision) -> dict[DeviceId, dict[ResourceName, Device]]:
    """Shares of one node may be listed by several resources, and what a pod holds by two."""
    found: dict[DeviceId, dict[ResourceName, Device]] = {}
    for name, resource in decision.resources.items():
        for device in resource.devices:
            found.setdefault(device.id, {})[name] = device
    return found


def _verdict(device: Device) -> str | None:
    return None if device.reason is None else device.reason.code


def _of(name: ResourceName, device: Device) -> Listed:
    return Listed(name, device.reason)
