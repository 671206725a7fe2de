# SPDX-License-Identifier: Apache-2.0
"""Compares two Decisions: the changes that another configuration makes for the kubelet and for pods. Pure.

A pod keeps its devices in any case; a pod is affected if one of its devices gets another resource or another
health. Renders no text.
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
    """A resource whose numbers of devices differ; null: the resource does not exist."""

    name: ResourceName
    before: Counted | None
    after: Counted | None


class Listed(NamedTuple):
    """The resource under which a device is listed, and the reason if it is Unhealthy."""

    resource: ResourceName
    reason: Reason | None


class DeviceChange(NamedTuple):
    """A device whose resource or health changes; null: it is not listed. ``holder``: the pod that uses it."""

    id: DeviceId
    before: Listed | None
    after: Listed | None
    holder: str | None


class Comparison(NamedTuple):
    """All differences, in the order of the resources; new resources come last."""

    resources: tuple[ResourceChange, ...]
    devices: tuple[DeviceChange, ...]

    @property
    def pods(self) -> dict[str, tuple[DeviceId, ...]]:
        """The affected pods, each with its devices that change."""
        found: dict[str, dict[DeviceId, None]] = {}
        for each in self.devices:
            if each.holder is not None:
                found.setdefault(each.holder, {})[each.id] = None
        return {pod: tuple(ids) for pod, ids in found.items()}


def compare(before: Decision, after: Decision) -> Comparison:
    """The differences between two Decisions."""
    names = tuple(dict.fromkeys((*before.resources, *after.resources)))
    pairs = [(name, before.resources.get(name), after.resources.get(name)) for name in names]
    changes = (ResourceChange(name, _count(old), _count(new)) for name, old, new in pairs)
    return Comparison(
        tuple(change for change in changes if change.before != change.after),
        tuple(_find_changes(before, after)),
    )


def _count(resource: Resource | None) -> Counted | None:
    if resource is None:
        return None
    return Counted(len(resource.devices), sum(device.healthy for device in resource.devices))


def _find_changes(before: Decision, after: Decision) -> Iterator[DeviceChange]:
    """The changes of devices; an id that moves from one resource to another is one change."""
    old, new = _list_devices(before), _list_devices(after)
    for device_id in dict.fromkeys((*old, *new)):
        removed, added = dict(old.get(device_id, {})), dict(new.get(device_id, {}))
        allocation = after.snapshot.holder(device_id)
        holder = None if allocation is None else str(allocation)
        for name in [name for name in removed if name in added]:
            was, now = removed.pop(name), added.pop(name)
            if _verdict(was) != _verdict(now):
                yield DeviceChange(device_id, _build_listed(name, was), _build_listed(name, now), holder)
        gone = [_build_listed(name, device) for name, device in removed.items()]
        fresh = [_build_listed(name, device) for name, device in added.items()]
        for place in range(max(len(gone), len(fresh))):
            one, other = (each[place] if place < len(each) else None for each in (gone, fresh))
            yield DeviceChange(device_id, one, other, holder)


def _list_devices(decision: Decision) -> dict[DeviceId, dict[ResourceName, Device]]:
    """Device id → its entry in each resource. A share of a device node may be listed in several resources,
    and a device in use in two.
    """
    found: dict[DeviceId, dict[ResourceName, Device]] = {}
    for name, resource in decision.resources.items():
        for device in resource.devices:
            found.setdefault(device.id, {})[name] = device
    return found


def _verdict(device: Device) -> str | None:
    return None if device.reason is None else device.reason.code


def _build_listed(name: ResourceName, device: Device) -> Listed:
    return Listed(name, device.reason)
