# SPDX-License-Identifier: Apache-2.0
"""The state of the fake kubelet: device tables with the checkpoint, pods, faults and statistics.

The tables follow pkg/kubelet/cm/devicemanager/manager.go of Kubernetes 1.36: a list replaces the whole table
of its resource; only ``Healthy`` counts as healthy; a lost plugin makes all its devices unhealthy at once,
and the resource is removed five minutes later; allocations survive a restart in
``kubelet_internal_checkpoint``. The checkpoint is written only after each ListAndWatch message and after each
container with devices.

Every change wakes the tasks that wait in ``until``; nothing polls. This module does not use gRPC.
"""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from nodeagent.base.latest import Latest
from nodeagent.sim.apiserver.store import Store
from nodeagent.sim.faults import Faults

CHECKPOINT = "kubelet_internal_checkpoint"
REMEMBERED = 1000  # lists kept per resource
STOP_GRACE = 300.0  # seconds that a resource without a plugin keeps its capacity


@dataclass(frozen=True, slots=True)
class ListedDevice:
    """One device of a received list: ``nodes`` are NUMA node ids, None without topology."""

    id: str
    health: str
    nodes: tuple[int, ...] | None = None

    @property
    def healthy(self) -> bool:
        """Return True if the health is spelled exactly ``Healthy``."""
        return self.health == "Healthy"


@dataclass(slots=True)
class ContainerDevices:
    """The devices of one resource in one container, with the raw response to the Allocate call."""

    pod_uid: str
    container: str
    resource: str
    ids: tuple[str, ...]
    response: bytes


