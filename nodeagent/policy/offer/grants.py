# SPDX-License-Identifier: Apache-2.0
"""What a container gets for the devices that the kubelet has chosen, in the form virt-launcher reads. Pure.

Environment: one variable per resource, addresses or UUIDs in the order of the requested ids (KubeVirt
pkg/util/util.go). Nodes: ``/dev/vfio/vfio`` always, for virt-handler changes owners only when it is there.
An id that is unknown or cannot be given is refused with a text for people, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.host import Host, HostDevice, Kind, UsbDevice
from nodeagent.model.nodes import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DirectRule
from nodeagent.policy import naming
from nodeagent.policy.offer import kinds
from nodeagent.policy.offer.turn import Decision

CDI_KIND = "nodeagent.local/vfio"


def grant(resource: Resource, device_ids: Sequence[str], decision: Decision) -> Grant:
    """The grant for one container.

    :raises AllocationRefused: if one of the ids cannot be given.
    """
    check_healthy(resource, device_ids)
    if resource.direct:
        return direct_grant(resource, device_ids, decision)
    host_devices = [each for device_id in device_ids for each in host_devices_of(device_id, decision)]
    envs, host = environment(resource, host_devices), decision.snapshot.host
    nodes = device_nodes(host_devices, resource.iommufd, host)
    if resource.cdi:
        alone = {node for each in host_devices for node in device_nodes([each], resource.iommufd, host)}
        more = tuple(DeviceNode(node) for node in nodes if node not in alone)
        names = tuple(f"{CDI_KIND}={device_id}" for device_id in device_ids)
        return Grant(envs, more, names)
    return Grant(envs, tuple(map(DeviceNode, nodes)))


def check_listed(resource: Resource, device_ids: Iterable[str]) -> None:
    """The kubelet may send any text. :raises AllocationRefused: for the first id that is not listed."""
    for device_id in device_ids:
        if resource.device(device_id) is None:
            raise AllocationRefused(
                f"{resource.name}: {device_id} is not a device of this node",
                "the kubelet's list is renewed; try the pod again",
            )


def check_healthy(resource: Resource, device_ids: Iterable[str]) -> None:
    """Each id has to be listed and Healthy; a USB device that was plugged in again is allocated as it is now.

    :raises AllocationRefused: for the first id that is not.
    """
    check_listed(resource, device_ids)
    for device_id in device_ids:
        device = resource.device(device_id)
        reason = None if device is None else device.reason
        if reason is not None and reason.code is not ReasonCode.RE_ENUMERATED:
            raise AllocationRefused(f"{resource.name}: {device_id}: {reason.what}", reason.hint)


def environment(resource: Resource, host_devices: Iterable[HostDevice]) -> tuple[tuple[str, str], ...]:
    """The variables that name these devices to virt-launcher, each kind in its own, in order."""
    by_kind: dict[Kind, list[str]] = {}
    for host_device in host_devices:
        address = host_device.place if isinstance(host_device, UsbDevice) else host_device.id
        by_kind.setdefault(kinds.of(host_device).rule.kind, []).append(address)
    return tuple((naming.env_key(kind, resource.name), ",".join(ids)) for kind, ids in by_kind.items())


def device_nodes(host_devices: Iterable[HostDevice], iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The device nodes for these devices, each once, in the order in which they are given.

    The memory of a socket (``Host.egm``) goes with all of its GPUs: who has only some of them would share it.
    """
    given = {each.id: each for each in host_devices}
    paths = [path for each in given.values() for path in _nodes_of(each, iommufd, host)]
    paths += [path for path, gpus in host.egm if given.keys() >= set(gpus)]
    return tuple(dict.fromkeys(paths))


def _nodes_of(host_device: HostDevice, iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The nodes of a USB device; of a function or mdev those of its group, its own, and those of all VFIO."""
    if isinstance(host_device, UsbDevice):
        return (host_device.node,)
    group = host.groups.get(host_device.group) if host_device.group is not None else None
    paths = [CONTAINER_NODE] if CONTAINER_NODE in host.nodes else []
    if iommufd is not Iommufd.ONLY and group is not None and group.node:
        paths.append(f"/dev/vfio/{group.number}")
    if iommufd is not Iommufd.NEVER and host_device.cdev and IOMMUFD_NODE in host.nodes:
        paths += [f"/dev/vfio/devices/{host_device.vfio_device}", IOMMUFD_NODE]
    return tuple(paths)


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
    paths = device_nodes(host_devices_of(device_id, decision), resource.iommufd, decision.snapshot.host)
    return [{"path": path, "permissions": "rwm"} for path in paths]


def host_devices_of(device_id: str, decision: Decision) -> tuple[HostDevice, ...]:
    """The host devices of the id. :raises AllocationRefused: if it is not offered any more."""
    offer = decision.offer_of(device_id)
    if offer is None:
        raise AllocationRefused(f"{device_id} is not offered any more", "try the pod again")
    host_devices = map(decision.snapshot.host.device, offer.host_devices)
    return tuple(host_device for host_device in host_devices if host_device is not None)


def direct_rule(resource: Resource, decision: Decision) -> DirectRule | None:
    """The rule that makes the devices of the resource itself; None if there is none (any more)."""
    rules = (rule for rule in decision.snapshot.spec.rules if isinstance(rule, DirectRule))
    return next((rule for rule in rules if rule.name == resource.name), None)


def direct_grant(resource: Resource, device_ids: Iterable[str], decision: Decision) -> Grant:
    """What a container gets of a resource whose devices are no HostDevices, healthy or not.

    :raises AllocationRefused: if nobody offers it any more.
    """
    rule = direct_rule(resource, decision)
    if rule is None:
        raise AllocationRefused(f"{resource.name} is not offered any more", "remove it from the pod")
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.grant(rule, device_ids, decision.snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.grant(rule, device_ids, decision.snapshot)


def direct_sources(rule: DirectRule, device_ids: Iterable[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The paths and addresses that decide about devices of a rule for nodes or CDI devices."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.sources(rule, device_ids, snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.sources(rule, device_ids, snapshot)
