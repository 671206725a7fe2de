# SPDX-License-Identifier: Apache-2.0
"""The stand-in kubelet's device tables: what was listed, what is healthy, what is held; and its file.

Follows pkg/kubelet/cm/devicemanager/manager.go of Kubernetes 1.36: a list replaces the whole table of its
resource, only ``Healthy`` is healthy, a lost plugin makes all unhealthy at once and is forgotten five
minutes later, and what pods hold survives a restart in ``kubelet_internal_checkpoint``. That file is written
after each list and after each container that got devices, and only then. Knows no gRPC.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

CHECKPOINT = "kubelet_internal_checkpoint"
STOP_GRACE = 300.0  # seconds that a resource without a plugin keeps its capacity


@dataclass(frozen=True, slots=True)
class SeenDevice:
    """One entry of a list as it came: ``nodes`` are NUMA ids, None without topology."""

    id: str
    health: str
    nodes: tuple[int, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Only this spelling counts."""
        return self.health == "Healthy"


@dataclass(slots=True)
class Held:
    """What one container of one pod holds of one resource, with the raw answer to its Allocate."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: bytes


class DeviceTable:
    """All resources that ever registered since the start, or that pods hold."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved = 0
        self.devices: dict[str, dict[str, SeenDevice]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.stopped: dict[str, float] = {}
        self.held: list[Held] = []
        self.allocated: dict[str, set[str]] = {}  # what is not free: what is held, and what is being given
        self.full = False  # the disk: the checkpoint stays as it is

    def connected(self, resource: str) -> None:
        """A plugin has registered; its devices come with the first list."""
        self.stopped.pop(resource, None)

    def update(self, resource: str, devices: Iterable[SeenDevice]) -> None:
        """Replace the table of the resource, and write the checkpoint; of equal ids the last wins."""
        table = {device.id: device for device in devices}
        self.devices[resource] = table
        self.healthy[resource] = {name for name, device in table.items() if device.healthy}
        self.unhealthy[resource] = set(table) - self.healthy[resource]
        self.save()

    def lost(self, resource: str) -> None:
        """The plugin has gone: all its devices are unhealthy from now on."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        self.healthy[resource] = set()
        self.stopped[resource] = anyio.current_time()

    def known(self, resource: str) -> bool:
        """True if the resource has sent a list or a pod holds some of it."""
        return resource in self.healthy or any(held.resource == resource for held in self.held)

    def capacity(self, resource: str) -> int:
        """All listed devices; 0 once the plugin has been away for five minutes."""
        stopped = self.stopped.get(resource)
        if stopped is not None and anyio.current_time() - stopped >= STOP_GRACE:
            return 0
        return len(self.healthy.get(resource, ())) + len(self.unhealthy.get(resource, ()))

    def allocatable(self, resource: str) -> int:
        """The healthy ones."""
        return len(self.healthy.get(resource, ()))

    def count_again(self) -> None:
        """Only what is held is not free: what is being given just now is forgotten, as the real one does."""
        self.allocated = {}
        for held in self.held:
            self.allocated.setdefault(held.resource, set()).update(held.ids)

    def in_use(self, resource: str) -> set[str]:
        """Ids that some container holds."""
        return {name for held in self.held if held.resource == resource for name in held.ids}

    def release_all_but(self, uids: set[str]) -> None:
        """Free what belongs to pods that are gone; the checkpoint names them until its next write."""
        left = [held for held in self.held if held.pod_uid in uids]
        if len(left) < len(self.held):
            self.held = left
            self.count_again()

    def save(self) -> bool:
        """Write the checkpoint: a temporary ``.NNN`` beside it, then rename; False if the disk is full."""
        if self.full:
            return False
        data = {
            "PodDeviceEntries": [_entry(held, self.devices) for held in self.held],
            "RegisteredDevices": {name: sorted(ids) for name, ids in self.healthy.items()},
        }
        text = json.dumps(data, sort_keys=True)
        checksum = zlib.crc32(text.encode())
        self._saved += 1
        temporary = self._directory / f".{self._saved}"
        temporary.write_text(f'{{"Data": {text}, "Checksum": {checksum}}}')
        temporary.chmod(0o600)
        temporary.rename(self._directory / CHECKPOINT)
        return True

    def load(self) -> None:
        """Start anew from the checkpoint: holders stay, resources are empty until they register."""
        self.devices, self.healthy, self.unhealthy, self.stopped, self.held = {}, {}, {}, {}, []
        self.allocated = {}
        path = self._directory / CHECKPOINT
        if not path.exists():
            return
        data = json.loads(path.read_text())["Data"]
        for resource in data["RegisteredDevices"]:
            self.lost(resource)
        self.held = [_held(entry) for entry in data["PodDeviceEntries"]]
        self.count_again()


def forget(table: DeviceTable, resource: str) -> None:
    """The plugin has been away for five minutes: the resource goes from the table and from the file."""
    for part in (table.devices, table.healthy, table.unhealthy, table.stopped):
        part.pop(resource, None)
    table.save()


def ids_of(table: DeviceTable, pod_uid: str, container: str, resource: str) -> tuple[str, ...]:
    """What this container has of the resource."""
    wanted = (pod_uid, container, resource)
    found = (each.ids for each in table.held if (each.pod_uid, each.container, each.resource) == wanted)
    return next(found, ())


def has_topology(table: DeviceTable, resource: str) -> bool:
    """True if some device of the resource says where it sits."""
    return any(device.nodes for device in table.devices.get(resource, {}).values())


def health_of(table: DeviceTable, pod_uid: str) -> dict[str, str]:
    """Device id → Healthy or Unhealthy in the pod's status (KEP-4680).

    The last list counts, also after the plugin's death; an id that is not listed is Healthy.
    """
    seen: dict[str, str] = {}
    for held in table.held:
        if held.pod_uid == pod_uid:
            listed = table.devices.get(held.resource, {})
            for name in held.ids:
                seen[name] = "Healthy" if name not in listed or listed[name].healthy else "Unhealthy"
    return seen


def _entry(held: Held, devices: Mapping[str, Mapping[str, SeenDevice]]) -> dict[str, Any]:
    table = devices.get(held.resource, {})
    by_node: dict[str, list[str]] = {}
    for name in held.ids:
        nodes = table[name].nodes if name in table else None
        for node in nodes or (-1,):
            by_node.setdefault(str(node), []).append(name)
    return {
        "PodUID": held.pod_uid,
        "ContainerName": held.container,
        "ResourceName": held.resource,
        "DeviceIDs": by_node,
        "AllocResp": base64.b64encode(held.response).decode(),
    }


def _held(entry: dict[str, Any]) -> Held:
    ids = dict.fromkeys(name for names in entry["DeviceIDs"].values() for name in names)
    return Held(
        entry["PodUID"],
        entry["ContainerName"],
        entry["ResourceName"],
        tuple(ids),
        base64.b64decode(entry["AllocResp"]),
    )
