# SPDX-License-Identifier: Apache-2.0
"""Reads the kubelet's device manager checkpoint: the device ids allocated to pods.

The file is not an API (pkg/kubelet/cm/devicemanager/checkpoint), so unexpected content is tolerated. The
kubelet writes it after the last Allocate of a container and after each ListAndWatch message, but not when a
pod ends, so it may list pods that have ended. Each write replaces the whole file from the kubelet's memory.

The file also contains the response to each Allocate, which shows all devices of an id: one id may represent
several devices (a bundle or an IOMMU group). The variables for virt-launcher name each function and mdev
(``PCI_RESOURCE_*``, ``MDEV_PCI_RESOURCE_*``, in KubeVirt's pkg/util/util.go), and the device nodes name the
groups; this holds for every device plugin.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

from nodeagent.kubelet.api.deviceplugin import v1beta1
from nodeagent.model.allocation import ResourceDevice
from nodeagent.model.ids import GroupNumber, ResourceName, mdev_uuid, pci_address

Stamp = tuple[int, int, int]
"""Inode, modification time in ns, size; the kubelet creates a new file for each write."""

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
_VARIABLES = ("PCI_RESOURCE_", "MDEV_PCI_RESOURCE_")
_GROUP = re.compile(r"/dev/vfio/(?P<number>[0-9]+)")


class AllocatedDevices(NamedTuple):
    """The devices in an Allocate response: host devices, IOMMU groups, other device nodes, CDI names."""

    host_devices: tuple[str, ...] = ()
    groups: frozenset[GroupNumber] = frozenset()
    nodes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


class Entry(NamedTuple):
    """One device id allocated to one pod; ``numa`` is the NUMA node that was advertised for it.

    ``answer``: the devices in the response of the Allocate call that contained this id.
    """

    uid: str
    resource: ResourceName
    device_id: str
    numa: int | None
    answer: AllocatedDevices = AllocatedDevices()


class Checkpoint(NamedTuple):
    """The entries of the file. Only if the whole file is ``readable``, a missing entry means "not allocated".

    ``registered``: the Healthy ids of each resource in the last ListAndWatch message of its device plugin.
    """

    stamp: Stamp | None = None  # None: the file does not exist or cannot be read
    entries: tuple[Entry, ...] = ()
    readable: bool = False
    missing: bool = False
    registered: Mapping[str, Sequence[str]] = MappingProxyType({})

    @property
    def listed_devices(self) -> frozenset[ResourceDevice]:
        """Return all device ids that the file lists as allocated."""
        return frozenset((each.resource, each.device_id) for each in self.entries)


class CheckpointFile:
    """The checkpoint file; it is parsed again only after a change."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = Checkpoint()
        self._one_by_one = Lock()  # a slow read of an old file must not replace a newer one

    def read(self) -> Checkpoint:
        """Return the current content of the file. Blocks."""
        with self._one_by_one:
            try:
                self._last = self._read()
            except FileNotFoundError:
                self._last = Checkpoint(missing=True)
            except OSError:
                self._last = Checkpoint()
            return self._last

    def _read(self) -> Checkpoint:
        with Path(self._path).open("rb") as file:
            # stat the opened file, because the kubelet may replace it meanwhile
            status = os.fstat(file.fileno())
            stamp = status.st_ino, status.st_mtime_ns, status.st_size
            # file systems with timestamps in whole seconds cannot show every change
            if stamp == self._last.stamp and status.st_mtime_ns % 10**9:
                return self._last
            entries, readable, registered = _entries(file)
        found = Checkpoint(stamp, entries, readable, registered=registered)
        return self._last if found == self._last else found


def known_resources(path: str) -> frozenset[str] | None:
    """Return the resources that the kubelet knows; None if the file cannot be read. Blocks.

    The kubelet writes the file after it removes a resource, before it updates its Node (``GetCapacity`` in
    devicemanager/manager.go).
    """
    try:
        data = json.loads(Path(path).read_bytes())["Data"]
        registered, pods = data["RegisteredDevices"], data["PodDeviceEntries"]
        return frozenset(registered or ()) | {pod["ResourceName"] for pod in pods or ()}
    except _UNREADABLE:
        return None


def _entries(file: BinaryIO) -> tuple[tuple[Entry, ...], bool, Mapping[str, Sequence[str]]]:
    """Return the entries that can be parsed, True if no other entry exists, and the registered ids."""
    try:
        data = json.loads(file.read())["Data"]
        pods = tuple(data["PodDeviceEntries"] or ())
    except _UNREADABLE:
        return (), False, {}
    registered = data.get("RegisteredDevices") or {}
    found: dict[Entry, None] = {}
    readable = True
    for pod in pods:
        try:
            found |= dict.fromkeys(_of_pod(pod))
        except _UNREADABLE:
            readable = False
    if not isinstance(registered, dict):
        registered = {}
    return tuple(found), readable, {name: ids for name, ids in registered.items() if isinstance(ids, list)}


def _of_pod(pod: dict[str, Any]) -> Iterator[Entry]:
    """Yield the entries of a pod.

    The device ids are grouped by NUMA node ("-1": none).

    A numeric id is one of several shares of a device, unless the Allocate response contains the node of the
    IOMMU group with that number: then virt-handler's device plugin has allocated the group.
    """
    answer = parse_allocate_response(pod.get("AllocResp") or "")
    for node, ids in pod["DeviceIDs"].items():
        numa = int(node)
        for device_id in map(str, ids):
            if device_id.isdecimal() and int(device_id) not in answer.groups:
                continue
            yield Entry(
                str(pod["PodUID"]),
                ResourceName(pod["ResourceName"]),
                str(device_id),
                numa if numa >= 0 else None,
                answer,
            )


@lru_cache(maxsize=4096)  # the file is read after each Allocate, and most responses in it are unchanged
def parse_allocate_response(text: str) -> AllocatedDevices:
    """Return the devices in a base64 ContainerAllocateResponse; an unreadable response has none."""
    try:
        return _from_message(v1beta1.ContainerAllocateResponse.parse(base64.b64decode(text)))
    except Exception:  # noqa: BLE001 - the file is no API: bytes of any kind
        return AllocatedDevices()


def _from_message(response: v1beta1.ContainerAllocateResponse) -> AllocatedDevices:
    paths = dict.fromkeys(node.host_path for node in response.devices)
    groups = {path: found["number"] for path in paths if (found := _GROUP.fullmatch(path)) is not None}
    return AllocatedDevices(
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
