# SPDX-License-Identifier: Apache-2.0
"""What the parts of the stand-in kubelet share: its paths, faults, statistics, pods and tables.

Every change wakes those who wait in ``until``; nobody polls. Knows no gRPC.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import anyio

from nodeagent.base.latest import Latest
from nodeagent.sim.faults import Faults
from nodeagent.sim.kubelet.devices import DeviceTable, SeenDevice, has_topology

REMEMBERED = 1000  # lists kept per resource


@dataclass(slots=True)
class Registration:
    """One call of Register, or one plugin found in plugins_registry; ``refusal`` None if accepted."""

    resource: str
    endpoint: str
    when: float
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class ListSeen:
    """One message of a ListAndWatch stream; ``when`` is the loop's time, ``size`` in bytes."""

    when: float
    size: int
    devices: tuple[SeenDevice, ...]

    @property
    def health(self) -> dict[str, str]:
        """Id → health."""
        return {device.id: device.health for device in self.devices}


@dataclass(frozen=True, slots=True)
class AllocationSeen:
    """One Allocate: the ids in the order asked; ``error`` None if granted."""

    resource: str
    ids: tuple[str, ...]
    when: float
    error: str | None = None


@dataclass(slots=True)
class Statistics:
    """What happened since the object was made, over all restarts."""

    registrations: list[Registration] = field(default_factory=list)
    lists: dict[str, deque[ListSeen]] = field(default_factory=dict)
    lists_total: int = 0
    allocations: list[AllocationSeen] = field(default_factory=list)
    streams: dict[str, int] = field(default_factory=dict)  # open now, per resource

    def accepted(self, resource: str) -> list[Registration]:
        """The registrations of a resource that succeeded."""
        return [r for r in self.registrations if r.resource == resource and r.refusal is None]


@dataclass(slots=True)
class ContainerResult:
    """What one container was started with."""

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
    """A pod: what it asks for (resource → count, per container), and what became of it."""

    namespace: str
    name: str
    containers: list[dict[str, int]]
    init_containers: list[dict[str, int]] = field(default_factory=list)
    sidecars: list[dict[str, int]] = field(default_factory=list)
    uid: str = ""
    phase: str = field(default="Pending", init=False)
    reason: str = field(default="", init=False)
    message: str = field(default="", init=False)
    results: dict[str, ContainerResult] = field(default_factory=dict, init=False)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def result(self) -> ContainerResult:
        """The result of the first app container."""
        return self.results["c0"]


class SidecarsFirst(Pod):
    """One whose plain init containers come after its sidecars."""


class Paths(NamedTuple):
    """The root of the node, and the kubelet's directories in it."""

    root: Path
    plugins: Path
    pod_resources: Path
    registry: Path
    pods: Path

    @staticmethod
    def below(root: Path) -> Paths:
        """As the kubelet has them."""
        base = root / "var/lib/kubelet"
        return Paths(
            root, base / "device-plugins", base / "pod-resources", base / "plugins_registry", base / "pods"
        )


@dataclass(slots=True)
class Life:
    """Whether the kubelet runs, since when (the loop's time), and why the real one would have died, if so.

    ``inherited``: the UIDs of the pods that were there when it started; it hears of them from the API server.
    """

    running: bool = field(default=False, init=False)
    started: float = field(default=0.0, init=False)
    inherited: frozenset[str] = field(default=frozenset(), init=False)
    crashed: str | None = field(default=None, init=False)


class State:
    """The node as the stand-in sees it."""

    def __init__(self, root: Path, seed: int, topology_policy: str) -> None:
        self.paths = Paths.below(root)
        self.topology_policy = topology_policy
        self.random = random.Random(seed)
        self.life = Life()
        self.statistics = Statistics()
        self.table = DeviceTable(self.paths.plugins)
        self.pods: dict[str, Pod] = {}
        self.allocating: set[str] = set()  # ids under an Allocate
        self._changes = Latest(0)
        self.faults = Faults(self._changes)

    def changed(self) -> None:
        """Wake all who wait."""
        self._changes.touch()

    async def until(self, predicate: Callable[[], bool], timeout: float = 5.0) -> None:  # noqa: ASYNC109 (tests read well so)
        """Wait until the predicate holds. :raises TimeoutError: after ``timeout`` seconds."""
        with anyio.fail_after(timeout):
            while True:
                seen = self._changes.version
                if predicate():
                    return
                await self._changes.newer(seen)

    def listed(self, resource: str, size: int, devices: tuple[SeenDevice, ...]) -> None:
        """A list has come: remember it, take it over, and die where the real one dies."""
        seen = ListSeen(anyio.current_time(), size, devices)
        self.statistics.lists.setdefault(resource, deque(maxlen=REMEMBERED)).append(seen)
        self.statistics.lists_total += 1
        first = resource not in self.table.devices
        self.table.update(resource, devices)
        if first:
            self._readmit(resource)
        self.changed()

    def crash(self, text: str) -> None:
        """The real kubelet would have ended by SIGSEGV here; whoever runs this one stops it."""
        self.life.crashed = self.life.crashed or text
        self.changed()

    def _readmit(self, resource: str) -> None:
        """Topology hints for pods that hold devices, on the first list after a start.

        topology_hints.go of 1.36 looks each held id up in the new list, without asking whether it is there.
        """
        if self.topology_policy == "none" or not has_topology(self.table, resource):
            return
        missing = self.table.in_use(resource) - set(self.table.devices[resource])
        if missing:
            self.crash(f"topology hints: {resource} no longer lists {sorted(missing)}, held by a pod")
