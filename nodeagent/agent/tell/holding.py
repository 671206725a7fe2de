# SPDX-License-Identifier: Apache-2.0
"""What the log says of holders: that a pod has a device, by the kubelet's word, and that it has let go of it.

So the log answers who had a device last night. A transition is said once; what is held when the daemon starts
is one. Knows the Snapshot and what is offered; not what the kubelet's answer is worth: a holder that nobody
has a name for yet is nobody here, and takes nothing from the one before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.agent.tell import devices
from nodeagent.base import log
from nodeagent.model.allocation import Allocations
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.snapshot import Snapshot

FEW = 8  # pods of one resource at once, each of which has a line of its own
MANY = 50  # pods in one line where there are more: a node with 200 VMs starts with four lines


class ResourceDevice(NamedTuple):
    """Who has a device, and the resource under which it was given."""

    resource: ResourceName
    pod: str


class _Line(NamedTuple):
    """What a line says beside the resource."""

    text: str
    device: tuple[str, ...]
    group: tuple[str, ...]
    pod: tuple[str, ...]


Held = Mapping[str, ResourceDevice]
"""Device id → who has it."""


class HolderLines:
    """The component that says who has what since when."""

    name = "holder lines"

    def __init__(self, snapshots: Snapshots, offering: Offering) -> None:
        self._snapshots = snapshots
        self._offering = offering
        self._told: Held = {}
        self._seen: tuple[Allocations, Mapping[ResourceName, Resource]] | None = None
        self._before = snapshots.now  # what was brought to whom who has let go of it since

    async def run(self) -> None:
        """Look whenever the Snapshot or the offers have changed, for ever."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._offering.resources.follow, lambda _: self._look(), name="offers")
            seen = -1
            while True:
                seen, _ = await self._snapshots.newer(seen)
                self._look()

    def _look(self) -> None:
        now, served = self._snapshots.now, self._offering.resources.get()
        if self._seen is not None and self._seen[0] is now.allocations and self._seen[1] is served:
            return
        before, self._told = self._told, held(self._told, now.allocations, served)
        _say(_lines("let go of", _only(before, self._told), self._before), held=False)
        _say(_lines("has", _only(self._told, before), now), held=True)
        self._seen, self._before = (now.allocations, served), now


def _say(lines: Iterable[tuple[ResourceName, _Line]], *, held: bool) -> None:
    for resource, line in lines:
        log.event(
            log.DEVICE_IN_USE if held else log.DEVICE_RELEASED,
            resource=resource,
            text=line.text,
            device=line.device,
            group=line.group,
            pod=line.pod,
        )


def held(before: Held, allocations: Allocations, served: Collection[str]) -> Held:
    """Who has which device of the resources that are served: one of which something is held always is.

    A pod without a name may be the one that had it before, and is taken for that until there is a name.
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


def _lines(verb: str, changed: Held, snapshot: Snapshot) -> Iterator[tuple[ResourceName, _Line]]:
    """One for each pod and resource, or for several pods where there are many."""
    found: dict[ResourceName, dict[str, list[str]]] = {}
    for device_id, (resource, pod) in changed.items():
        found.setdefault(resource, {}).setdefault(pod, []).append(device_id)
    for resource, pods in found.items():
        for some in _parts(list(pods)):
            ids = [each for pod in some for each in pods[pod]]
            yield (
                resource,
                _Line(
                    "; ".join(f"{pod} {verb} {','.join(pods[pod])}" for pod in some),
                    (*ids, *_brought(ids, snapshot.allocations)),
                    devices.groups_of(ids, snapshot),
                    tuple(some),
                ),
            )


def _parts(pods: list[str]) -> Iterator[list[str]]:
    size = 1 if len(pods) <= FEW else MANY
    return (pods[start : start + size] for start in range(0, len(pods), size))


def _brought(ids: Collection[str], allocations: Allocations) -> Iterator[str]:
    """What came with these ids: of a bundle each function can be searched for."""
    return (each for each, holder in allocations.came_with.items() if holder.came_with in ids)
