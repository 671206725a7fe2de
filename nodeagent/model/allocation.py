# SPDX-License-Identifier: Apache-2.0
"""Allocation: the devices of pods, and the answer to a container.

Holders come from the kubelet: its PodResources API names them, and its checkpoint hints at more. A Grant is
the answer to one container's request, before it is written in the kubelet's wire types.
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
    """A pod that holds a device, and the resource under which it got it."""

    namespace: str
    pod: str
    resource: ResourceName
    numa: int | None = None  # the topology in the list to the kubelet, for an id that has gone since
    came_with: str = ""  # the id of a bundle or group that the device is a part of; "" for an id of its own

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod

    @property
    def named(self) -> bool:
        """True if the kubelet has named the pod."""
        return bool(self.namespace)

    def allocated_id(self, device_id: str) -> str:
        """The id by which the kubelet allocated this device."""
        return self.came_with or device_id

    def is_with(self, other: Holder) -> bool:
        """True unless both are named and differ: a pod without a name may be any."""
        return not (self.named and other.named) or str(self) == str(other)


def unnamed(resource: ResourceName, numa: int | None) -> Holder:
    """The pod of an Allocate, until the kubelet names it."""
    return Holder("", UNNAMED, resource, numa)


ResourceDevice = tuple[ResourceName, str]
"""A resource, and the id of one of its devices."""

ByResource = Mapping[ResourceName, Mapping[str, T]]
"""A resource → the id of one of its devices → a value."""

Pods = Mapping[str, frozenset[ResourceDevice]]
"""``namespace/name`` of each pod that the kubelet names → its devices, of all device plugins."""


def listed_devices(pods: Pods) -> frozenset[ResourceDevice]:
    """The devices of all of them."""
    return frozenset[ResourceDevice]().union(*pods.values())


class PodList(NamedTuple):
    """One answer of PodResources: which pod has which device; ``pods`` has those without devices, too."""

    table: ByResource[Holder]
    pods: Pods


class Knowledge(StrEnum):
    """The meaning of the absence of a device from the table."""

    UNKNOWN = "unknown"  # nothing: there is no kubelet, or it was not asked yet
    NO_ANSWER = "silent"  # nothing: there is one, and it does not answer
    PARTIAL = "partial"  # too little for a change of the host: its checkpoint cannot be read
    COMPLETE = "complete"  # that no pod has the device


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class Allocations:
    """Which pod has which device, of all device plugins of the node: the union of the kubelet's sources.

    ``table`` is keyed by resource and device id, for ids are unique within a resource only. ``came_with`` are
    functions and mdevs that came with one of these ids, as the answers to its Allocate say; ``groups`` are
    the IOMMU groups whose nodes were allocated with an id, ``nodes`` the paths of all other nodes, ``cdi``
    the names of CDI devices. ``written`` are the entries of the kubelet's checkpoint, which has these
    answers; None: it cannot be read.
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
        """The allocations with these holders by device id."""
        return cls(by_resource(holders.items()), *rest, **more)

    @cached_property
    def holders(self) -> Mapping[str, Holder]:
        """The holders by device id: for functions, mdevs and groups, whose ids are unique on the host."""
        merged: dict[str, Holder] = {}
        for ids in self.table.values():
            merged.update(ids)
        return merged

    @property
    def complete(self) -> bool:
        """True if a device that is not in the table is not allocated."""
        return self.knowledge is Knowledge.COMPLETE

    @property
    def answered(self) -> bool:
        """True if the kubelet was asked last and has answered."""
        return self.knowledge in (Knowledge.PARTIAL, Knowledge.COMPLETE)

    def holder(self, device_id: str) -> Holder | None:
        """The holder of a function, an mdev, or all of a group."""
        return self.holders.get(device_id) or self.came_with.get(device_id)

    def holder_of(self, resource: ResourceName, device_id: str) -> Holder | None:
        """The holder of this id of this resource."""
        return self.table.get(resource, {}).get(device_id)

    def not_in_checkpoint(self) -> Iterator[ResourceDevice]:
        """The devices of named pods that the checkpoint lacks; of numeric ids it says nothing."""
        for device_id, holder in self.held() if self.written is not None else ():
            possession = holder.resource, device_id
            if holder.named and possession not in (self.written or ()) and not device_id.isdecimal():
                yield possession

    def held(self) -> Iterator[tuple[str, Holder]]:
        """All ids of all resources, with their holders."""
        return chain.from_iterable(ids.items() for ids in self.table.values())

    def answer(self, resource: ResourceName, device_id: str) -> tuple[str, ...]:
        """The nodes and CDI names that were allocated with this id of this resource."""
        nodes, cdi = self.nodes.get(resource, {}), self.cdi.get(resource, {})
        return (*nodes.get(device_id, ()), *cdi.get(device_id, ()))


def by_resource(held: Iterable[tuple[str, Holder]]) -> ByResource[Holder]:
    """The table of these devices and their holders."""
    table: dict[ResourceName, dict[str, Holder]] = {}
    for device_id, holder in held:
        table.setdefault(holder.resource, {})[device_id] = holder
    return table


@dataclass(frozen=True, slots=True)
class Reservations:
    """Ids under an Allocate or a change of the host: allocated or withdrawn, never both.

    ``pending`` were allocated by us and are in no source of the kubelet yet. ``admitting`` were allocated to
    the pod under admission: it may be allocated more of their groups, of other resources. ``withdrawn`` are
    about to be removed from the host, or to get another driver.
    """

    admitting: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()
    pending: Mapping[str, Holder] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container; ``inside``: its path there, where that is another one."""

    path: str
    permissions: str = "mrw"
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """The answer for one container: environment, device nodes, CDI device names."""

    envs: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
