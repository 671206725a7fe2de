# SPDX-License-Identifier: Apache-2.0
"""Keeps the CDI files in step with the resources that ask for them, and knows which could not be written.

A Resource does not show the nodes of its devices, so it may stay the same while its file must change: a
container that starts again reads it. What belongs into a file is what the newest Decision says when its turn
to be written has come: of two that want to write it, none leaves an older one behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import anyio

from nodeagent.agent.offering import Offering
from nodeagent.agent.snapshot import Snapshots
from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.kubelet import cdi
from nodeagent.model.desired import Desired
from nodeagent.model.host import Host
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.policy.offer import grants


class _Source(NamedTuple):
    """What a file is written from; the same objects make the same file."""

    resource: Resource
    host: Host
    desired: Desired

    def same(self, other: _Source | None) -> bool:
        """True if a file from this says what one from the other does."""
        return other is not None and all(one is two for one, two in zip(self, other, strict=True))


class CdiFiles:
    """The files in one directory; a file is written before its devices are announced."""

    name = "CDI files"

    def __init__(self, directory: str, snapshots: Snapshots, offering: Offering) -> None:
        self._directory = directory
        self._snapshots = snapshots
        self._offering = offering
        self._lock = anyio.Lock()
        self._written: dict[ResourceName, Mapping[str, object]] = {}
        self._errors: dict[ResourceName, str] = {}
        self._sources: dict[ResourceName, _Source] = {}  # of what is written
        self._cleaned = False

    @property
    def busy(self) -> bool:
        """True while files are written: that is as quick as their disk."""
        return self._lock.locked()

    @property
    def problems(self) -> tuple[str, ...]:
        """The files that could not be written."""
        return tuple(f"{name}: {error}" for name, error in self._errors.items())

    async def run(self) -> None:
        """Keep the files right where only nodes have changed, for ever."""
        seen, host = -1, None
        while True:
            seen, snapshot = await self._snapshots.newer(seen)
            if snapshot.host is not host:
                host = snapshot.host
                self._offering.one_turn()
                await self.follow()

    async def follow(self) -> None:
        """Write what has changed, remove what nobody offers any more."""
        async with self._lock:
            resources = self._offering.decision.resources
            wanted = [name for name, resource in resources.items() if resource.cdi]
            if not self._cleaned or self._written.keys() - set(wanted):
                await threads.call(cdi.clean, self._directory, wanted)
                self._cleaned = True
            self._written = {name: self._written[name] for name in wanted if name in self._written}
            self._errors = {name: self._errors[name] for name in wanted if name in self._errors}
            self._sources = {name: self._sources[name] for name in wanted if name in self._sources}
            for name in wanted:
                await self._bring_up(name)

    async def ensure(self, name: ResourceName, device_ids: Sequence[str]) -> None:
        """Raise Refused if the runtime could not find these devices, after one more try to write the file."""
        async with self._lock:
            await self._bring_up(name)
        if name in self._errors:
            raise Refused(
                f"{name}: {', '.join(device_ids)}: {self._errors[name]}", "make the CDI directory writable"
            )

    async def _bring_up(self, name: ResourceName) -> None:
        """Write the file until it says what the newest outcome does, which may change meanwhile."""
        while (source := self._source(name)) and not source.same(self._sources.get(name)):
            document = grants.cdi_spec(source.resource, self._offering.decision)
            if document != self._written.get(name) and not await self._write(name, document):
                self._sources.pop(name, None)
                return
            self._sources[name] = source

    def _source(self, name: ResourceName) -> _Source | None:
        decision = self._offering.decision
        resource = decision.resources.get(name)
        if resource is None or not resource.cdi:
            return None
        return _Source(resource, decision.snapshot.host, decision.snapshot.desired)

    async def _write(self, name: ResourceName, document: Mapping[str, object]) -> bool:
        try:
            await threads.call(cdi.write, self._directory, name, document)
        except KernelRefused as error:
            if name not in self._errors:
                log.event(log.CDI_FAILED, path=error.path, error=error.what, resource=name)
            self._errors[name] = error.what
            self._written.pop(name, None)
            return False
        self._errors.pop(name, None)
        self._written[name] = document
        return True
