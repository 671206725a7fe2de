# SPDX-License-Identifier: Apache-2.0
"""The devices in an answer to an Allocate: the kubelet's checkpoint keeps it while a pod has the id.

An id may stand for more than its own device: a bundle, a group. The variables that virt-launcher reads name
each function and mdev (``PCI_RESOURCE_*``, ``MDEV_PCI_RESOURCE_*``, in KubeVirt's pkg/util/util.go), and the
nodes name the groups, whatever plugin has answered.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.model.ids import GroupNumber, mdev_uuid, pci_address

_VARIABLES = ("PCI_RESOURCE_", "MDEV_PCI_RESOURCE_")
_GROUP = re.compile(r"/dev/vfio/(?P<number>[0-9]+)")


class Answer(NamedTuple):
    """The host devices that it names, the IOMMU groups whose nodes it has, all other nodes, and CDI names."""

    host_devices: tuple[str, ...] = ()
    groups: frozenset[GroupNumber] = frozenset()
    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


@lru_cache(maxsize=4096)  # the file is read after each Allocate, and most of its answers are those of before
def parse_allocate_response(text: str) -> Answer:
    """The devices in a ContainerAllocateResponse in base64; none, if it cannot be read."""
    try:
        return _from_message(v1beta1.ContainerAllocateResponse.parse(base64.b64decode(text)))
    except Exception:  # noqa: BLE001 - the file is no API: bytes of any kind
        return Answer()


def _from_message(response: v1beta1.ContainerAllocateResponse) -> Answer:
    paths = dict.fromkeys(node.host_path for node in response.devices)
    groups = {path: found["number"] for path in paths if (found := _GROUP.fullmatch(path)) is not None}
    return Answer(
        tuple(dict.fromkeys(_find_device_ids(response.envs))),
        frozenset(GroupNumber(int(each)) for each in groups.values()),
        tuple(path for path in paths if path not in groups),
        tuple(each.name for each in response.cdi_devices),
    )


def _find_device_ids(envs: Mapping[str, str]) -> Iterator[str]:
    for name, value in envs.items():
        if name.startswith(_VARIABLES):
            for word in value.split(","):
                if device_id := pci_address(word) or mdev_uuid(word):
                    yield device_id
