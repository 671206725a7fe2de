# SPDX-License-Identifier: Apache-2.0
"""Logs the changes of devices that DRA advertises; ``agent.device_plugins`` logs those of device plugins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nodeagent.agent.offering import Offering
from nodeagent.agent.reporting import device_log
from nodeagent.base import log
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource, Via


async def follow(offering: Offering) -> None:
    """Log whenever a resource by DRA has changed, for ever."""
    seen, before = -1, dict[ResourceName, Resource]()
    while True:
        seen, _ = await offering.resources.newer(seen)
        before = _log_changes(before, offering)


def _log_changes(before: Mapping[ResourceName, Resource], offering: Offering) -> dict[ResourceName, Resource]:
    """Log the changes since ``before``; return the resources by DRA."""
    resources, of_plugins = offering.resources.get(), offering.of_plugins.get()
    now = {
        name: _without_devices_of(of_plugins.get(name), resource)
        for name, resource in resources.items()
        if resource.via is Via.DRA
    }
    for name, resource in now.items():
        if name not in before:
            log.event(log.RESOURCE_ADDED, resource=name, devices=len(resource.devices))
        device_log.changes(before.get(name), resource, offering.decision)
    for name in before.keys() - now.keys():
        cause = device_log.successors(before[name], offering.decision)
        log.event(log.RESOURCE_REMOVED, resource=name, cause=cause)
    return now


def _without_devices_of(listed: Resource | None, resource: Resource) -> Resource:
    """The resource without the devices that its device plugin still lists."""
    if listed is None:
        return resource
    return replace(resource, devices=tuple(each for each in resource.devices if each not in listed.devices))
