# SPDX-License-Identifier: Apache-2.0
"""Runs one device plugin per resource: starts it, updates its device list, and ends it.

If a plugin fails, its supervisor restarts it; the others continue. ``agent.allocate`` answers the requests of
the kubelet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from nodeagent.agent.allocate import Allocator
from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.offering import Offering
from nodeagent.agent.reporting import device_log
from nodeagent.agent.usage import Usage
from nodeagent.base import log, process
from nodeagent.base.errors import AllocationRefused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.device_plugin import Answers, DeviceList
from nodeagent.kubelet.endpoint import Endpoint, RegistrationState
from nodeagent.model.allocation import Grant
from nodeagent.model.ids import ResourceName
from nodeagent.model.resource import Resource
from nodeagent.model.status import AllocationsStatus, Durations, ResourceStatus

CreateEndpoint = Callable[[str, DeviceList, Answers, Latest[None]], Endpoint]
"""Creates an Endpoint from a resource, its list, its answers, and a cell for changes of the registration."""


class ResourceAnswers:
    """Answers the kubelet's requests for one resource."""

    def __init__(
        self,
        name: ResourceName,
        offering: Offering,
        allocator: Allocator,
        usage: Usage,
        devices: DeviceList,
    ) -> None:
        self._name = name
        self._offering = offering
        self._allocator = allocator
        self._usage = usage
        self._devices = devices

    @property
    def preferring(self) -> bool:
        """True if the kubelet should call GetPreferredAllocation: not for equal shares of a device node."""
        return not self._offering.decision.resource(self._name).direct

    async def allocate(self, device_ids: Sequence[str]) -> Grant:
        """Return the Allocate response (grant) for one container.

        :raises AllocationRefused: with the Reason, which the device list shows by then.
        """
        try:
            grant = await self._allocator.allocate(self._name, device_ids)
        except AllocationRefused as refusal:
            resource = self._offering.of_plugin(self._name)
            self._devices.update(resource.devices)
            device_log.refused(resource, device_ids, refusal, self._offering.snapshots.now)
            raise
        resource = self._offering.decision.resource(self._name)
        device_log.allocated(resource, device_ids, self._offering.snapshots.now)
        return grant

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred devices."""
        return await self._allocator.prefer(self._name, available, must, size)

    async def ready(self) -> None:
        """Wait a limited time for the first answer of PodResources, which the device list depends on."""
        await self._usage.ready()
        self._offering.one_turn()
        self._devices.update(self._offering.of_plugin(self._name).devices)


@dataclass(slots=True)
class _Running:
    """A running Endpoint, the scope that cancels it, and the Resource that it advertises."""

    endpoint: Endpoint
    scope: anyio.CancelScope
    resource: Resource


class DevicePlugins:
    """All device plugins. ``run`` follows the offered Resources until it is cancelled."""

    name = "plugins"

    def __init__(
        self,
        offering: Offering,
        allocator: Allocator,
        usage: Usage,
        cdi: CdiFiles,
        supervisor: Supervisor,
        create_endpoint: CreateEndpoint,
        timeouts: Timeouts,
    ) -> None:
        self.states: Latest[None] = Latest(None)  # touched when the registration of a resource changes
        self._offering = offering
        self._allocator = allocator
        self._usage = usage
        self._cdi = cdi
        self._supervisor = supervisor
        self._create_endpoint = create_endpoint
        self._timeouts = timeouts
        self._running: dict[ResourceName, _Running] = {}
        self._ended: dict[ResourceName, anyio.Event] = {}  # resource → set when its last endpoint has ended

    @property
    def endpoints(self) -> Mapping[ResourceName, Endpoint]:
        """The endpoints by resource."""
        return {name: running.endpoint for name, running in self._running.items()}

    @property
    def status(self) -> tuple[ResourceStatus, ...]:
        """The state of each resource and of its registration with the kubelet."""
        endpoints, tally, registered = self.endpoints, self._allocator.tally, self._usage.registered
        resources = self._offering.resources.get().values()
        return tuple(
            _status(
                resource,
                endpoints.get(resource.name),
                tally.of(resource.name),
                registered.get(resource.name, ()),
            )
            for resource in resources
        )

    @property
    def allocating(self) -> Durations:
        """The durations of the Allocate calls of all resources."""
        return self._allocator.tally.durations

    async def run(self) -> None:
        """Follow the offered Resources, for ever. Resources with CDI files have a separate task, which may
        hang.
        """

        async def keep(cdi: bool) -> None:
            seen = -1
            while True:
                seen, resources = await self._offering.of_plugins.newer(seen)
                await self._follow(resources, cdi, group)

        async with anyio.create_task_group() as group:
            group.start_soon(self._collect_connections, name="memory of connections")
            try:
                group.start_soon(keep, True, name=f"{self.name} with CDI files")
                await keep(False)
            finally:
                for name in tuple(self._running):
                    self._end(name)

    def shorten_grace(self, grace: float) -> None:
        """When an Endpoint ends, wait at most ``grace`` seconds for a running Allocate from now on."""
        for endpoint in self.endpoints.values():
            endpoint.shorten_grace(grace)

    def send_again(self) -> bool:
        """Send one device list again, so that the kubelet writes its checkpoint; False if no list is read."""
        for endpoint in self.endpoints.values():
            if endpoint.listed:
                endpoint.devices.resend()
                return True
        return False

    async def _follow(self, resources: Mapping[ResourceName, Resource], cdi: bool, group: TaskGroup) -> None:
        if cdi:
            await self._cdi.follow()
        for name in self._running.keys() - self._offering.of_plugins.get().keys():
            why = device_log.successors(self._running[name].resource, self._offering.decision)
            self._end(name)
            log.event(log.RESOURCE_REMOVED, resource=name, cause=why)
        for resource in resources.values():
            newest = self._offering.of_plugins.get()  # others than ``resources`` after a CDI file was written
            if resource.cdi is cdi and newest.get(resource.name) is resource:
                await self._show(resource, group)

    async def _show(self, resource: Resource, group: TaskGroup) -> None:
        running = self._running.get(resource.name)
        if running is not None and running.resource is resource:
            return
        if running is not None and running.resource.direct is not resource.direct:
            self._end(resource.name)  # the kubelet reads the plugin's options only at Register
            running = None
        if running is None:
            self._begin(resource, group)
            await anyio.lowlevel.checkpoint()  # the first one registers while the last one is created
            return
        before, running.resource = running.resource, resource
        running.endpoint.devices.update(resource.devices)
        device_log.changes(before, resource, self._offering.decision)

    def _begin(self, resource: Resource, group: TaskGroup) -> None:
        name = resource.name
        devices = DeviceList(resource.devices)
        answers = ResourceAnswers(name, self._offering, self._allocator, self._usage, devices)
        endpoint = self._create_endpoint(name, devices, answers, self.states)
        scope = anyio.CancelScope()
        before, ended = self._ended.get(name), anyio.Event()
        self._ended[name] = ended
        self._running[name] = _Running(endpoint, scope, resource)
        log.event(log.RESOURCE_ADDED, resource=name, devices=len(resource.devices))
        device_log.changes(None, resource, self._offering.decision)

        async def serve() -> None:
            try:
                if before is not None:  # never two registrations of one resource at a time
                    await before.wait()
                with scope:
                    await self._supervisor.keep(f"resource {name}", endpoint.run)
            finally:
                ended.set()

        group.start_soon(serve, name=f"serve {name}")

    def _end(self, name: ResourceName) -> None:
        self._running.pop(name).scope.cancel()

    async def _collect_connections(self) -> None:
        """Free the memory of closed connections: their objects refer to each other in cycles."""
        before = 0
        while True:
            seen = self.states.version
            registered = sum(endpoint.state.registered for endpoint in self.endpoints.values())
            if registered < before:
                await anyio.sleep(self._timeouts.memory_trim)
                process.release_memory()
            before = registered
            await self.states.newer(seen)


def _status(
    resource: Resource,
    endpoint: Endpoint | None,
    allocations: AllocationsStatus,
    registered: Sequence[str],
) -> ResourceStatus:
    """The status of one resource.

    ``registered``: the healthy ids that the kubelet has for this resource; if one of these ids is one of
    ours, no other plugin has registered the resource.
    """
    state = endpoint.state if endpoint is not None else RegistrationState()
    listed = endpoint is not None and endpoint.listed
    ours = {device.id for device in resource.devices}
    ids = map(str, registered)  # the file is no API: anything may be in it
    others = tuple(map(str, registered)) if listed and ours and ours.isdisjoint(ids) else ()
    return ResourceStatus.of(
        resource, state.registered, state.registrations, state.last_error, listed, allocations, others
    )
