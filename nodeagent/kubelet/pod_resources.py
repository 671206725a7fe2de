# SPDX-License-Identifier: Apache-2.0
"""Which pod uses which device: the kubelet's PodResources API (podresources v1), all resources in one List.

The answer names active pods with their devices, also those of other device plugins. It may be empty or
incomplete right after a kubelet start; ``agent.usage`` decides what that means.

Ids are unique within a resource only. Numeric ids are shares of a device, except those of virt-handler's
plugins for PCI devices and mdevs, whose ids are IOMMU groups (``constructDPIdevices`` in
pkg/virt-handler/device-manager/pci_device.go, ``constructDPIdevicesFromMdev`` in mediated_device.go).
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
    """Which resources virt-handler's own plugins serve: their sockets in the kubelet's directory say so.

    Its plugin for PCI devices names the socket after the resource, the one for mdevs omits the vendor
    (``NewPCIDevicePlugin``, ``NewMediatedDevicePlugin`` in pkg/virt-handler/device-manager). A kubelet that
    starts removes the sockets, so a resource that was served once is remembered.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: set[str] = set()

    def learn(self, resources: Iterable[str]) -> None:
        """These resources have IOMMU groups as ids."""
        self._seen.update(resources)

    def serves(self, resource: str) -> bool:
        """True if the ids of this resource are numbers of IOMMU groups."""
        if resource not in self._seen:
            names = (resource.replace("/", "-"), resource.partition("/")[2])
            if not any(os.path.lexists(f"{self._directory}/kubevirt-{name}.sock") for name in names):
                return False
            self._seen.add(resource)
        return True


class PodReader:
    """Asks the kubelet at one socket, over one connection."""

    def __init__(self, path: str, virt_handler: VirtHandler, limit: float) -> None:
        """``limit``: seconds for an answer."""
        self._path = path
        self._channel = grpc.SocketChannel(path)
        self._virt_handler = virt_handler
        self._limit = limit

    async def pods(self) -> PodList:
        """Which pod has which device.

        :raises KubeletUnavailable: without an answer in time.
        :raises KubeletAway: if no process listens.
        """
        stub = v1.PodResourcesListerStub(self._channel)
        try:
            answer = await grpc.call(stub.list(v1.ListPodResourcesRequest(), timeout=self._limit))
        except KubeletUnavailable as error:
            raise type(error)(f"{self._path}: {error.what}") from error
        return _pod_list(answer, self._virt_handler)

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._channel.close()


def _pod_list(answer: v1.ListPodResourcesResponse, virt_handler: VirtHandler) -> PodList:
    """The devices by resource and id, and by pod. The kubelet lists pods in no order: here it is by name."""
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
        pods[name] = pods.get(name, frozenset()) | shown  # a pod that ends, and the next one of its name
    return PodList(table, pods)


def _numa(topology: v1.TopologyInfo | None) -> int | None:
    return topology.nodes[0].id if topology is not None and topology.nodes else None
