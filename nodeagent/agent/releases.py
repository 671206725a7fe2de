# SPDX-License-Identifier: Apache-2.0
"""Releases of devices: the ids whose release is awaited, and the devices that were released a moment ago.

Closing a device causes no event. While a release is awaited, ``agent.usage`` queries the kubelet more often,
and the component ``Releases`` polls the host and the open files of processes. A device that was released a
moment ago may still be open: the kubelet drops a force-deleted pod 2.5 s before its container ends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import anyio

from nodeagent.base.latest import Latest
from nodeagent.config import Settings
from nodeagent.model.allocation import Allocations
from nodeagent.model.host import HostDevice


class DeviceReader(Protocol):
    """Reads again whether devices were released: from the host, or from the open files of processes."""

    async def refresh(self, ids: Collection[str]) -> None:
        """Read the devices with these ids again, if known, and wait a limited time for the result."""
        ...


class Releases:
    """Holds the device ids whose release is awaited, by waiting component, and polls these devices."""

    name = "releases"

    def __init__(self, settings: Latest[Settings]) -> None:
        self.awaited: Latest[frozenset[str]] = Latest(frozenset())
        self._settings = settings
        self._by: dict[str, frozenset[str]] = {}
        self._readers: tuple[DeviceReader, ...] = ()

    def wait_for(self, ids: frozenset[str], by: str) -> None:
        """Set the device ids whose release the component ``by`` awaits; these replace its earlier ids."""
        self._by[by] = ids
        self.awaited.set(frozenset().union(*self._by.values()))

    def add_reader(self, reader: DeviceReader) -> None:
        """Add a reader, which is called at each poll."""
        self._readers = (*self._readers, reader)

    async def run(self) -> None:
        """Poll while a release is awaited, for ever."""
        seen = -1
        while True:
            if self.awaited.get():
                await anyio.sleep(self._settings.get().timing.holders)
                for each in self._readers:
                    await each.refresh(self.awaited.get())
            else:
                seen, _ = await self.awaited.newer(seen)


class RecentReleases:
    """The devices that were released a moment ago, each with the time of its release."""

    def __init__(self, container_end: float) -> None:
        """``container_end``: seconds until the container of a force-deleted pod has ended."""
        self._container_end = container_end
        self._since: dict[str, float] = {}

    def add(self, before: Allocations, now: Allocations, at: float) -> None:
        """Add the ids, groups, nodes and CDI names that are allocated in ``before`` but not in ``now``."""
        ids = {each for each, _ in before.held()} - {each for each, _ in now.held()}
        ids |= before.came_with.keys() - now.came_with.keys()
        groups = {str(group) for each in ids for group in before.groups.get(each, ())}
        answers = {
            each
            for device_id, holder in before.held()
            if now.holder_of(holder.resource, device_id) is None
            for each in (device_id, *before.answer(holder.resource, device_id))
        }
        self._since = {each: self._since[each] for each in self.find_recent(at)}
        self._since |= dict.fromkeys((*ids, *groups, *answers), at)

    def restart(self, device_id: str, at: float) -> None:
        """Set the release time of a device that is still open to ``at``."""
        self._since[device_id] = at

    def find_recent(self, now: float) -> frozenset[str]:
        """The ids, group numbers, device nodes and CDI names that a container may still have open."""
        return frozenset(each for each, since in self._since.items() if now < since + self._container_end)

    def is_recent(self, host_device: HostDevice, now: float) -> bool:
        """True if a pod used the device, or its whole IOMMU group, until a moment ago."""
        return not self.find_recent(now).isdisjoint((host_device.id, str(host_device.group)))
