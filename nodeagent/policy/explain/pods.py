# SPDX-License-Identifier: Apache-2.0
"""Explains the devices of a pod by resource, in the form in which its container sees them. Pure.

The kubelet reports the pod of a device, but not its container, so the variables are shown as if one container
had all devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.model.allocation import DeviceNode, Grant, Holder
from nodeagent.model.host import HostDevice
from nodeagent.model.ids import ResourceName, pci_order
from nodeagent.model.resource import Device, Resource
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy.explain.resources import ListedDevice
from nodeagent.policy.offer import grants
from nodeagent.policy.offer.turn import Decision


class PodResource(NamedTuple):
    """The devices of one resource that a pod has, and the variables and nodes that its container gets for
    them.

    ``ours`` is false if another device plugin allocated the devices. ``gone``: ids that the resource no
    longer lists.
    """

    resource: str
    ours: bool
    devices: tuple[ListedDevice, ...]
    gone: tuple[str, ...]
    env: Mapping[str, str]
    nodes: tuple[str, ...]
    cdi: tuple[str, ...]


class PodExplanation(NamedTuple):
    """All devices of a pod, by resource."""

    pod: str
    resources: tuple[PodResource, ...]


def holders(snapshot: Snapshot) -> Mapping[str, Holder]:
    """The pod that uses each device; a pending allocation is newer than the kubelet's answer."""
    return {**snapshot.allocations.holders, **snapshot.reservations.pending}


def known(snapshot: Snapshot) -> tuple[str, ...]:
    """The pods that use devices and whose names are known."""
    return tuple(sorted({str(holder) for holder in holders(snapshot).values() if holder.named}))


def explain(pod: str, decision: Decision) -> PodExplanation | None:
    """Return the devices of the pod; None if nodeagent knows of none."""
    by_resource: dict[ResourceName, list[str]] = {}
    for device_id, holder in holders(decision.snapshot).items():
        if holder.named and str(holder) == pod:
            by_resource.setdefault(holder.resource, []).append(device_id)
    if not by_resource:
        return None
    parts = [(name, sorted(ids, key=pci_order)) for name, ids in sorted(by_resource.items())]
    return PodExplanation(pod, tuple(_part(name, ids, pod, decision) for name, ids in parts))


def _part(name: ResourceName, ids: list[str], pod: str, decision: Decision) -> PodResource:
    resource = decision.resources.get(name)
    if resource is None:
        theirs = tuple(ListedDevice(each, True, None, pod) for each in ids)
        return PodResource(name, False, theirs, (), {}, (), ())
    listed = [device for device in map(resource.device, ids) if device is not None]
    gone = tuple(each for each in ids if resource.device(each) is None)
    grant = _grant(resource, listed, decision)
    nodes = tuple(node.path for node in grant.nodes)
    devices = tuple(ListedDevice(each.id, each.healthy, each.reason, pod) for each in listed)
    return PodResource(name, True, devices, gone, dict(grant.envs), nodes, tuple(grant.cdi))


def _grant(resource: Resource, devices: list[Device], decision: Decision) -> Grant:
    """The Allocate response for these devices, Healthy or not, because the pod already uses them."""
    if resource.direct:
        return grants.direct_grant(resource, [device.id for device in devices], decision)
    present = [each for device in devices for each in _behind(device.id, decision)]
    envs = grants.environment(resource, present)
    if resource.cdi:
        return Grant(envs, (), tuple(f"{grants.CDI_KIND}={device.id}" for device in devices))
    paths = grants.device_nodes(present, resource.iommufd, decision.snapshot.host)
    return Grant(envs, tuple(map(DeviceNode, paths)))


def _behind(device_id: str, decision: Decision) -> list[HostDevice]:
    offer = decision.offer_of(device_id)
    ids = (device_id,) if offer is None else offer.host_devices
    return [each for each in map(decision.snapshot.host.device, ids) if each is not None]
