# SPDX-License-Identifier: Apache-2.0
"""Builds the Allocate response for the devices that the kubelet has chosen, as virt-launcher reads it. Pure.

Environment: one variable per resource has the addresses or UUIDs in the order of the requested ids (KubeVirt
pkg/util/util.go). Device nodes: ``/dev/vfio/vfio`` is always included, because without it virt-handler does
not change the owners of device nodes. If an id is unknown or not Healthy, the whole request is refused with a
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodeagent.base.errors import AllocationRefused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.host import Host, HostDevice, Kind
from nodeagent.model.resource import Iommufd, ReasonCode, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import CdiRule, DirectRule
from nodeagent.policy import naming
from nodeagent.policy.offer import kinds
from nodeagent.policy.offer.turn import Decision

CDI_KIND = "nodeagent.local/vfio"


def grant(resource: Resource, device_ids: Sequence[str], decision: Decision) -> Grant:
    """The Allocate response (grant) for one container.

    :raises AllocationRefused: if one of the ids cannot be allocated.
    """
    check_healthy(resource, device_ids)
    if resource.direct:
        return direct_grant(resource, device_ids, decision)
    host_devices = [each for device_id in device_ids for each in find_host_devices(device_id, decision)]
    envs, host = environment(resource, host_devices), decision.snapshot.host
    nodes = device_nodes(host_devices, resource.iommufd, host)
    if resource.cdi:
        alone = {node for each in host_devices for node in device_nodes([each], resource.iommufd, host)}
        more = tuple(DeviceNode(node) for node in nodes if node not in alone)
        names = tuple(f"{CDI_KIND}={device_id}" for device_id in device_ids)
        return Grant(envs, more, names)
    return Grant(envs, tuple(map(DeviceNode, nodes)))


def check_listed(resource: Resource, device_ids: Iterable[str]) -> None:
    """Check that each id is listed by the resource, because the kubelet may send any text.

    :raises AllocationRefused: for the first id that is not listed.
    """
    for device_id in device_ids:
        if resource.device(device_id) is None:
            raise AllocationRefused(
                f"{resource.name}: {device_id} is not a device of this node",
                "the list is sent to the kubelet again; try the pod again",
            )


def check_healthy(resource: Resource, device_ids: Iterable[str]) -> None:
    """Check that each id is listed and Healthy; a re-plugged USB device is allocated with its new number.

    :raises AllocationRefused: for the first id that is not.
    """
    check_listed(resource, device_ids)
    for device_id in device_ids:
        device = resource.device(device_id)
        reason = None if device is None else device.reason
        if reason is not None and reason.code is not ReasonCode.RE_ENUMERATED:
            raise AllocationRefused(f"{resource.name}: {device_id}: {reason.message}", reason.hint)


def environment(resource: Resource, host_devices: Iterable[HostDevice]) -> tuple[tuple[str, str], ...]:
    """The environment variables from which virt-launcher reads these devices, one for each kind of device."""
    by_kind: dict[Kind, list[str]] = {}
    for host_device in host_devices:
        address = kinds.find_kind(host_device).address(host_device)
        by_kind.setdefault(host_device.kind, []).append(address)
    return tuple((naming.env_key(kind, resource.name), ",".join(ids)) for kind, ids in by_kind.items())


def device_nodes(host_devices: Iterable[HostDevice], iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The device nodes for these devices, each once, in the order of the devices.

    The extended memory of a CPU socket (``Host.egm``) is included only with all GPUs of the socket, because
    pods must not share it.
    """
    devices = {each.id: each for each in host_devices}
    found = (kinds.find_kind(each).nodes(each, iommufd, host) for each in devices.values())
    paths = [path for nodes in found for path in nodes]
    paths += [path for path, gpus in host.egm if devices.keys() >= set(gpus)]
    return tuple(dict.fromkeys(paths))


def cdi_entries(resource: Resource, decision: Decision) -> dict[str, Mapping[str, object]]:
    """The entries of the CDI file, by name: the device nodes of each device that is Healthy or in use.

    A device in use is included, because a container of its pod may restart; this also holds for a device that
    was allocated under another resource.
    """
    return {
        device.id: {
            "name": device.id,
            "containerEdits": {"deviceNodes": _cdi_nodes(resource, device.id, decision)},
        }
        for device in resource.devices
        if device.healthy or _is_in_use_here(resource, device.id, decision)
    }


def cdi_spec(entries: Mapping[str, Mapping[str, object]]) -> dict[str, object]:
    """The content of the CDI file (version 0.5.0) with these devices."""
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": list(entries.values())}


def _is_in_use_here(resource: Resource, device_id: str, decision: Decision) -> bool:
    """True if the device is in use and this resource offers it: each device is in one CDI file only."""
    offer, snapshot = decision.offer_of(device_id), decision.snapshot
    held = snapshot.holder(device_id) is not None
    return held and offer is not None and offer.match.resource == resource.name


def _cdi_nodes(resource: Resource, device_id: str, decision: Decision) -> list[dict[str, str]]:
    paths = device_nodes(find_host_devices(device_id, decision), resource.iommufd, decision.snapshot.host)
    return [{"path": path, "permissions": "rwm"} for path in paths]


def find_host_devices(device_id: str, decision: Decision) -> tuple[HostDevice, ...]:
    """The host devices of a device id. :raises AllocationRefused: if the id is no longer offered."""
    offer = decision.offer_of(device_id)
    if offer is None:
        raise AllocationRefused(f"{device_id} is no longer offered", "try the pod again")
    host_devices = map(decision.snapshot.host.device, offer.host_devices)
    return tuple(host_device for host_device in host_devices if host_device is not None)


def find_direct_rule(resource: Resource, decision: Decision) -> DirectRule | None:
    """The rule for device nodes or CDI devices that defines the resource; None if there is none."""
    rules = (rule for rule in decision.snapshot.spec.rules if isinstance(rule, DirectRule))
    return next((rule for rule in rules if rule.name == resource.name), None)


def direct_grant(resource: Resource, device_ids: Iterable[str], decision: Decision) -> Grant:
    """The Allocate response for devices of a rule for device nodes or CDI devices, Healthy or not.

    :raises AllocationRefused: if no rule offers the resource any more.
    """
    rule = find_direct_rule(resource, decision)
    if rule is None:
        raise AllocationRefused(f"{resource.name} is no longer offered", "remove it from the pod")
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.grant(rule, device_ids, decision.snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.grant(rule, device_ids, decision.snapshot)


def find_direct_sources(rule: DirectRule, device_ids: Iterable[str], snapshot: Snapshot) -> tuple[str, ...]:
    """The paths and addresses on which the health of device nodes or CDI devices depends."""
    if isinstance(rule, CdiRule):
        from nodeagent.policy.offer import cdi_rules

        return cdi_rules.find_sources(rule, device_ids, snapshot)
    from nodeagent.policy.offer import node_rules

    return node_rules.find_sources(rule, device_ids, snapshot)
