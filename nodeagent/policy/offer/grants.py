# SPDX-License-Identifier: Apache-2.0
"""What a container gets for the devices that the kubelet has chosen, in the form virt-launcher reads. Pure.

Environment: one variable per resource, addresses or UUIDs in the order of the requested ids (KubeVirt
pkg/util/util.go). Nodes: ``/dev/vfio/vfio`` always, for virt-handler changes owners only when it is there.
An id that is unknown or cannot be given is refused with a text for people, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import DeviceNode, Grant, Holder, Possession
from nodeagent.model.desired import CdiRule, DirectRule
from nodeagent.model.host import Host, HostDevice, Kind, PciFunction
from nodeagent.model.ids import DeviceId, PciAddress, ResourceName, pci_address
from nodeagent.model.resource import Iommufd, Isolation, ReasonCode, Resource
from nodeagent.policy import groups, naming
from nodeagent.policy.offer import direct, kinds, units
from nodeagent.policy.offer.turn import Decision

CDI_KIND = "nodeagent.local/vfio"
_GIVEN_ANEW = frozenset({ReasonCode.RE_ENUMERATED})


def grant(resource: Resource, device_ids: Sequence[str], decision: Decision) -> Grant:
    """The grant for one container.

    :raises Refused: if one of the ids cannot be given.
    """
    check_given(resource, device_ids)
    if resource.direct:
        return direct_grant(resource, device_ids, decision)
    host_devices = [each for device_id in device_ids for each in _host_devices(device_id, decision)]
    envs, host = environment(resource, host_devices), decision.snapshot.host
    nodes = device_nodes(host_devices, resource.iommufd, host)
    if resource.cdi:
        alone = {node for each in host_devices for node in device_nodes([each], resource.iommufd, host)}
        more = tuple(DeviceNode(node) for node in nodes if node not in alone)
        names = tuple(f"{CDI_KIND}={device_id}" for device_id in device_ids)
        return Grant(envs, more, names)
    return Grant(envs, tuple(map(DeviceNode, nodes)))


def environment(resource: Resource, host_devices: Iterable[HostDevice]) -> tuple[tuple[str, str], ...]:
    """The variables that name these devices to virt-launcher, each kind in its own, in order."""
    by_kind: dict[Kind, list[str]] = {}
    for host_device in host_devices:
        kind = kinds.of(host_device)
        by_kind.setdefault(kind.rule.kind, []).append(kind.address(host_device))
    return tuple((naming.env_key(kind, resource.name), ",".join(ids)) for kind, ids in by_kind.items())


def check_listed(resource: Resource, device_ids: Iterable[str]) -> None:
    """Any text may come from the kubelet: each id has to be listed.

    :raises Refused: for the first id that is not.
    """
    for device_id in device_ids:
        if resource.device(device_id) is None:
            raise Refused(
                f"{resource.name}: {device_id} is not a device of this node",
                "the kubelet's list is renewed; try the pod again",
            )


def check_given(resource: Resource, device_ids: Iterable[str]) -> None:
    """Each id has to be listed, and Healthy; whoever is given what was plugged in again gets it as it is now.

    :raises Refused: for the first id that is not.
    """
    check_listed(resource, device_ids)
    for device_id in device_ids:
        device = resource.device(device_id)
        if device is not None and device.reason is not None and device.reason.code not in _GIVEN_ANEW:
            raise Refused(f"{resource.name}: {device_id}: {device.reason.what}", device.reason.hint)


def check_lent(resource: Resource, device_ids: Iterable[str], decision: Decision) -> None:
    """What the record of loans does not have is protected from nobody: a set may be another one by now.

    :raises Refused: for the first USB device that was not lent as it is now.
    """
    for device_id in device_ids if resource.kind is Kind.USB else ():
        loans = decision.snapshot.loans.get(DeviceId(device_id), ())
        lent = [(loan.id, loan.place) for loan in loans]
        members = _host_devices(device_id, decision)
        if lent != [(each.id, kinds.of(each).address(each)) for each in members]:
            raise Refused(
                f"{resource.name}: {device_id}: it was plugged in again, or its set has changed meanwhile",
                "try the pod again",
            )


def check_unused(
    resource: Resource,
    device_ids: Iterable[str],
    owned: frozenset[Possession],
    decision: Decision,
    admitted: frozenset[str] = frozenset(),
) -> None:
    """No other pod has one of these, or a part of their groups.

    ``owned`` is the asking pod's for certain. ``admitted`` are those of the ids whose pod has not been
    started yet: it may ask for them again. The kubelet may ask for what another pod has:
    ``UpdateAllocatedDevices`` (pkg/kubelet/cm/devicemanager/manager.go) counts again what is free, without
    what is under an Allocate.

    :raises Refused: with the pod that has one.
    """
    own_ids = {each for _, each in owned}.union(device_ids)
    snapshot = decision.snapshot
    for device_id in device_ids:
        for possession, holder in _holders_of(resource, device_id, decision):
            again = possession[0] == resource.name and device_id in admitted
            if not again and possession not in owned:
                other = f", which got it as {possession[0]}" if possession[0] != resource.name else ""
                raise Refused(
                    f"{resource.name}: {device_id}: held by {holder}{other}, "
                    "and the kubelet took it for free",
                    "the kubelet knows it again now; try the pod again",
                )
        host_device = snapshot.host.device(device_id)
        if host_device is None or resource.isolation is Isolation.NONE:
            continue
        for other, one in units.holders_in(units.unit_of(host_device), snapshot).items():
            if one.got(other) not in own_ids:
                raise Refused(
                    f"{resource.name}: {device_id}: IOMMU group held by {one}, which has {other}",
                    "it becomes available when that pod ends",
                )


def _holders_of(
    resource: Resource, device_id: str, decision: Decision
) -> Iterator[tuple[Possession, Holder]]:
    """Who has the device, by the kubelet: of a node or a CDI device also under another name.

    Other plugins may have such an id of their own. It is the same device if the resource is ours, or if the
    same node or CDI device was allocated with it.
    """
    allocations = decision.snapshot.allocations
    if (brought := allocations.brought.get(device_id)) is not None:
        yield (brought.resource, brought.brought), brought
    for name, ids in allocations.table.items():
        holder = ids.get(device_id)
        if holder is None:
            continue
        if name == resource.name or (
            resource.direct
            and (name in decision.resources or _is_same_device(resource, name, device_id, decision))
        ):
            yield (name, device_id), holder


def _is_same_device(resource: Resource, name: ResourceName, device_id: str, decision: Decision) -> bool:
    """True if something of what the id stands for was allocated with it under the other name."""
    before = frozenset(decision.snapshot.allocations.answer(name, device_id))
    if not before or resource.device(device_id) is None:
        return False
    now = direct_grant(resource, (device_id,), decision)
    return not before.isdisjoint((*(node.path for node in now.nodes), *now.cdi))


def contended(resource: Resource, device_ids: Iterable[str], decision: Decision) -> bool:
    """True if it matters which pod asks.

    A pod has one of these, or has a part of their groups, or another resource offers a part of them.
    """
    snapshot = decision.snapshot
    for device_id in device_ids:
        if snapshot.holder(device_id) is not None:
            return True
        host_device = snapshot.host.device(device_id)
        if host_device is not None and resource.isolation is not Isolation.NONE:
            unit = units.unit_of(host_device)
            offers = decision.offers.get(unit, ())
            if any(offer.match.resource != resource.name for offer in offers):
                return True
            if units.holders_in(unit, snapshot):
                return True
    return False


def is_part_in_use(device_ids: Iterable[str], decision: Decision) -> bool:
    """True if a pod has one of these devices, or a part of their groups."""
    snapshot = decision.snapshot
    if not (snapshot.allocations.table or snapshot.reservations.pending):
        return False
    found = (snapshot.host.device(each) for each in device_ids)
    ids = {units.unit_of(each) for each in found if each is not None}
    return any(units.holders_in(unit, snapshot) for unit in ids)


def device_nodes(host_devices: Iterable[HostDevice], iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The device nodes for these devices, each once, in the order in which they are given.

    The memory of a socket (``Host.egm``) goes with all of its GPUs: who has only some of them would share it.
    """
    given = {each.id: each for each in host_devices}
    paths = [path for each in given.values() for path in kinds.of(each).nodes(each, iommufd, host)]
    paths += [path for path, gpus in host.egm if given.keys() >= set(gpus)]
    return tuple(dict.fromkeys(paths))


