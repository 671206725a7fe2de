# SPDX-License-Identifier: Apache-2.0
"""What a container gets for the devices that the kubelet has chosen, in the form virt-launcher reads. Pure.

Environment: one variable per resource, addresses in the order of the requested ids (KubeVirt
pkg/util/util.go). Nodes: ``/dev/vfio/vfio`` always, for virt-handler changes owners only when it is there.
An id that is unknown or cannot be given is refused with a text for people, never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nodeagent.base.errors import Refused
from nodeagent.model.allocation import DeviceNode, Grant
from nodeagent.model.desired import NodeRule
from nodeagent.model.host import Host, PciFunction
from nodeagent.model.resource import Iommufd, Kind, Resource
from nodeagent.policy import naming
from nodeagent.policy.health import CONTAINER_NODE, IOMMUFD_NODE
from nodeagent.policy.turn import Outcome

CDI_KIND = "nodeagent.local/vfio"


def grant(resource: Resource, device_ids: Sequence[str], outcome: Outcome) -> Grant:
    """The grant for one container; raises Refused if one of the ids cannot be given."""
    check_given(resource, device_ids)
    if resource.kind is Kind.NODE:
        return _node_grant(resource, outcome)
    functions = [function for device_id in device_ids for function in _functions(device_id, outcome)]
    key = naming.env_key(resource.kind, resource.name)
    envs = ((key, ",".join(function.address for function in functions)),)
    if resource.cdi:
        return Grant(envs, (), tuple(f"{CDI_KIND}={device_id}" for device_id in device_ids))
    host = outcome.facts.host
    paths = (path for function in functions for path in vfio_nodes(function, resource.iommufd, host))
    return Grant(envs, tuple(map(DeviceNode, dict.fromkeys(paths))))


def check_given(resource: Resource, device_ids: Iterable[str]) -> None:
    """Raise Refused for the first id that is not listed, or not Healthy."""
    known = {device.id: device for device in resource.devices}
    for device_id in device_ids:
        device = known.get(device_id)  # type: ignore[call-overload]  # any text may come from the kubelet
        if device is None:
            raise Refused(
                f"{resource.name}: {device_id} is not a device of this node",
                "the kubelet's list is renewed; try the pod again",
            )
        if device.reason is not None:
            raise Refused(f"{resource.name}: {device_id}: {device.reason.what}", device.reason.hint)


def vfio_nodes(function: PciFunction, iommufd: Iommufd, host: Host) -> tuple[str, ...]:
    """The device nodes for one function, in the order in which they are given."""
    group = host.groups.get(function.group) if function.group is not None else None
    paths = [CONTAINER_NODE]
    if iommufd is not Iommufd.ONLY and group is not None and group.node:
        paths.append(f"/dev/vfio/{group.number}")
    if iommufd is not Iommufd.NEVER and function.cdev and IOMMUFD_NODE in host.nodes:
        paths += [f"/dev/vfio/devices/{function.vfio_device}", IOMMUFD_NODE]
    return tuple(path for path in paths if path != CONTAINER_NODE or path in host.nodes)


def cdi_spec(resource: Resource, outcome: Outcome) -> dict[str, object]:
    """The CDI document (version 0.5.0) with the nodes of each Healthy device of a resource."""
    devices = [
        {"name": device.id, "containerEdits": {"deviceNodes": _cdi_nodes(resource, device.id, outcome)}}
        for device in resource.devices
        if device.healthy
    ]
    return {"cdiVersion": "0.5.0", "kind": CDI_KIND, "devices": devices}


def _cdi_nodes(resource: Resource, device_id: str, outcome: Outcome) -> list[dict[str, str]]:
    host = outcome.facts.host
    functions = _functions(device_id, outcome)
    paths = (path for function in functions for path in vfio_nodes(function, resource.iommufd, host))
    return [{"path": path, "permissions": "rwm"} for path in dict.fromkeys(paths)]


def _functions(device_id: str, outcome: Outcome) -> tuple[PciFunction, ...]:
    offer = outcome.offer_of(device_id)
    if offer is None:
        raise Refused(f"{device_id} is not offered any more", "try the pod again")
    return tuple(outcome.facts.host.functions[address] for address in offer.functions)


def _node_grant(resource: Resource, outcome: Outcome) -> Grant:
    rules = (rule for rule in outcome.facts.desired.rules if isinstance(rule, NodeRule))
    rule = next((rule for rule in rules if rule.name == resource.name), None)
    if rule is None:
        raise Refused(f"{resource.name} is not offered any more", "remove it from the pod")
    return Grant(nodes=(DeviceNode(rule.path, rule.permissions),))
