# SPDX-License-Identifier: Apache-2.0
"""Logs when a pod starts and stops using a device, by the answers of the kubelet.

Therefore the log shows later which pod used a device at which time. Each change is logged once; devices in
use when the daemon starts count as a change. A pod whose name is not known yet is not logged: until the name
is known, the previous pod counts as the user of the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.reporting import device_log
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log
from nodeagent.model.allocation import Allocations
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot

FEW = 8  # up to this many pods of one resource get a line each
MANY = 50  # pods in one line if there are more: a node with 200 VMs starts with four lines


class ResourceDevice(NamedTuple):
    """The pod that uses a device, and the resource under which it was allocated."""

    resource: ResourceName
    pod: str


Held = Mapping[str, ResourceDevice]
"""Device id → the pod that uses it."""


class UsageLog:
    """The component that logs which pod uses which device."""

    name = "usage log"

    def __init__(self, snapshots: Snapshots, offering: Offering) -> None:
        self._snapshots = snapshots
        self._offering = offering
        self._logged: Held = {}
        self._seen: tuple[Allocations, Mapping[ResourceName, Resource]] | None = None
        self._before = snapshots.now  # the Snapshot in which released devices were still in use

    async def run(self) -> None:
        """Log whenever the Snapshot or the offered resources have changed, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._offering.resources.follow, lambda _: self._log_changes(), name="offers")
            seen = -1
            while True:
                seen, _ = await self._snapshots.newer(seen)
                self._log_changes()

    def _log_changes(self) -> None:
        now, served = self._snapshots.now, self._offering.resources.get()
        if self._seen is not None and self._seen[0] is now.allocations and self._seen[1] is served:
            return
        before, self._logged = self._logged, held(self._logged, now.allocations, served)
        if self._logged != before:
            _log(_only(before, self._logged), self._before, in_use=False)
            _log(_only(self._logged, before), now, in_use=True)
        self._seen, self._before = (now.allocations, served), now


def held(before: Held, allocations: Allocations, served: Collection[str]) -> Held:
    """Return the pod that uses each device of the served resources.

    A pod of unknown name may be the previous user of the device, and counts as that pod until its name is
    known.
    """
    now: dict[str, ResourceDevice] = {}
    for device_id, holder in allocations.holders.items():
        if holder.named and holder.resource in served:
            now[device_id] = ResourceDevice(holder.resource, str(holder))
        elif not holder.named and device_id in before:
            now[device_id] = before[device_id]
    return now


def _only(these: Held, others: Held) -> Held:
    return {each: possession for each, possession in these.items() if others.get(each) != possession}


def _log(changed: Held, snapshot: Snapshot, *, in_use: bool) -> None:
    """Log one line for each pod and resource; if there are many pods, log one line for several pods."""
    found: dict[ResourceName, dict[str, list[str]]] = {}
    for device_id, (resource, pod) in changed.items():
        found.setdefault(resource, {}).setdefault(pod, []).append(device_id)
    verb = "uses" if in_use else "no longer uses"
    for resource, pods in found.items():
        for some in _parts(list(pods)):
            ids = [each for pod in some for each in pods[pod]]
            log.event(
                log.DEVICE_IN_USE if in_use else log.DEVICE_RELEASED,
                resource=resource,
                text="; ".join(f"{pod} {verb} {','.join(pods[pod])}" for pod in some),
                device=(*ids, *_brought(ids, snapshot.allocations)),
                group=device_log.groups_of(ids, snapshot),
                pod=tuple(some),
            )


def _parts(pods: list[str]) -> Iterator[list[str]]:
    size = 1 if len(pods) <= FEW else MANY
    return (pods[start : start + size] for start in range(0, len(pods), size))


def _brought(ids: Collection[str], allocations: Allocations) -> Iterator[str]:
    """The devices that were allocated together with these ids, such as the functions of a bundle."""
    return (each for each, holder in allocations.came_with.items() if holder.came_with in ids)
