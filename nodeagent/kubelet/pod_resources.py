# SPDX-License-Identifier: Apache-2.0
"""Reads the devices of each pod with one List call to the kubelet's PodResources API (podresources v1).

The response contains the active pods with their devices, including those of other device plugins. Just after
a start of the kubelet, the response may be empty or incomplete; ``agent.usage`` takes this into account.

Device ids are unique within a resource only. A numeric id is normally one of several shares of a device, but
virt-handler's device plugins for PCI devices and mdevs use the numbers of IOMMU groups as ids
(``constructDPIdevices`` in pkg/virt-handler/device-manager/pci_device.go, ``constructDPIdevicesFromMdev`` in
mediated_device.go).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet import grpc
from nodeagent.kubelet.api.podresources import v1
from nodeagent.model.allocation import Holder, PodList, ResourceDevice
from nodeagent.model.ids import ResourceName


class VirtHandler:
    """Finds the resources of virt-handler's device plugins from their sockets in the kubelet's directory.

    The socket of its PCI plugin has the name of the resource; that of its mdev plugin omits the vendor
    (``NewPCIDevicePlugin``, ``NewMediatedDevicePlugin`` in pkg/virt-handler/device-manager). A starting
    kubelet removes the sockets, so a resource that was found once is remembered.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: set[str] = set()

    def learn(self, resources: Iterable[str]) -> None:
        """Record that the device ids of these resources are IOMMU groups."""
        self._seen.update(resources)

    def serves(self, resource: str) -> bool:
        """Return True if the device ids of this resource are IOMMU groups."""
        if resource not in self._seen:
            names = (resource.replace("/", "-"), resource.partition("/")[2])
            if not any(os.path.lexists(f"{self._directory}/kubevirt-{name}.sock") for name in names):
                return False
            self._seen.add(resource)
        return True


class PodReader:
    """A client of the PodResources API with one connection."""

    def __init__(self, path: str, virt_handler: VirtHandler, limit: float) -> None:
        """Create the client; ``limit`` is the timeout of a call in seconds."""
        self._path = path
        self._channel = grpc.SocketChannel(path)
        self._virt_handler = virt_handler
        self._limit = limit

    async def pods(self) -> PodList:
        """Return the devices of each pod.

        :raises KubeletUnavailable: if there is no response in time.
        :raises KubeletAway: if no process listens.
        """
        stub = v1.PodResourcesListerStub(self._channel)
        try:
            answer = await grpc.call(stub.list(v1.ListPodResourcesRequest(), timeout=self._limit))
        except KubeletUnavailable as error:
            raise type(error)(f"{self._path}: {error.what}") from error
        return _pod_list(answer, self._virt_handler)

    def close(self) -> None:
        """Close the connection, if it is open."""
        self._channel.close()


def _pod_list(answer: v1.ListPodResourcesResponse, virt_handler: VirtHandler) -> PodList:
    """Return the devices by resource and id, and by pod, sorted by pod name: the kubelet lists pods in
    random order.
    """
    table: dict[ResourceName, dict[str, Holder]] = {}
    pods: dict[str, frozenset[ResourceDevice]] = {}
    for pod in sorted(answer.pod_resources, key=lambda each: (each.namespace, each.name)):
        shown: set[ResourceDevice] = set()
        for devices in (each for container in pod.containers for each in container.devices):
            resource = ResourceName(devices.resource_name)
            holder = Holder(pod.namespace, pod.name, resource, _numa(devices.topology))
            shown.update((resource, each) for each in devices.device_ids)
            for device_id in devices.device_ids:
                if not device_id.isdecimal() or virt_handler.serves(resource):
                    table.setdefault(resource, {})[device_id] = holder
        name = f"{pod.namespace}/{pod.name}"
        # a pod that is ending, and a new one with the same name
        pods[name] = pods.get(name, frozenset()) | shown
    return PodList(table, pods)


def _numa(topology: v1.TopologyInfo | None) -> int | None:
    return topology.nodes[0].id if topology is not None and topology.nodes else None
