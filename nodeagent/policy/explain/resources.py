# SPDX-License-Identifier: Apache-2.0
"""A resource by its name: how many there are, who has which, and what cannot be given and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nodeagent.model.desired import DirectRule, Rule
from nodeagent.model.host import Kind
from nodeagent.model.ids import ResourceName, mdev_uuid, usb_id
from nodeagent.model.resource import Device, Reason, ReasonCode, Resource, Resources
from nodeagent.model.status import DeviceStatus, ResourceStatus, Status
from nodeagent.policy.explain import rules
from nodeagent.policy.explain.rules import RuleExplanation
from nodeagent.policy.explain.suggestions import Suggestion, suggestions
from nodeagent.policy.offer import direct
from nodeagent.policy.offer.turn import Decision


@dataclass(frozen=True, slots=True)
class ResourceExplanation:
    """A resource, its rules, and device → pod, by this resource.

    ``known`` False: the kubelet was not asked, so no device is known to be free. ``suggestions`` are what
    could become a device of it, where it has none.
    """

    resource: Resource
    rules: tuple[RuleExplanation, ...]
    holders: Mapping[str, str]
    known: bool
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def capacity(self) -> int:
        """How many the kubelet is told of."""
        return len(self.resource.devices)

    @property
    def allocatable(self) -> int:
        """How many of them are Healthy."""
        return sum(device.healthy for device in self.resource.devices)

    @property
    def free(self) -> tuple[str, ...] | None:
        """Those that could be given now; None if that is not known."""
        devices = self.resource.devices
        free = tuple(each.id for each in devices if each.healthy and each.id not in self.holders)
        return free if self.known else None

    @property
    def unhealthy(self) -> tuple[Device, ...]:
        """Those that cannot be given."""
        return tuple(device for device in self.resource.devices if not device.healthy)


def explain(name: str, decision: Decision) -> ResourceExplanation | None:
    """The resource of that name; None if neither a device nor a rule has it."""
    snapshot = decision.snapshot
    resource = decision.resources.get(ResourceName(name)) or _without_devices(name, snapshot.desired.rules)
    if resource is None:
        return None
    found = ((device.id, snapshot.holder(device.id)) for device in resource.devices)
    holders: dict[str, str] = {
        each: str(holder) for each, holder in found if holder and holder.resource == name
    }
    return ResourceExplanation(
        resource,
        rules.named(name, decision),
        holders,
        snapshot.allocations.answered,
        () if resource.devices else suggestions(name, snapshot),
    )


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
    ids = [device.id for device in resource.devices]
    if any(usb_id(each) for each in ids):
        return Kind.USB
    return Kind.MDEV if any(mdev_uuid(each) for each in ids) else Kind.PCI


def _device(told: DeviceStatus) -> Device:
    reason = None if told.healthy else Reason(ReasonCode(told.reason or ""), told.what or "", told.hint or "")
    return Device(told.id, reason, told.numa)


def of_node(path: str, decision: Decision) -> tuple[str, ...]:
    """The names of the resources that give a device node away."""
    desired = decision.snapshot.desired
    rules = (rule for rule in desired.rules if isinstance(rule, DirectRule))
    return tuple(rule.name for rule in rules if direct.of(rule).names(rule, path, decision.snapshot))


def _without_devices(name: str, wanted: tuple[Rule, ...]) -> Resource | None:
    """The KubeVirt CR is for all nodes: what it names and none has is no resource here, and has a rule."""
    rule = next((rule for rule in wanted if rule.name == name), None)
    return None if rule is None else Resource(ResourceName(name), rule.kind)