def cdi_entries(resource: Resource, decision: Decision) -> dict[str, Mapping[str, object]]:
    """The CDI devices, by name, with the nodes of each device of a resource that is Healthy, or held.

    A container of its holder may start again, also where the holder got it under another resource.
    """
    return {
        device.id: {
            "name": device.id,
            "containerEdits": {"deviceNodes": _cdi_nodes(resource, device.id, decision)},
        }
        for device in resource.devices
        if device.healthy or _held_here(resource, device.id, decision)
    }


def cdi_spec(entries: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """The CDI document (version 0.5.0) with these devices."""
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": list(entries.values())}


def _held_here(resource: Resource, device_id: str, decision: Decision) -> bool:
    """True if somebody has the device, and it belongs to this resource now: a name is in one file only."""
    offer, snapshot = decision.offer_of(device_id), decision.snapshot
    held = snapshot.holder(device_id) is not None
    return held and offer is not None and offer.match.resource == resource.name


def _cdi_nodes(resource: Resource, device_id: str, decision: Decision) -> list[dict[str, str]]:
    paths = device_nodes(_host_devices(device_id, decision), resource.iommufd, decision.snapshot.host)
    return [{"path": path, "permissions": "rwm"} for path in paths]


def behind(resource: Resource, device_ids: Iterable[str], decision: Decision) -> tuple[str, ...]:
    """What decides about these devices: their nodes, or they, their VFs, and all others of their groups."""
    rule = direct_rule(resource, decision)
    if rule is not None:
        return direct.of(rule).sources(rule, device_ids, decision.snapshot)
    host = decision.snapshot.host
    ids: dict[str, None] = {}
    for host_device in (host.device(device_id) for device_id in device_ids):
        if host_device is not None:
            ids[host_device.id] = None
            ids.update(dict.fromkeys(member.id for member in host.members(host_device.group)))
            ids.update(dict.fromkeys(host_device.vfs if isinstance(host_device, PciFunction) else ()))
            offer = decision.offer_of(host_device.id)
            ids.update(dict.fromkeys(offer.host_devices if offer is not None else ()))
    return tuple(ids)


def functions_behind(
    resource: Resource, device_ids: Iterable[str], decision: Decision
) -> frozenset[PciAddress]:
    """The functions on drivers of the host to which these nodes, CDI devices or USB devices belong."""
    rule = direct_rule(resource, decision)
    if rule is not None:
        sources = direct.of(rule).sources(rule, device_ids, decision.snapshot)
        return frozenset(PciAddress(each) for each in sources if pci_address(each) == each)
    usb = decision.snapshot.host.usb
    offers = (decision.offer_of(each) for each in device_ids if resource.kind is Kind.USB)
    found = (usb.get(each) for offer in offers if offer is not None for each in offer.host_devices)
    return frozenset(each.controller for each in found if each is not None and each.controller is not None)


def given(device_ids: Iterable[str], decision: Decision) -> tuple[PciAddress, ...]:
    """The functions on a VFIO driver that a container gets with these ids."""
    offers = (decision.offer_of(device_id) for device_id in device_ids)
    names = (name for offer in offers if offer is not None for name in offer.host_devices)
    host = decision.snapshot.host
    functions = (host.functions.get(PciAddress(name)) for name in names)
    return tuple(each.address for each in functions if each is not None and groups.vfio_bound(each))


def brought_by(device_id: str, decision: Decision) -> tuple[str, ...]:
    """What else a container gets with the device: the rest of a bundle, unless it is a matter of loans."""
    offer = decision.offer_of(device_id)
    if offer is None or offer.match.rule.kind is Kind.USB:
        return ()
    return tuple(each for each in offer.host_devices if each != device_id)


def _host_devices(device_id: str, decision: Decision) -> tuple[HostDevice, ...]:
    offer = decision.offer_of(device_id)
    if offer is None:
        raise Refused(f"{device_id} is not offered any more", "try the pod again")
    host_devices = map(decision.snapshot.host.device, offer.host_devices)
    return tuple(host_device for host_device in host_devices if host_device is not None)


def direct_rule(resource: Resource, decision: Decision) -> DirectRule | None:
    """The rule that makes the devices of the resource itself; None if there is none (any more)."""
    rules = (rule for rule in decision.snapshot.desired.rules if isinstance(rule, DirectRule))
    return next((rule for rule in rules if rule.name == resource.name), None)


def shared(resource: Resource, decision: Decision) -> bool:
    """True if its devices are shares of nodes: it does not matter which one a container has."""
    rule = direct_rule(resource, decision)
    return resource.direct and not isinstance(rule, CdiRule) and (rule is None or rule.count > 1)


def direct_grant(resource: Resource, device_ids: Iterable[str], decision: Decision) -> Grant:
    """What a container gets of a resource whose devices are no HostDevices, healthy or not.

    :raises Refused: if nobody offers it any more.
    """
    rule = direct_rule(resource, decision)
    if rule is None:
        raise Refused(f"{resource.name} is not offered any more", "remove it from the pod")
    return direct.of(rule).grant(rule, device_ids, decision.snapshot)
