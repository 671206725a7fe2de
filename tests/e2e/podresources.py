# SPDX-License-Identifier: Apache-2.0
"""The kubelet's own answer to what it can give away and who has what: the PodResources API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import anyio

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.timeouts import Timeouts
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import call
from nodeagent.kubelet.pod_resources import PodReader, VirtHandler
from nodeagent.model.allocation import Allocations, Holder, PodList
from nodeagent.policy.dra.devices import find_lead_id
from tests.kubelet.serving import open_channel

T = TypeVar("T")

LIMIT = 1.0  # seconds for one answer
_NOBODY = VirtHandler("/nonexistent")


def allocatable(kubelet_directory: Path) -> Counter[str]:
    """Resource → number of healthy devices; raises OSError while the kubelet does not answer."""
    path = _socket(kubelet_directory)

    async def ask() -> Counter[str]:
        async with open_channel(path) as channel:
            stub = v1.PodResourcesListerStub(channel)
            request = v1.AllocatableResourcesRequest()
            answer = await call(stub.get_allocatable_resources(request, timeout=LIMIT))
        counted: Counter[str] = Counter()
        for devices in answer.devices:
            counted[devices.resource_name] += len(devices.device_ids)
        return counted

    return _run(ask)


def named(kubelet_directory: Path) -> dict[str, frozenset[str]]:
    """Pod → ids of its devices, also those of claims, for all pods that the kubelet names.

    Raises OSError as the others do.
    """
    path = _socket(kubelet_directory)

    async def ask() -> dict[str, frozenset[str]]:
        async with open_channel(path) as channel:
            stub = v1.PodResourcesListerStub(channel)
            answer = await call(stub.list(v1.ListPodResourcesRequest(), timeout=LIMIT))
        return {pod.name: frozenset(_ids(pod)) for pod in answer.pod_resources}

    return _run(ask)


def _ids(pod: v1.PodResources) -> Iterator[str]:
    for container in pod.containers:
        for devices in container.devices:
            yield from devices.device_ids
        for claim in container.dynamic_resources:
            yield from (find_lead_id(device.device_name) for device in claim.claim_resources)


def holders(kubelet_directory: Path) -> Mapping[str, Holder]:
    """Device id → who has it; raises OSError while the kubelet does not answer."""
    path = _socket(kubelet_directory)

    async def ask() -> PodList:
        with closing(PodReader(path, _NOBODY, Timeouts().pod_resources_rpc)) as reader:
            return await reader.pods()

    return Allocations(_run(ask).table).holders


def _run(ask: Callable[[], Awaitable[T]]) -> T:
    try:
        return anyio.run(ask)
    except KubeletUnavailable as error:
        raise OSError(error.what) from error


def _socket(kubelet_directory: Path) -> str:
    return str(kubelet_directory / "pod-resources/kubelet.sock")