class DeviceTable:
    """All resources that were registered since the start, or that pods use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._saved = 0
        self.devices: dict[str, dict[str, ListedDevice]] = {}
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.stopped: dict[str, float] = {}
        self.held: list[ContainerDevices] = []
        # ids that are not free, including those in a running Allocate
        self.allocated: dict[str, set[str]] = {}
        self.full = False  # simulates a full disk: the checkpoint is not written

    def mark_connected(self, resource: str) -> None:
        """Record that a plugin has registered; its devices come with the first list."""
        self.stopped.pop(resource, None)

    def update(self, resource: str, devices: Iterable[ListedDevice]) -> None:
        """Replace the table of the resource and write the checkpoint; of equal ids the last one counts."""
        table = {device.id: device for device in devices}
        self.devices[resource] = table
        self.healthy[resource] = {name for name, device in table.items() if device.healthy}
        self.unhealthy[resource] = set(table) - self.healthy[resource]
        self.save()

    def mark_lost(self, resource: str) -> None:
        """Record that the plugin has disconnected, and mark all its devices unhealthy."""
        self.unhealthy.setdefault(resource, set()).update(self.healthy.get(resource, ()))
        self.healthy[resource] = set()
        self.stopped[resource] = anyio.current_time()

    def is_known(self, resource: str) -> bool:
        """Return True if the resource has sent a list or a pod uses one of its devices."""
        return resource in self.healthy or any(held.resource == resource for held in self.held)

    def capacity(self, resource: str) -> int:
        """Return the number of listed devices; 0 if the plugin disconnected five minutes ago or earlier."""
        stopped = self.stopped.get(resource)
        if stopped is not None and anyio.current_time() - stopped >= STOP_GRACE:
            return 0
        return len(self.healthy.get(resource, ())) + len(self.unhealthy.get(resource, ()))

    def allocatable(self, resource: str) -> int:
        """Return the number of healthy devices."""
        return len(self.healthy.get(resource, ()))

    def recount_allocated(self) -> None:
        """Free all ids that are not allocated; as in the real kubelet, this includes ids in a running
        Allocate.
        """
        self.allocated = {}
        for held in self.held:
            self.allocated.setdefault(held.resource, set()).update(held.ids)

    def in_use(self, resource: str) -> set[str]:
        """Return the ids that containers use."""
        return {name for held in self.held if held.resource == resource for name in held.ids}

    def release_all_but(self, uids: set[str]) -> None:
        """Free the devices of all other pods; the checkpoint lists them until its next write."""
        left = [held for held in self.held if held.pod_uid in uids]
        if len(left) < len(self.held):
            self.held = left
            self.recount_allocated()

    def save(self) -> bool:
        """Write the checkpoint to a temporary file ``.NNN`` and rename it; return False if the disk is
        full.
        """
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
        """Load the allocations in the checkpoint; resources are empty until their plugins register."""
        self.devices, self.healthy, self.unhealthy, self.stopped, self.held = {}, {}, {}, {}, []
        self.allocated = {}
        path = self._directory / CHECKPOINT
        if not path.exists():
            return
        data = json.loads(path.read_text())["Data"]
        for resource in data["RegisteredDevices"]:
            self.mark_lost(resource)
        self.held = [_held(entry) for entry in data["PodDeviceEntries"]]
        self.recount_allocated()


def ids_of(table: DeviceTable, pod_uid: str, container: str, resource: str) -> tuple[str, ...]:
    """Return the ids of the resource that this container uses."""
    wanted = (pod_uid, container, resource)
    found = (each.ids for each in table.held if (each.pod_uid, each.container, each.resource) == wanted)
    return next(found, ())


def has_topology(table: DeviceTable, resource: str) -> bool:
    """Return True if a device of the resource was listed with a NUMA node."""
    return any(device.nodes for device in table.devices.get(resource, {}).values())


def health_of(table: DeviceTable, pod_uid: str) -> dict[str, str]:
    """Return Healthy or Unhealthy by device id for the pod's status (KEP-4680).

    The last list counts, even after the plugin has disconnected; an id that is not listed is Healthy.
    """
    seen: dict[str, str] = {}
    for held in table.held:
        if held.pod_uid == pod_uid:
            listed = table.devices.get(held.resource, {})
            for name in held.ids:
                seen[name] = "Healthy" if name not in listed or listed[name].healthy else "Unhealthy"
    return seen


def _entry(held: ContainerDevices, devices: Mapping[str, Mapping[str, ListedDevice]]) -> dict[str, Any]:
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


def _held(entry: dict[str, Any]) -> ContainerDevices:
    ids = dict.fromkeys(name for names in entry["DeviceIDs"].values() for name in names)
    return ContainerDevices(
        entry["PodUID"],
        entry["ContainerName"],
        entry["ResourceName"],
        tuple(ids),
        base64.b64decode(entry["AllocResp"]),
    )


@dataclass(slots=True)
class Registration:
    """A Register call, or a plugin in plugins_registry; ``refusal`` is None if the kubelet accepted it."""

    resource: str
    endpoint: str
    when: float
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceList:
    """One message of a ListAndWatch stream; ``when`` is on the loop's clock, ``size`` in bytes."""

    when: float
    size: int
    devices: tuple[ListedDevice, ...]

    @property
    def health(self) -> dict[str, str]:
        """Return the health by device id."""
        return {device.id: device.health for device in self.devices}


@dataclass(frozen=True, slots=True)
class AllocateCall:
    """One Allocate call: the ids in the order of the request, its end (``when``), and its duration."""

    resource: str
    ids: tuple[str, ...]
    when: float
    seconds: float
    error: str | None = None  # None: the call succeeded


@dataclass(frozen=True, slots=True)
class ClaimCall:
    """One NodePrepareResources or NodeUnprepareResources call: the UIDs, ``when`` it ended, its duration."""

    method: str
    uids: tuple[str, ...]
    when: float
    seconds: float
    error: str | None = None  # None: the call succeeded for all claims


class PreparedDevice(NamedTuple):
    """A device of a prepared claim, as its driver has answered."""

    driver: str
    pool: str
    name: str
    requests: tuple[str, ...]
    cdi: tuple[str, ...]


