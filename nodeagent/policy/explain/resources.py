# SPDX-License-Identifier: Apache-2.0
"""A resource by its name: how many there are, who has which, and what cannot be given and why. Pure."""

from __future__ import annotations

from typing import NamedTuple

from nodeagent.model.host import Kind, kind_of_id
from nodeagent.model.ids import ResourceName
from nodeagent.model.nodes import fits
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource, Resources
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DirectRule, Rule
from nodeagent.model.status import DeviceStatus, ResourceStatus, Status
from nodeagent.policy import diagnose
from nodeagent.policy.explain import rules
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.suggestions import Suggestion, suggestions
from nodeagent.policy.offer.turn import Decision


class ListedDevice(NamedTuple):
    """A device as the kubelet is told of it, and the pod that has it by this resource."""

    id: str
    healthy: bool
    reason: Reason | None
    holder: str | None


class ResourceExplanation(NamedTuple):
    """A resource: how many there are, who has which, and what cannot be given and why.

    ``free`` is null while the kubelet was not asked, ``registered`` where no daemon was asked.
    ``possibilities`` are what could become a device of it, if it has none.
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


def explain(name: str, decision: Decision, status: Status | None = None) -> ResourceExplanation | None:
    """Return the resource of that name; None if neither a device nor a rule has it.

    ``status`` of the daemon says whether the kubelet knows the resource.
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
    )


def _list(device: Device, name: str, snapshot: Snapshot) -> ListedDevice:
    holder = snapshot.holder(device.id)
    held = holder is not None and holder.resource == name
    return ListedDevice(device.id, device.healthy, device.reason, str(holder) if held else None)


def remembered(status: Status, decision: Decision) -> Resources:
    """What the daemon lists and a Decision from scratch does not: what was served stays, maybe empty.

    :raises ValueError: if it has a reason that is not known here.
    """
    return {
        each.name: Resource(each.name, _kind(each), tuple(map(_device, each.devices)))
        for each in status.resources
        if each.name not in decision.resources
    }


def _kind(resource: ResourceStatus) -> Kind:
    """Shares of a node are never only remembered."""
    kinds = (kind_of_id(device.id) for device in resource.devices)
    return next((kind for kind in kinds if kind is not None), Kind.PCI)


def _device(told: DeviceStatus) -> Device:
    reason = (
        None if told.healthy else Reason(ReasonCode(told.reason or ""), told.message or "", told.hint or "")
    )
    return Device(told.id, reason, told.numa)


def of_node(path: str, decision: Decision) -> tuple[str, ...]:
    """The names of the resources that give a device node away."""
    rules = (rule for rule in decision.snapshot.spec.rules if isinstance(rule, DirectRule))
    return tuple(dict.fromkeys(rule.name for rule in rules if _has_node(rule, path, decision.snapshot)))


def _has_node(rule: DirectRule, path: str, snapshot: Snapshot) -> bool:
    """True if devices of the rule have the node of that path."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.has_node(rule, path, snapshot)
    return any(fits(path, entry.path) for entry in rule.entries)


def _without_devices(name: str, wanted: tuple[Rule, ...]) -> Resource | None:
    """The KubeVirt CR is for all nodes: what it names and none has is no resource here, and has a rule."""
    rule = next((rule for rule in wanted if rule.name == name), None)
    return None if rule is None else Resource(ResourceName(name), rule.kind)
