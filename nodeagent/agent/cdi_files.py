# SPDX-License-Identifier: Apache-2.0
"""Writes a CDI file for each resource that needs one, and reports the files that could not be written.

A CDI file must name the current device nodes, because a restarted container reads the file again. The
Resource does not contain the device nodes, so the file may change while the Resource stays equal. Each write
uses the newest Decision at that moment, so no write replaces a file by an older one. Devices that no resource
offers any more, but that a pod still uses, stay in one separate file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import AllocationRefused, KernelRefused
from nodeagent.kubelet import cdi
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.problem import Problem, ProblemCode, wrong
from nodeagent.model.resource import Resource
from nodeagent.model.spec import Spec
from nodeagent.policy.offer import grants

_Entries = Mapping[str, cdi.Entry]  # by the name of the device
_HELD = ResourceName("held")  # the name of the file for devices in use that no resource offers any more


class _Source(NamedTuple):
    """The inputs of one CDI file; if the objects are the same, the file is the same."""

    resource: Resource
    host: Host
    spec: Spec

    def same(self, other: _Source | None) -> bool:
        """True if both inputs result in the same CDI file."""
        return other is not None and all(one is two for one, two in zip(self, other, strict=True))


class CdiFiles:
    """Writes the CDI files of one directory, each before the kubelet gets the device list of its resource."""

    name = "CDI files"

    def __init__(self, directory: str, snapshots: Snapshots, offering: Offering) -> None:
        self._directory = directory
        self._snapshots = snapshots
        self._offering = offering
        self._lock = anyio.Lock()
        self._written: dict[ResourceName, _Entries] = {}  # the contents of the files, as far as known
        self._stamps: dict[ResourceName, cdi.Stamp | None] = {}  # stamps of files that this daemon wrote
        self._errors: dict[ResourceName, KernelRefused] = {}
        self._sources: dict[ResourceName, _Source] = {}  # the inputs of the files as written
        self._left: _Entries | None = None  # of no resource any more; None: directory not read
        self._stale = True  # there may be files to delete

    @property
    def busy(self) -> bool:
        """True while CDI files are being written, which takes long on a slow disk."""
        return self._lock.locked()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The CDI files that could not be written, each as a Problem."""
        return tuple(
            wrong(ProblemCode.CDI_FILE, name, f"{name}: {error.what}; {error.hint}")
            for name, error in self._errors.items()
        )

    async def run(self) -> None:
        """Rewrite the CDI files when device nodes have changed but no Resource has, for ever."""
        seen, host, allocations = -1, None, None
        while True:
            seen, snapshot = await self._snapshots.newer(seen)
            if snapshot.host is not host or (self._left and snapshot.allocations is not allocations):
                host, allocations = snapshot.host, snapshot.allocations
                self._offering.one_turn()
                await self.follow()

    async def follow(self) -> None:
        """Write the CDI files that have changed, and delete the files of resources that no longer exist."""
        async with self._lock:
            resources = self._offering.decision.resources
            wanted = [name for name, resource in resources.items() if resource.cdi]
            if self._left is None:
                found = await threads.call(cdi.entries, self._directory)
                self._written = {name: found.pop(cdi.file_name(name), {}) for name in wanted}
                self._leave(*found.values())
            for name in {*self._written, *self._errors}.difference(wanted, [_HELD]):
                self._leave(self._written.get(name, {}))
                self._forget(name)
            for name in wanted:
                await self._bring_up(name)
            await self._keep_held()
            if self._stale and _HELD not in self._errors:  # the old file may name a device in use
                await threads.call(cdi.clean, self._directory, {*wanted, *self._written})
                self._stale = False

    async def ensure(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """Write the CDI file again if another program has deleted or replaced it.

        :raises AllocationRefused: if the container runtime could not find these devices.
        """
        async with self._lock:
            if await threads.call(cdi.stamp, self._directory, name) != self._stamps.get(name):
                self._stamps.pop(name, None)
                self._sources.pop(name, None)
            await self._bring_up(name)
        if error := self._errors.get(name):
            raise AllocationRefused(f"{name}: {', '.join(device_ids)}: {error.what}", error.hint)

    async def _bring_up(self, name: ResourceName) -> None:
        """Write the CDI file until it matches the newest Decision, which may change during a write."""
        while (source := self._source(name)) and not source.same(self._sources.get(name)):
            entries = grants.cdi_entries(source.resource, self._offering.decision)
            before = self._written.get(name, {})
            if name not in self._stamps or entries != before:
                if not await self._write(name, entries):
                    self._sources.pop(name, None)
                    return
                self._leave(before)
            self._errors.pop(name, None)
            self._sources[name] = source

    def _leave(self, *entries: _Entries) -> None:
        """Keep entries that are in no resource's CDI file any more: a pod may use such a device."""
        left = dict(self._left or {})
        for each in entries:
            left.update(each)
        self._left = left

    async def _keep_held(self) -> None:
        """Write the separate file for devices in use that are in no resource's CDI file any more."""
        snapshot = self._offering.decision.snapshot
        listed = [entries for name, entries in self._written.items() if name != _HELD]
        left = {
            device_id: entry
            for device_id, entry in (self._left or {}).items()
            if snapshot.holder(device_id) is not None and not any(device_id in each for each in listed)
        }
        self._left = left
        if left and left != self._written.get(_HELD):
            await self._write(_HELD, left)
        elif not left and (_HELD in self._written or _HELD in self._errors):
            self._forget(_HELD)

    def _forget(self, name: ResourceName) -> None:
        """Forget the CDI file of this resource, so that the file is deleted."""
        self._written.pop(name, None)
        self._sources.pop(name, None)
        self._stamps.pop(name, None)
        self._errors.pop(name, None)
        self._stale = True

    def _source(self, name: ResourceName) -> _Source | None:
        decision = self._offering.decision
        resource = decision.resources.get(name)
        if resource is None or not resource.cdi:
            return None
        return _Source(resource, decision.snapshot.host, decision.snapshot.spec)

    async def _write(self, name: ResourceName, entries: _Entries) -> bool:
        document = grants.cdi_spec(entries)
        try:
            self._stamps[name] = await threads.call(cdi.write, self._directory, name, document)
        except KernelRefused as error:
            if name not in self._errors:
                log.event(log.CDI_FAILED, path=error.path, error=error.what, resource=name, hint=error.hint)
            self._errors[name] = error
            return False
        self._errors.pop(name, None)
        self._written[name] = entries
        return True
