# SPDX-License-Identifier: Apache-2.0
"""The kubelet's own answer to what it can give away and who has what: the PodResources API."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import anyio

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.kubelet import podresources
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc.channel import open_channel
from nodeagent.model.allocation import Holder

LIMIT = 1.0  # seconds for one answer
_NOBODY = podresources.VirtHandler("/nonexistent")


def allocatable(kubelet_directory: Path) -> Counter[str]:
    """Resource → number of healthy devices; raises OSError while the kubelet does not answer."""
    path = _socket(kubelet_directory)

    async def ask() -> Counter[str]:
        async with open_channel(path) as channel:
            stub = v1.PodResourcesListerStub(channel)
            answer = await stub.get_allocatable_resources(v1.AllocatableResourcesRequest(), timeout=LIMIT)
        counted: Counter[str] = Counter()
        for devices in answer.devices:
            counted[devices.resource_name] += len(devices.device_ids)
        return counted

    try:
        return anyio.run(ask)
    except KubeletUnavailable as error:
        raise OSError(error.what) from error


def holders(kubelet_directory: Path) -> Mapping[str, Holder]:
    """Device id → who has it; raises OSError while the kubelet does not answer."""
    try:
        return anyio.run(podresources.pods, _socket(kubelet_directory), _NOBODY).holders
    except KubeletUnavailable as error:
        raise OSError(error.what) from error


def _socket(kubelet_directory: Path) -> str:
    return str(kubelet_directory / "pod-resources/kubelet.sock")
