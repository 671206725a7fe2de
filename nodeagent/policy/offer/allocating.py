# SPDX-License-Identifier: Apache-2.0
"""The checks of an Allocate, in the order in which ``agent.allocate`` makes them. Pure.

They answer these questions. Is the requesting pod a different one than at the last Allocate (for
``agent.reservations``)? Does the pod matter? Does another pod use a device of the same IOMMU groups? Which
devices and device nodes have to be read again? Which devices may the container of a former pod still have
open?
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import Holder, Pods, ResourceDevice, listed_devices
from nodeagent.model.host import HostDevice, Kind, PciFunction, UsbDevice
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName, pci_address
from nodeagent.model.resource import Isolation, Resource
from nodeagent.model.spec import NodeRule
from nodeagent.policy import groups
from nodeagent.policy.offer import grants, units
from nodeagent.policy.offer.turn import Decision


class Request(NamedTuple):
    """The devices of one resource that a container requests, and the Decision used to check them."""

    resource: Resource
    device_ids: Sequence[str]
    decision: Decision


def is_other_pod(before: Pods, now: Pods, allocated: Collection[ResourceDevice]) -> bool:
    """True if another pod requests devices ``now`` than ``before``, when the pod was ``allocated`` its
    devices.

    An Allocate request does not name its pod, so two answers of PodResources are compared. The kubelet admits
    one pod at a time, and PodResources lists a pod from the moment before its admission
    (``HandlePodAdditions`` in pkg/kubelet/kubelet.go). At a pod's second Allocate, PodResources lists the
    devices of the first one (measured on 1.36.3). PodResources never lists plain init containers, and a later
    pod may have the same name, so both names and devices are compared.

    The kubelet adds no pod to the list during an Allocate, so a new name means that the admission of the
    former pod is over. A pod with other devices than before got them in its own admission, or is a new pod
    with the same name.
    """
    if not now.keys() <= before.keys():
        return True
    owners = find_owners(now, allocated)
    changed = [name for name, listed in now.items() if listed != before[name] or name in owners]
    return len(changed) > 1 or any(not now[name] >= before[name] for name in changed)


def find_owners(pods: Pods, allocated: Collection[ResourceDevice]) -> tuple[str, ...]:
    """The pods that PodResources lists with some of these devices; it lists no plain init containers."""
    return tuple(name for name, listed in pods.items() if not listed.isdisjoint(allocated))


def is_shared(request: Request) -> bool:
    """True if all requested devices are shares of device nodes: several pods may use one device node."""
    if not request.resource.direct:
        return False
    rule = grants.find_direct_rule(request.resource, request.decision)
    if not isinstance(rule, NodeRule):
        return rule is None
    from nodeagent.policy.offer import node_rules  # here: few nodes have rules for device nodes

    return node_rules.are_shared(rule, request.device_ids, request.decision.snapshot)


def is_contended(request: Request) -> bool:
    """True if the result of the Allocate depends on the requesting pod.

    It does if a pod uses one of these devices or another device of their groups, or if another resource
    offers a device of their groups.
    """
    if is_part_in_use(request):
        return True
    if request.resource.isolation is Isolation.NONE:
        return False
    host_devices = map(request.decision.snapshot.host.device, request.device_ids)
    decided = {units.find_unit_id(each) for each in host_devices if each is not None}
    offers = (offer for each in decided for offer in request.decision.offers.get(each, ()))
    return any(offer.match.resource != request.resource.name for offer in offers)


def is_part_in_use(request: Request) -> bool:
    """True if a pod uses one of these devices, or another device of their groups."""
    snapshot = request.decision.snapshot
    if not (snapshot.allocations.table or snapshot.reservations.pending):
        return False
    return any(_find_users(each, request) for each in request.device_ids)


def check_unused(request: Request, owned: frozenset[ResourceDevice], pods: Pods | None) -> None:
    """Check that no other pod uses one of these devices, or another device of their groups.

    ``owned``: devices that certainly belong to the requesting pod; ``pods``: the answer of PodResources, if
    it was queried. If no listed pod has an id, the id belongs to the requesting pod: a container may reuse
    the devices of a plain init container of its pod, and the kubelet allocates no id to two live pods. But
    the kubelet may request a device of another pod: ``UpdateAllocatedDevices``
    (pkg/kubelet/cm/devicemanager/manager.go) recounts the free devices without those of an open Allocate.

    :raises AllocationRefused: with the pod that uses a device.
    """
    resource = request.resource
    listed = listed_devices(pods) if pods is not None else _find_named(request)
    own = owned | {(resource.name, each) for each in request.device_ids} - listed
    for device_id in request.device_ids:
        for each, holder in _find_users(device_id, request):
            if (holder.resource, holder.allocated_id(each)) in own:
                continue
            if each == device_id:
                other = f", which got it as {holder.resource}" if holder.resource != resource.name else ""
                text = f"in use by {holder}{other}, but the kubelet counted it as free"
                hint = "the kubelet counts the device as allocated again; create the pod again"
                raise AllocationRefused(f"{resource.name}: {device_id}: {text}", hint)
            raise AllocationRefused(
                f"{resource.name}: {device_id}: IOMMU group in use by {holder}, which has {each}",
                "it becomes available when that pod ends",
            )


def _find_named(request: Request) -> frozenset[ResourceDevice]:
    """The requested devices that pods with known names use."""
    name, allocations = request.resource.name, request.decision.snapshot.allocations
    holders = ((each, allocations.holder_of(name, each)) for each in request.device_ids)
    return frozenset((name, each) for each, holder in holders if holder is not None and holder.named)


def _find_users(device_id: str, request: Request) -> list[tuple[str, Holder]]:
    """The pods that use the device or others of its group, by the id in use; the device comes first."""
    resource, snapshot = request.resource, request.decision.snapshot
    host_device = snapshot.host.device(device_id)
    if resource.direct or host_device is None:
        return [(device_id, holder) for holder in _find_direct_users(device_id, request)]
    if resource.isolation is not Isolation.NONE and host_device.group is not None:
        holders = units.find_holders(host_device.group, snapshot)
        return sorted(holders.items(), key=lambda each: each[0] != device_id)
    holder = snapshot.holder(device_id)
    return [] if holder is None else [(device_id, holder)]


def _find_direct_users(device_id: str, request: Request) -> Iterator[Holder]:
    """The pods that use a device node or a CDI device, also under a former name of its resource.

    Other device plugins may use the same id for another device. An id means the same device if the resource
    is ours, or if the same node or CDI device was allocated with it.
    """
    resource, snapshot = request.resource, request.decision.snapshot
    pending = snapshot.reservations.pending.get(device_id)
    if pending is not None and pending.resource == resource.name:
        yield pending
    for name, ids in snapshot.allocations.table.items():
        holder = ids.get(device_id)
        if holder is not None:
            ours = name == resource.name or name in request.decision.resources
            if ours or _is_same_device(name, device_id, request):
                yield holder


def _is_same_device(name: ResourceName, device_id: str, request: Request) -> bool:
    """True if the same device node or CDI device was allocated under the other resource with this id."""
    before = frozenset(request.decision.snapshot.allocations.answer(name, device_id))
    if not before or request.resource.device(device_id) is None:
        return False
    now = grants.direct_grant(request.resource, (device_id,), request.decision)
    return not before.isdisjoint((*(node.path for node in now.nodes), *now.cdi))


def find_sources(request: Request) -> tuple[str, ...]:
    """The ids and paths to read again: the device nodes, or the devices with their VFs and IOMMU groups."""
    resource, decision = request.resource, request.decision
    rule = grants.find_direct_rule(resource, decision)
    if rule is not None:
        return grants.find_direct_sources(rule, request.device_ids, decision.snapshot)
    host = decision.snapshot.host
    ids: dict[str, None] = {}
    for host_device in map(host.device, request.device_ids):
        if host_device is not None:
            ids[host_device.id] = None
            ids.update(dict.fromkeys(member.id for member in host.members(host_device.group)))
            ids.update(dict.fromkeys(host_device.vfs if isinstance(host_device, PciFunction) else ()))
            offer = decision.offer_of(host_device.id)
            ids.update(dict.fromkeys(offer.host_devices if offer is not None else ()))
    return tuple(ids)


def find_vfio_functions(request: Request) -> tuple[PciAddress, ...]:
    """The PCI functions on a VFIO driver that belong to these device ids."""
    decision = request.decision
    offers = map(decision.offer_of, request.device_ids)
    names = (name for offer in offers if offer is not None for name in offer.host_devices)
    functions = (decision.snapshot.host.functions.get(PciAddress(name)) for name in names)
    return tuple(each.address for each in functions if each is not None and groups.is_vfio_bound(each))


def find_closed(request: Request) -> tuple[HostDevice, ...]:
    """The devices that no process may have open: the requested ones and the other devices of their groups.

    After a force deletion of a pod, the kubelet allocates its device again while the old container still has
    the device open.
    """
    resource, decision = request.resource, request.decision
    snapshot = decision.snapshot
    found: dict[str, HostDevice] = {}
    for device_id in request.device_ids:
        offer, host_device = decision.offer_of(device_id), snapshot.host.device(device_id)
        if offer is None or host_device is None:
            continue
        unit = units.find_unit_id(host_device)
        alone = resource.isolation is Isolation.NONE
        members = units.build_unit(unit, snapshot).devices
        found |= {each.id: each for each in members if not alone or each.id in offer.host_devices}
    return tuple(found.values())


def check_usb_nodes(request: Request) -> None:
    """Check that the USB devices are the recorded ones: a set may have changed since their owner was changed.

    :raises AllocationRefused: for the first device that is not.
    """
    resource, decision = request.resource, request.decision
    for device_id in request.device_ids:
        loans = decision.snapshot.loans.get(DeviceId(device_id), ())
        devices = grants.find_host_devices(device_id, decision)
        now = [(each.id, each.place) for each in devices if isinstance(each, UsbDevice)]
        if [(loan.id, loan.place) for loan in loans] != now:
            raise AllocationRefused(
                f"{resource.name}: {device_id}: the USB device was re-plugged, or its set of "
                "devices has changed",
                "try the pod again",
            )


def find_host_functions(request: Request) -> frozenset[PciAddress]:
    """The PCI functions on host drivers to which these device nodes, CDI devices or USB devices belong."""
    resource, decision = request.resource, request.decision
    rule = grants.find_direct_rule(resource, decision)
    if rule is not None:
        sources = grants.find_direct_sources(rule, request.device_ids, decision.snapshot)
        return frozenset(PciAddress(each) for each in sources if pci_address(each) == each)
    usb = decision.snapshot.host.usb
    offers = (decision.offer_of(each) for each in request.device_ids if resource.kind is Kind.USB)
    found = (usb.get(each) for offer in offers if offer is not None for each in offer.host_devices)
    return frozenset(each.controller for each in found if each is not None and each.controller is not None)