@dataclass(slots=True)
class ClaimState:
    """A ResourceClaim that pods of this node use (``ClaimInfo`` in pkg/kubelet/cm/dra)."""

    namespace: str
    name: str
    uid: str
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)  # UIDs
    devices: list[PreparedDevice] = field(default_factory=list)
    prepared: bool = False  # a restarted kubelet does not know it


class DeviceHealth(NamedTuple):
    """The last health report about a device; ``updated`` in seconds since the epoch."""

    status: str  # Healthy, Unhealthy or Unknown
    message: str
    updated: int


@dataclass(slots=True)
class Statistics:
    """The recorded calls and messages since the object was created, including those before restarts."""

    registrations: list[Registration] = field(default_factory=list)
    lists: dict[str, deque[DeviceList]] = field(default_factory=dict)
    lists_total: int = 0
    allocations: list[AllocateCall] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)  # currently open streams per resource
    claims: list[ClaimCall] = field(default_factory=list)
    health_reports: int = 0  # messages of DRA drivers
    wipes: int = 0  # deletions of all slices of the node

    def accepted(self, resource: str) -> list[Registration]:
        """Return all accepted registrations of a resource."""
        return [r for r in self.registrations if r.resource == resource and r.refusal is None]


@dataclass(slots=True)
class ContainerResult:
    """The devices, variables and mounts of one started container."""

    name: str
    ids: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    envs: dict[str, str] = field(default_factory=dict, init=False)
    devices: list[tuple[str, str, str]] = field(
        default_factory=list, init=False
    )  # host, container, permissions
    mounts: list[tuple[str, str, bool]] = field(
        default_factory=list, init=False
    )  # host, container, read-only
    annotations: dict[str, str] = field(default_factory=dict, init=False)
    cdi: list[str] = field(default_factory=list, init=False)
    error: str | None = field(default=None, init=False)  # CreateContainerError: …


