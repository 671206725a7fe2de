# SPDX-License-Identifier: Apache-2.0
"""Releases of devices: those that are awaited, and those of a moment ago.

Closing a device raises no event. While a release is awaited, ``agent.usage`` asks the kubelet more often, and
the component ``Releases`` has the host scanned and the processes probed. A device that was released a moment
ago may still be open: the kubelet forgets a pod that is deleted by force 2.5 s before its container ends.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import anyio

from nodeagent.base.latest import Latest
from nodeagent.config import Settings
from nodeagent.model.allocation import Allocations
from nodeagent.model.host import HostDevice


class Rescans(Protocol):
    """Reads devices again that may have been released."""

    async def refresh(self, ids: Collection[str]) -> None:
        """Read those of these ids again that it knows, and wait for it, but not long."""
        ...


class Releases:
    """The ids whose release is awaited, and by which component; the component that polls them."""

    name = "releases"

    def __init__(self, settings: Latest[Settings]) -> None:
        self.awaited: Latest[frozenset[str]] = Latest(frozenset())
        self.began: Latest[None] = Latest(None)  # touched when a component waits that did not
        self._settings = settings
        self._by: dict[str, frozenset[str]] = {}
        self._rescans: tuple[Rescans, ...] = ()

    def wait_for(self, ids: frozenset[str], by: str) -> None:
        """The component ``by`` waits for the release of these now, and of no others."""
        before, self._by[by] = self._by.get(by), ids
        self.awaited.set(frozenset().union(*self._by.values()))
        if ids and not before:
            self.began.touch()

    def look_with(self, rescans: Rescans) -> None:
        """Have this one read the awaited ids again, too."""
        self._rescans = (*self._rescans, rescans)

    async def run(self) -> None:
        """Poll while a release is awaited, for ever."""
        seen = -1
        while True:
            if self.awaited.get():
                await anyio.sleep(self._settings.get().timing.holders)
                for each in self._rescans:
                    await each.refresh(self.awaited.get())
            else:
                seen, _ = await self.awaited.newer(seen)


class RecentReleases:
    """When a pod was last known to have a device that no pod has now."""

    def __init__(self, container_end: float) -> None:
        """``container_end``: seconds for a container to end whose pod the kubelet has forgotten."""
        self._container_end = container_end
        self._since: dict[str, float] = {}

    def note(self, before: Allocations, now: Allocations, at: float) -> None:
        """Compare two tables: released are ids, the groups that came with them, nodes and CDI names."""
        ids = {each for each, _ in before.held()} - {each for each, _ in now.held()}
        ids |= before.came_with.keys() - now.came_with.keys()
        groups = {str(group) for each in ids for group in before.groups.get(each, ())}
        answers = {
            each
            for device_id, holder in before.held()
            if now.holder_of(holder.resource, device_id) is None
            for each in (device_id, *before.answer(holder.resource, device_id))
        }
        self._since = {each: self._since[each] for each in self.at(at)}
        self._since |= dict.fromkeys((*ids, *groups, *answers), at)

    def renew(self, device_id: str, at: float) -> None:
        """The device was seen open: it may be so for as long again."""
        self._since[device_id] = at

    def at(self, now: float) -> frozenset[str]:
        """The ids, numbers of groups, nodes and CDI names that a container may still have open."""
        return frozenset(each for each, since in self._since.items() if now < since + self._container_end)

    def has(self, host_device: HostDevice, now: float) -> bool:
        """True if a pod had the device, or its whole group, until a moment ago."""
        return not self.at(now).isdisjoint((host_device.id, str(host_device.group)))
