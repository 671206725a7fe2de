# SPDX-License-Identifier: Apache-2.0
"""Who holds which device: the kubelet's PodResources API (podresources v1), all resources in one List.

The answer names the devices of active pods, also those of other device plugins. It may be empty or
incomplete right after a kubelet start, which its socket tells; what that means is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc.channel import open_channel
from nodeagent.model.allocation import Holder
from nodeagent.model.ids import ResourceName

LIST_LIMIT = 5.0  # seconds


async def holders(path: str, limit: float = LIST_LIMIT) -> dict[str, Holder]:
    """Device id → holder.

    :raises KubeletUnavailable: without an answer within ``limit`` seconds.
    """
    request = v1.ListPodResourcesRequest()
    try:
        async with open_channel(path) as channel:
            answer = await v1.PodResourcesListerStub(channel).list(request, timeout=limit)
    except KubeletUnavailable as error:
        raise KubeletUnavailable(f"{path}: {error.what}") from error
    return dict(_pairs(answer.pod_resources))


def born(path: str) -> float | None:
    """When the kubelet made the socket, by the clock of then; it does so at each start. None without one."""
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return None


def _pairs(pods: Iterable[v1.PodResources]) -> Iterable[tuple[str, Holder]]:
    for pod in pods:
        for container in pod.containers:
            for devices in container.devices:
                numa = _numa(devices.topology)
                name = ResourceName(devices.resource_name)
                for device_id in devices.device_ids:
                    yield device_id, Holder(pod.namespace, pod.name, name, numa)


def _numa(topology: v1.TopologyInfo | None) -> int | None:
    return topology.nodes[0].id if topology is not None and topology.nodes else None