@dataclass(slots=True)
class Pod:
    """A pod: its requests (resource → count, per container), and the result of its admission.

    ``claims``: names of the ResourceClaims that all of its app containers use.
    """

    namespace: str
    name: str
    containers: list[dict[str, int]]
    init_containers: list[dict[str, int]] = field(default_factory=list)
    sidecars: list[dict[str, int]] = field(default_factory=list)
    uid: str = ""
    claims: list[str] = field(default_factory=list)
    phase: str = field(default="Pending", init=False)
    reason: str = field(default="", init=False)
    message: str = field(default="", init=False)
    results: dict[str, ContainerResult] = field(default_factory=dict, init=False)

    @property
    def key(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def result(self) -> ContainerResult:
        """Return the result of the first app container."""
        return self.results["c0"]


class SidecarsFirst(Pod):
    """A pod whose plain init containers come after its sidecars."""


class Paths(NamedTuple):
    """The root of the node, and the kubelet's directories below it."""

    root: Path
    plugins: Path
    pod_resources: Path
    registry: Path
    pods: Path

    @staticmethod
    def below(root: Path) -> Paths:
        """Return the kubelet's default paths below a root."""
        base = root / "var/lib/kubelet"
        return Paths(
            root, base / "device-plugins", base / "pod-resources", base / "plugins_registry", base / "pods"
        )


@dataclass(slots=True)
class Life:
    """Whether the fake kubelet runs, its start on the loop's clock, and why a real kubelet would have
    crashed.

    ``inherited``: the UIDs of the pods that existed at the start; the kubelet learns of them from the API
    server.
    """

    running: bool = field(default=False, init=False)
    started: float = field(default=0.0, init=False)
    inherited: frozenset[str] = field(default=frozenset(), init=False)
    crashed: str | None = field(default=None, init=False)


class State:
    """The state of the node as the kubelet knows it."""

    def __init__(
        self, root: Path, seed: int, topology_policy: str, api: Store | None = None, node: str = ""
    ) -> None:
        self.paths = Paths.below(root)
        self.topology_policy = topology_policy
        self.api = api
        self.node = node
        self.claims: dict[str, ClaimState] = {}  # by UID
        self.health: dict[tuple[str, str, str], DeviceHealth] = {}  # by driver, pool and device
        self.random = random.Random(seed)
        self.life = Life()
        self.statistics = Statistics()
        self.table = DeviceTable(self.paths.plugins)
        self.pods: dict[str, Pod] = {}
        self.allocating: set[str] = set()  # ids in a running Allocate
        self._changes = Latest(0)
        self.faults = Faults(self._changes)

    def changed(self) -> None:
        """Wake the tasks that wait in ``until``."""
        self._changes.touch()

    async def until(self, predicate: Callable[[], bool], timeout: float = 5.0) -> None:  # noqa: ASYNC109 (tests read well so)
        """Wait until the predicate holds. :raises TimeoutError: after ``timeout`` seconds."""
        with anyio.fail_after(timeout):
            while True:
                seen = self._changes.version
                if predicate():
                    return
                await self._changes.newer(seen)

    def receive_list(self, resource: str, size: int, devices: tuple[ListedDevice, ...]) -> None:
        """Record a list, replace the table of the resource, and crash in the cases in which the real
        kubelet does.
        """
        seen = DeviceList(anyio.current_time(), size, devices)
        self.statistics.lists.setdefault(resource, deque(maxlen=REMEMBERED)).append(seen)
        self.statistics.lists_total += 1
        first = resource not in self.table.devices
        self.table.update(resource, devices)
        if first:
            self._readmit(resource)
        self.changed()

    def crash(self, text: str) -> None:
        """Stop the fake kubelet at a point where the real one would crash with SIGSEGV."""
        self.life.crashed = self.life.crashed or text
        self.changed()

    def _readmit(self, resource: str) -> None:
        """Compute topology hints for pods with devices at the first list after a start.

        topology_hints.go of 1.36 looks up each allocated id in the new list, and crashes if it is missing.
        """
        if self.topology_policy == "none" or not has_topology(self.table, resource):
            return
        missing = self.table.in_use(resource) - set(self.table.devices[resource])
        if missing:
            self.crash(f"topology hints: {resource} no longer lists {sorted(missing)}, held by a pod")

    def claims_of(self, pod: Pod) -> list[ClaimState]:
        """Return the claims that the pod uses."""
        return [claim for claim in self.claims.values() if pod.uid in claim.pods]

    def active_pods(self) -> list[Pod]:
        """Return all pods of the node except rejected ones."""
        return [pod for pod in self.pods.values() if pod.phase != "Failed"]

    def named_pods(self) -> list[Pod]:
        """Return the active pods that PodResources lists.

        After a start the kubelet knows its static pods first, and other pods only when the API server has
        answered: after a second, or minutes later if that is unreachable. Until the API server has answered,
        the kubelet does not list the other pods, but keeps their devices and frees nothing (measured on
        1.36.3; ``sourcesReady`` in manager.go).
        """
        if self._is_young(self.faults.get("pod-resources-empty")):
            return []
        unnamed = self._unnamed()
        return [pod for pod in self.active_pods() if pod.key not in unnamed]

    def has_read_all_pods(self) -> bool:
        """Return False until the API server has sent the pods to the kubelet: see ``named_pods``."""
        unnamed = self.faults.get("pod-resources-unnamed")
        waits = bool(unnamed) if isinstance(unnamed, Collection) else self._is_young(unnamed)
        return not (waits or self._is_young(self.faults.get("pod-resources-empty")))

    def _unnamed(self) -> Collection[str]:
        setting = self.faults.get("pod-resources-unnamed")
        if isinstance(setting, Collection):
            return setting
        inherited = self.life.inherited if self._is_young(setting) else ()
        return [pod.key for pod in self.pods.values() if pod.uid in inherited]

    def _is_young(self, seconds: float | None) -> bool:
        """Return True if the kubelet was started less than this number of seconds ago."""
        return seconds is not None and anyio.current_time() - self.life.started < seconds
