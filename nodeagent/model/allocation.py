# SPDX-License-Identifier: Apache-2.0
"""Allocations: the devices of pods, and the response to the Allocate call for a container.

The kubelet reports the devices of pods in its PodResources API and in its checkpoint. A Grant is the
response for one container before it is converted to the kubelet's message types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from nodeagent.model.ids import GroupNumber, ResourceName

T = TypeVar("T")

UNNAMED = "a pod that the kubelet does not name yet"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that uses a device, and the resource of the device; with ``claim`` a ResourceClaim instead."""

    namespace: str
    pod: str
    resource: ResourceName
    numa: int | None = None  # the NUMA node that was advertised, for an id that was removed since
    # the id of the bundle or group that contains the device; "" if the device has its own id
    came_with: str = ""
    claim: bool = False  # ``pod`` is the name of a ResourceClaim, whose pod the node does not know

    def __str__(self) -> str:
        if self.claim:
            return f"claim {self.namespace}/{self.pod}"
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod

    @property
    def named(self) -> bool:
        """Return True if the kubelet has reported the name of the pod."""
        return bool(self.namespace)

    def allocated_id(self, device_id: str) -> str:
        """Return the id under which the kubelet allocated this device."""
        return self.came_with or device_id

    def is_with(self, other: Holder) -> bool:
        """Return True unless both pods are named and differ: a pod without a name may be any pod."""
        return not (self.named and other.named) or str(self) == str(other)


def unnamed(resource: ResourceName, numa: int | None) -> Holder:
    """Return a Holder for a pod whose Allocate call is known, but whose name the kubelet has not reported
    yet.
    """
    return Holder("", UNNAMED, resource, numa)


ResourceDevice = tuple[ResourceName, str]
"""A resource, and the id of one of its devices."""

ByResource = Mapping[ResourceName, Mapping[str, T]]
"""A resource → the id of one of its devices → a value."""

Pods = Mapping[str, frozenset[ResourceDevice]]
"""The devices of each pod (``namespace/name``) that the kubelet lists, of all device plugins."""


def listed_devices(pods: Pods) -> frozenset[ResourceDevice]:
    """Return the devices of all pods."""
    return frozenset[ResourceDevice]().union(*pods.values())


class PodList(NamedTuple):
    """One response of PodResources: the pod of each device; ``pods`` also has pods without devices."""

    table: ByResource[Holder]
    pods: Pods


class Knowledge(StrEnum):
    """The meaning of a device's absence from the table of allocations."""

    UNKNOWN = "unknown"  # unknown: there is no kubelet, or no request was sent yet
    NO_ANSWER = "silent"  # unknown: the kubelet does not answer
    PARTIAL = "partial"  # not certain enough for a change of the host: the checkpoint cannot be read
    COMPLETE = "complete"  # no pod has the device


@dataclass(frozen=True)  # without slots, which leave no room for a cached property
class Allocations:
    """The allocations of all device plugins of the node, and the prepared claims of nodeagent's DRA driver.

    ``table`` is keyed by resource and device id, because ids are unique within a resource only. The other
    fields come from the Allocate responses in the checkpoint: ``came_with`` are functions and mdevs in the
    response for an id; ``groups`` the IOMMU groups whose nodes are in it, ``nodes`` the paths of other
    nodes, ``cdi`` the names of CDI devices. ``written`` are the entries of the checkpoint; None: it cannot
    be read.
    """

    table: ByResource[Holder] = field(default_factory=dict)
    knowledge: Knowledge = Knowledge.UNKNOWN
    came_with: Mapping[str, Holder] = field(default_factory=dict)
    groups: Mapping[str, frozenset[GroupNumber]] = field(default_factory=dict)
    nodes: ByResource[tuple[str, ...]] = field(default_factory=dict)
    cdi: ByResource[tuple[str, ...]] = field(default_factory=dict)
    written: frozenset[ResourceDevice] | None = None

    @classmethod
    def of(cls, holders: Mapping[str, Holder], *rest: Any, **more: Any) -> Allocations:
        """Return allocations with these holders by device id."""
        return cls(by_resource(holders.items()), *rest, **more)

    @cached_property
    def holders(self) -> Mapping[str, Holder]:
        """Return the holders by device id: for functions, mdevs and groups, whose ids are unique on the
        host.
        """
        merged: dict[str, Holder] = {}
        for ids in self.table.values():
            merged.update(ids)
        return merged

    @property
    def complete(self) -> bool:
        """Return True if a device that is missing from the table is certainly not allocated."""
        return self.knowledge is Knowledge.COMPLETE

    @property
    def answered(self) -> bool:
        """Return True if the kubelet has answered the last request."""
        return self.knowledge in (Knowledge.PARTIAL, Knowledge.COMPLETE)

    def holder(self, device_id: str) -> Holder | None:
        """Return the holder of a function, an mdev, or a whole group."""
        return self.holders.get(device_id) or self.came_with.get(device_id)

    def holder_of(self, resource: ResourceName, device_id: str) -> Holder | None:
        """Return the holder of this id of this resource."""
        return self.table.get(resource, {}).get(device_id)

    def not_in_checkpoint(self) -> Iterator[ResourceDevice]:
        """Yield devices of named pods that are missing from the checkpoint; numeric ids are skipped."""
        for device_id, holder in self.held() if self.written is not None else ():
            possession = holder.resource, device_id
            listed = holder.named and not holder.claim
            if listed and possession not in (self.written or ()) and not device_id.isdecimal():
                yield possession

    def held(self) -> Iterator[tuple[str, Holder]]:
        """Yield all ids of all resources with their holders."""
        return chain.from_iterable(ids.items() for ids in self.table.values())

    def answer(self, resource: ResourceName, device_id: str) -> tuple[str, ...]:
        """Return the nodes and CDI names that were allocated with this id of this resource."""
        nodes, cdi = self.nodes.get(resource, {}), self.cdi.get(resource, {})
        return (*nodes.get(device_id, ()), *cdi.get(device_id, ()))


def by_resource(held: Iterable[tuple[str, Holder]]) -> ByResource[Holder]:
    """Return these devices and holders as a table by resource."""
    table: dict[ResourceName, dict[str, Holder]] = {}
    for device_id, holder in held:
        table.setdefault(holder.resource, {})[device_id] = holder
    return table


@dataclass(frozen=True, slots=True)
class Reservations:
    """Device ids that take part in a running Allocate call or in a change of the host, never in both.

    ``pending`` ids were allocated by nodeagent and are not yet reported by the kubelet. ``admitting`` ids
    were allocated to the pod under admission, which may also be allocated devices of other resources in the
    same groups. ``withdrawn`` ids are about to be removed from the host or bound to another driver.
    """

    admitting: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()
    pending: Mapping[str, Holder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container; ``inside`` is its path in the container if that differs."""

    path: str
    permissions: str = "mrw"
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The response for one container: environment, device nodes, CDI device names."""

    envs: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
