# SPDX-License-Identifier: Apache-2.0
"""Explains a resource: its devices, the pods that use them, and why a device is not available. Pure."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.host import Kind, kind_of_id
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import fits
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource, Resources, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DirectRule, Rule
from nodeagent.model.status import DeviceStatus, ResourceStatus, Status
from nodeagent.policy import diagnose
from nodeagent.policy.explain import rules
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.suggestions import Suggestion, suggestions
from nodeagent.policy.offer.turn import Decision


class ListedDevice(NamedTuple):
    """A device as listed to the kubelet, and the pod that uses it as a device of this resource."""

    id: str
    healthy: bool
    reason: Reason | None
    holder: str | None


class ResourceExplanation(NamedTuple):
    """A resource: how many devices it has, which pods use them, and why some are Unhealthy.

    ``free`` is null if the kubelet was not queried, ``registered`` if no daemon answered. ``possibilities``:
    devices that could be offered under this name, if it has none.
    """

    resource: str
    device_kind: str
    capacity: int
    allocatable: int
    free: int | None
    registered: bool | None
    registration_error: str | None
    devices: tuple[ListedDevice, ...]
    rules: tuple[RuleExplanation, ...]
    possibilities: tuple[Suggestion, ...]
    via: Via = Via.DEVICE_PLUGIN


def explain(name: str, decision: Decision, status: Status | None = None) -> ResourceExplanation | None:
    """Return the resource with that name; None if no device and no rule has this resource name.

    ``status`` is the Status of the daemon, which shows whether the resource is registered with the kubelet.
    """
    snapshot = decision.snapshot
    resource = decision.resources.get(ResourceName(name)) or _without_devices(name, snapshot.spec.rules)
    if resource is None:
        return None
    served = (each for each in (status.resources if status else ()) if each.name == name)
    registered, error = next(
        ((each.registered, each.error or diagnose.describe_other_plugin(each) or None) for each in served),
        (None, None),
    )
    devices = tuple(_list(device, name, snapshot) for device in resource.devices)
    free = sum(device.healthy and device.holder is None for device in devices)
    return ResourceExplanation(
        name,
        resource.kind,
        len(devices),
        sum(device.healthy for device in devices),
        free if snapshot.allocations.answered else None,
        registered,
        error,
        devices,
        rules.named(name, decision),
        () if devices else suggestions(name, snapshot),
        resource.via,
    )


def _list(device: Device, name: str, snapshot: Snapshot) -> ListedDevice:
    holder = snapshot.holder(device.id)
    held = holder is not None and holder.resource == name
    return ListedDevice(device.id, device.healthy, device.reason, str(holder) if held else None)


def remembered(status: Status, decision: Decision) -> Resources:
    """The resources without devices that the daemon still lists, although a Decision from scratch has no such
    resource.

    :raises ValueError: if it has an unknown Reason code.
    """
    return {
        each.name: Resource(each.name, _kind(each), tuple(map(_device, each.devices)))
        for each in status.resources
        if each.name not in decision.resources
    }


def _kind(resource: ResourceStatus) -> Kind:
    """The kind of the devices, by the form of their ids; callers exclude shares of a device node."""
    kinds = (kind_of_id(device.id) for device in resource.devices)
    return next((kind for kind in kinds if kind is not None), Kind.PCI)


def _device(told: DeviceStatus) -> Device:
    reason = (
        None if told.healthy else Reason(ReasonCode(told.reason or ""), told.message or "", told.hint or "")
    )
    return Device(told.id, reason, told.numa)


def of_node(path: str, decision: Decision) -> tuple[str, ...]:
    """The names of the resources that offer the device node."""
    rules = (rule for rule in decision.snapshot.spec.rules if isinstance(rule, DirectRule))
    return tuple(dict.fromkeys(rule.name for rule in rules if _has_node(rule, path, decision.snapshot)))


def _has_node(rule: DirectRule, path: str, snapshot: Snapshot) -> bool:
    """True if the rule offers the device node with that path."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.has_node(rule, path, snapshot)
    return any(fits(path, entry.path) for entry in rule.entries)


def _without_devices(name: str, wanted: tuple[Rule, ...]) -> Resource | None:
    """A resource without devices, for a rule whose devices this node lacks."""
    rule = next((rule for rule in wanted if rule.name == name), None)
    if rule is None:
        return None
    via = Via.DEVICE_PLUGIN if isinstance(rule, DirectRule) else rule.via
    return Resource(ResourceName(name), rule.kind, via=via)
