# SPDX-License-Identifier: Apache-2.0
"""Which devices of a resource the device plugin lists if the resource moves to DRA, or back. Pure.

A device is advertised through one API at any time. If the rule of a device in use moves to the other API, the
device stays where its pod got it, as Unhealthy (``health.explain_other_resource``), until it is released. The
device plugin of a resource that moved to DRA remains registered while pods use its devices: if it ended, the
kubelet would start no pod that gets this resource from DRA (seen on 1.36.3), and a device in use that
disappears from the list can crash the kubelet (seen on 1.36.2). ``agent.offering`` calls this module.
"""

from __future__ import annotations

from dataclasses import replace

from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource, Resources, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.offer.turn import Decision


def list_for_plugins(decision: Decision, before: Resources) -> Resources:
    """The resources with the devices that device plugins list; equal ones are the objects of ``before``."""
    if all(resource.via is Via.DEVICE_PLUGIN for resource in decision.resources.values()):
        return decision.resources
    result: dict[ResourceName, Resource] = {}
    for name, resource in decision.resources.items():
        listed = resource
        if resource.via is Via.DRA:
            listed = _keep_devices_of_pods(resource, decision.snapshot)
            if not listed.devices:
                continue
        result[name] = before[name] if before.get(name) == listed else listed
    return result


def _keep_devices_of_pods(resource: Resource, snapshot: Snapshot) -> Resource:
    """The resource with the devices only that pods got from its device plugin."""
    holders = ((device, snapshot.holder(device.id)) for device in resource.devices)
    kept = (
        device
        for device, holder in holders
        if holder is not None and not holder.claim and holder.resource == resource.name
    )
    return replace(resource, devices=tuple(kept))
