# SPDX-License-Identifier: Apache-2.0
"""One endpoint per resource: started, shown new lists and ended as the Resources say.

The place where the kubelet's questions meet the policy: an Allocate takes a fresh look at its devices,
decides anew, and only then answers. A resource that fails is built anew by its supervisor; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from nodeagent.agent.cdi_files import CdiFiles
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.base import log, memory
from nodeagent.base.errors import Refused
from nodeagent.base.latest import Latest
from nodeagent.base.supervise import Supervisor
from nodeagent.kubelet.deviceplugin.endpoint import Endpoint
from nodeagent.kubelet.deviceplugin.listing import Listing
from nodeagent.model.allocation import Grant, Holder, unnamed
from nodeagent.model.host import Host, HostDevice, Mdev
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName, pci_address
from nodeagent.model.resource import Device, Kind, Resource
from nodeagent.policy.offer import grants, prefer

TIDY = 0.12  # seconds after the first end of a burst: so a storm of restarts piles up nothing

MakeEndpoint = Callable[[str, Listing, "ResourceAnswers", Latest[None]], Endpoint]
Give = Callable[[Mapping[str, Holder]], None]


class ResourceAnswers:
    """What the kubelet asks about one resource."""

    def __init__(
        self,
        name: ResourceName,
        observe: Observer,
        reconcile: Offering,
        cdi: CdiFiles,
        give: Give,
        listing: Listing,
    ) -> None:
        self._name = name
        self._listing = listing
        self._observe = observe
        self._reconcile = reconcile
        self._cdi = cdi
        self._give = give

    @property
    def preferring(self) -> bool:
        """True if some devices may be better than others: shares of one node are all alike."""
        return self._resource().kind is not Kind.NODE

    async def allocate(self, device_ids: Sequence[str]) -> Grant:
        """The grant for one container; raises Refused with the Reason, which is in the list by then."""
        try:
            return await self._granted(device_ids)
        except Refused as refusal:
            self._listing.show(self._resource().devices)
            log.event(
                log.ALLOCATE_REFUSED, resource=self._name, devices=",".join(device_ids), why=refusal.what
            )
            raise

    async def _granted(self, device_ids: Sequence[str]) -> Grant:
        grants.check_given(self._resource(), device_ids)
        await self._observe.glance(self._behind(device_ids))
        self._reconcile.one_turn()
        if self._resource().cdi:
            await self._cdi.ensure(self._name, device_ids)
        resource = self._resource()
        grant = grants.grant(resource, device_ids, self._reconcile.decision)
        given = {device.id: device for device in resource.devices if device.id in device_ids}
        self._give({each: unnamed(self._name, given[DeviceId(each)].numa) for each in device_ids})
        log.event(log.ALLOCATED, resource=self._name, devices=",".join(device_ids))
        return grant

    def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> Sequence[str]:
        """The preferred devices."""
        host = self._reconcile.decision.snapshot.host
        found = ((each, host.device(each)) for each in (*available, *must))
        topologies = {
            device_id: _topology(host_device, host)
            for device_id, host_device in found
            if host_device is not None
        }
        return prefer.choose(available, must, size, topologies)

    def _resource(self) -> Resource:
        return self._reconcile.decision.resources.get(self._name) or Resource(self._name, Kind.PCI)

    def _behind(self, device_ids: Sequence[str]) -> tuple[str, ...]:
        """The node, or the functions and mdevs and all others of their groups: these decide, too."""
        decision = self._reconcile.decision
        rule = grants.node_rule(self._resource(), decision)
        if rule is not None:
            return (rule.path,)
        host = decision.snapshot.host
        found: dict[str, None] = {}
        for device_id in device_ids:
            host_device = host.device(device_id)
            if host_device is not None:
                found[host_device.id] = None
                found.update(dict.fromkeys(member.id for member in host.members(host_device.group)))
        return tuple(found)


def _topology(host_device: HostDevice, host: Host) -> prefer.Topology:
    """Where a function sits, or the parent of an mdev."""
    function = (
        host.functions.get(PciAddress(host_device.parent or ""))
        if isinstance(host_device, Mdev)
        else host_device
    )
    return prefer.Topology(
        host_device.group, host_device.numa_node, function.pcie_root if function is not None else ""
    )


@dataclass(slots=True)
class _Running:
    endpoint: Endpoint
    scope: anyio.CancelScope


class DevicePlugins:
    """All endpoints. ``run`` follows the Resources until it is cancelled."""

    def __init__(
        self,
        observe: Observer,
        reconcile: Offering,
        cdi: CdiFiles,
        supervisor: Supervisor,
        make: MakeEndpoint,
        give: Give,
    ) -> None:
        self._observe = observe
        self._reconcile = reconcile
        self._cdi = cdi
        self._supervisor = supervisor
        self._make = make
        self._give = give
        self._running: dict[ResourceName, _Running] = {}
        self._ended: dict[ResourceName, anyio.Event] = {}  # of the last endpoint of each name
        self._shown: Mapping[ResourceName, Resource] = {}
        self._burst: Latest[None] = Latest(None)

    @property
    def endpoints(self) -> Mapping[ResourceName, Endpoint]:
        """The endpoints by resource."""
        return {name: running.endpoint for name, running in self._running.items()}

    @property
    def problems(self) -> tuple[str, ...]:
        """A line for each thing around the endpoints that needs a person."""
        return self._cdi.problems

    async def run(self) -> None:
        """Follow the Resources, for ever."""
        seen = -1
        async with anyio.create_task_group() as group:
            group.start_soon(self._tidy, name="tidy after connections")
            group.start_soon(self._follow_nodes, name="nodes in CDI files")
            try:
                while True:
                    seen, resources = await self._reconcile.resources.newer(seen)
                    await self._follow(resources, group)
            finally:
                self._shown = {}
                for name in tuple(self._running):
                    self._end(name)

    async def _follow_nodes(self) -> None:
        """Keep CDI files right where only nodes have changed: a container that starts again reads them."""
        seen = -1
        while True:
            seen, _ = await self._observe.host.newer(seen)
            self._reconcile.one_turn()
            await self._cdi.follow()

    def hurry(self, grace: float) -> None:
        """From now on an endpoint that ends waits no longer than that for an Allocate in flight."""
        for running in self._running.values():
            running.endpoint.hurry(grace)

    async def _follow(self, resources: Mapping[ResourceName, Resource], group: TaskGroup) -> None:
        before, self._shown = self._shown, resources
        await self._cdi.follow()
        for name in before.keys() - resources.keys():
            self._end(name)
            log.event(log.RESOURCE_REMOVED, resource=name, why="no rule names it any more")
        for name, resource in resources.items():
            if name not in self._running:
                self._begin(resource, group)
                await anyio.lowlevel.checkpoint()  # the first registers while the last is being made
            elif resource is not before.get(name):
                self._running[name].endpoint.listing.show(resource.devices)
                _log_changes(before.get(name), resource)

    def _begin(self, resource: Resource, group: TaskGroup) -> None:
        name = resource.name
        listing = Listing(resource.devices)
        answers = ResourceAnswers(name, self._observe, self._reconcile, self._cdi, self._give, listing)
        endpoint = self._make(name, listing, answers, self._burst)
        scope = anyio.CancelScope()
        before, ended = self._ended.get(name), anyio.Event()
        self._ended[name] = ended
        self._running[name] = _Running(endpoint, scope)
        log.event(log.RESOURCE_ADDED, resource=name, devices=len(resource.devices))
        _log_changes(None, resource)

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

    async def _tidy(self) -> None:
        """Collect what old connections leave behind: their objects refer to each other in circles."""
        while True:
            seen = self._burst.version
            await self._burst.newer(seen)
            await anyio.sleep(TIDY)
            memory.tidy()


def _log_changes(before: Resource | None, now: Resource) -> None:
    """One line for each device that became Unhealthy or Healthy, that came or went."""
    old: dict[DeviceId, Device] = {device.id: device for device in before.devices} if before else {}
    for device in now.devices:
        known = old.pop(device.id, None)
        if known is not None and known.reason == device.reason:
            continue
        address = pci_address(device.id)
        if device.reason is not None:
            log.event(
                log.DEVICE_UNHEALTHY,
                resource=now.name,
                device=device.id,
                text=device.reason.what,
                reason=device.reason.code.value,
                hint=device.reason.hint or None,
                pci_address=address,
            )
        elif known is not None:
            log.event(log.DEVICE_HEALTHY, resource=now.name, device=device.id, pci_address=address)
        elif before is not None:
            log.event(log.DEVICE_ADDED, resource=now.name, device=device.id, pci_address=address)
    for device_id in old:
        log.event(log.DEVICE_GONE, resource=now.name, device=device_id, pci_address=pci_address(device_id))
