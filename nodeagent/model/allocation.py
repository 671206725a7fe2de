# SPDX-License-Identifier: Apache-2.0
"""Allocation: who holds what, and what a container is given.

Holders come from the kubelet's PodResources API alone. A Grant is the answer to one container's request,
before it is written in the kubelet's wire types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.model.ids import ResourceName

UNNAMED = "a pod that the kubelet does not name yet"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds a device, and the resource under which it got it."""

    namespace: str
    pod: str
    resource: ResourceName
    numa: int | None = None  # the topology that the kubelet was told of, for an id that has gone since

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod


def unnamed(resource: ResourceName, numa: int | None) -> Holder:
    """Whoever got a device by an Allocate, until the kubelet says who that is."""
    return Holder("", UNNAMED, resource, numa)


@dataclass(frozen=True, slots=True)
class Allocations:
    """Device id → its holder, of all resources of the node, also those of other device plugins.

    ``known`` is False while the kubelet does not answer: then nothing may be concluded from absence.
    ``partial`` while it has answered only when it was too young to know its pods: then absence proves too
    little to destroy anything.
    """

    holders: Mapping[str, Holder] = field(default_factory=dict)
    known: bool = False
    partial: bool = False

    @property
    def complete(self) -> bool:
        """True if whoever is not named holds nothing."""
        return self.known and not self.partial


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container; the path is the same inside and outside."""

    path: str
    permissions: str = "mrw"


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets: environment, device nodes, CDI device names."""

    envs: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
