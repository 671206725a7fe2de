# SPDX-License-Identifier: Apache-2.0
"""Keeps the CDI files in step with the resources that ask for them, and knows which could not be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nodeagent.base import log, threads
from nodeagent.base.errors import KernelRefused, Refused
from nodeagent.kubelet import cdi
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.policy import allocate
from nodeagent.policy.turn import Outcome


class CdiFiles:
    """The files in one directory; a file is written before its devices are announced."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._written: dict[ResourceName, Mapping[str, object]] = {}
        self._errors: dict[ResourceName, str] = {}
        self._cleaned = False

    @property
    def problems(self) -> tuple[str, ...]:
        """The files that could not be written."""
        return tuple(f"{name}: {error}" for name, error in self._errors.items())

    async def follow(self, resources: Mapping[ResourceName, Resource], outcome: Outcome) -> None:
        """Write what has changed, remove what nobody offers any more."""
        wanted = {name: resource for name, resource in resources.items() if resource.cdi}
        if not self._cleaned or self._written.keys() - wanted.keys():
            await threads.call(cdi.clean, self._directory, tuple(wanted))
            self._cleaned = True
        self._written = {name: document for name, document in self._written.items() if name in wanted}
        for name, resource in wanted.items():
            document = allocate.cdi_spec(resource, outcome)
            if document != self._written.get(name):
                await self._write(name, document)

    async def _write(self, name: ResourceName, document: Mapping[str, object]) -> None:
        try:
            await threads.call(cdi.write, self._directory, name, document)
        except KernelRefused as error:
            if name not in self._errors:
                log.event(log.CDI_FAILED, path=error.path, error=error.what)
            self._errors[name] = error.what
            self._written.pop(name, None)
        else:
            self._errors.pop(name, None)
            self._written[name] = document

    async def ensure(self, resource: Resource, device_ids: Sequence[str], outcome: Outcome) -> None:
        """Raise Refused if the runtime could not find these devices, after one more try to write the file."""
        if resource.name in self._errors:
            await self._write(resource.name, allocate.cdi_spec(resource, outcome))
        if resource.name in self._errors:
            raise Refused(
                f"{resource.name}: {', '.join(device_ids)}: {self._errors[resource.name]}",
                "make the CDI directory writable",
            )
