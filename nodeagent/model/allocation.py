# SPDX-License-Identifier: Apache-2.0
"""Allocation: who holds what, and what a container is given.

Holders come from the kubelet: its PodResources API names them, and its checkpoint hints at more. A Grant is
the answer to one container's request, before it is written in the kubelet's wire types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from nodeagent.model.ids import GroupNumber, ResourceName

T = TypeVar("T")

GROUP = "nodeagent.local/iommu-group-"
"""How the annotations of a container begin that have the numbers of groups of which it was given no nodes.

One for each: a container with two resources would have two values of one.
"""
UNNAMED = "a pod that the kubelet does not name yet"


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that holds a device, and the resource under which it got it."""

    namespace: str
    pod: str
    resource: ResourceName
    numa: int | None = None  # the topology that the kubelet was told of, for an id that has gone since
    identity: str = ""  # tells pods apart that the kubelet does not name
    brought: str = ""  # the id that brought the device with it: a bundle, a group; "" for an id of its own

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}" if self.namespace else self.pod

    @property
    def named(self) -> bool:
        """True if the kubelet has said who it is."""
        return bool(self.namespace)

    def got(self, device_id: str) -> str:
        """The id by which it got this device."""
        return self.brought or device_id

    def is_with(self, other: Holder) -> bool:
        """True if both are one pod, as far as is known: a pod without a name is no other one."""
        return (self.namespace, self.pod, self.identity) == (other.namespace, other.pod, other.identity)


def unnamed(resource: ResourceName, numa: int | None, identity: str = "") -> Holder:
    """Whoever got a device by an Allocate, until the kubelet says who that is."""
    return Holder("", UNNAMED, resource, numa, identity)


Possession = tuple[ResourceName, str]
"""A resource, and the id of one of its devices."""

ByPossession = Mapping[ResourceName, Mapping[str, T]]
"""A resource → the id of one of its devices → something of that."""

Pods = Mapping[str, frozenset[Possession]]
"""``namespace/name`` of each pod that the kubelet names → what it shows of it, of all device plugins."""


def possessions(pods: Pods) -> frozenset[Possession]:
    """What all of them show."""
    return frozenset[Possession]().union(*pods.values())


class PodList(NamedTuple):
    """One answer of the kubelet to who holds what; ``pods`` has those without devices, too.

    ``namesakes`` are as those of Allocations.
    """

    holders: Mapping[str, Holder]
    pods: Pods
    namesakes: ByPossession[Holder] = MappingProxyType({})


class Knowledge(StrEnum):
    """What the absence of a holder proves."""

    UNKNOWN = "unknown"  # nothing: there is no kubelet, or it was not asked yet
    SILENT = "silent"  # nothing: there is one, and it does not answer
    PARTIAL = "partial"  # too little to take anything away: the kubelet may not know all its pods yet
    COMPLETE = "complete"  # that nobody holds the device


@dataclass(frozen=True, slots=True)
class Allocations:
    """Device id → its holder, of all resources of the node, also those of other device plugins.

    The id of a HostDevice means that one, whoever gave it. All others are unique within a resource only:
    ``namesakes`` hold another device by an id by which ``holders`` has somebody of another resource.
    ``brought`` are functions and mdevs that came with one of these ids, as the answers to its Allocate say;
    ``groups`` are the IOMMU groups whose nodes were given with an id, ``nodes`` the paths of all others,
    ``cdi`` the names of CDI devices. Of what is not ``written`` nobody knows what came with it: a container
    asks for all that it wants before the kubelet writes that. None: its file cannot be read.
    """

    holders: Mapping[str, Holder] = field(default_factory=dict)
    knowledge: Knowledge = Knowledge.UNKNOWN
    brought: Mapping[str, Holder] = field(default_factory=dict)
    groups: Mapping[str, frozenset[GroupNumber]] = field(default_factory=dict)
    nodes: ByPossession[tuple[str, ...]] = field(default_factory=dict)
    cdi: ByPossession[tuple[str, ...]] = field(default_factory=dict)
    namesakes: ByPossession[Holder] = field(default_factory=dict)
    written: frozenset[Possession] | None = None

    @property
    def complete(self) -> bool:
        """True if whoever is not named holds nothing."""
        return self.knowledge is Knowledge.COMPLETE

    @property
    def answered(self) -> bool:
        """True if the kubelet was asked last and has answered."""
        return self.knowledge in (Knowledge.PARTIAL, Knowledge.COMPLETE)

    def holder(self, device_id: str) -> Holder | None:
        """Who has a function, an mdev, or all of a group."""
        return self.holders.get(device_id) or self.brought.get(device_id)

    def holder_of(self, resource: ResourceName, device_id: str) -> Holder | None:
        """Who got this id of this resource."""
        holder = self.holders.get(device_id)
        if holder is not None and holder.resource == resource:
            return holder
        return self.namesakes.get(resource, {}).get(device_id)

    def unwritten(self) -> Iterator[Possession]:
        """What pods are named with, and the file does not have; of numbers it says nothing."""
        for device_id, holder in self.held() if self.written is not None else ():
            possession = holder.resource, device_id
            if holder.named and possession not in (self.written or ()) and not device_id.isdecimal():
                yield possession

    def held(self) -> Iterator[tuple[str, Holder]]:
        """All ids, and who holds them."""
        return chain(self.holders.items(), *(ids.items() for ids in self.namesakes.values()))

    def answer(self, resource: ResourceName, device_id: str) -> tuple[str, ...]:
        """The nodes and CDI names that were given with this id of this resource."""
        nodes, cdi = self.nodes.get(resource, {}), self.cdi.get(resource, {})
        return (*nodes.get(device_id, ()), *cdi.get(device_id, ()))


@dataclass(frozen=True, slots=True)
class Reservations:
    """Ids under an Allocate or a removal: given or removed, never both.

    ``given`` are those that an Allocate gave away and whose holder the kubelet has not named since.
    ``settling`` were given to the pod that is being admitted: it may take more of the group, of other
    resources. ``withdrawn`` are about to be taken off the host, or get another driver. ``refused`` were asked
    for while another one of their group was held: whatever their own holder is, the kubelet takes them for
    free.
    """

    settling: frozenset[str] = frozenset()
    withdrawn: frozenset[str] = frozenset()
    given: Mapping[str, Holder] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device node for a container; ``inside``: its path there, where that is another one."""

    path: str
    permissions: str = "mrw"
    inside: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one container gets: environment, device nodes, CDI device names.

    ``groups`` are the IOMMU groups of which none of the nodes tells.
    """

    envs: tuple[tuple[str, str], ...] = ()
    nodes: tuple[DeviceNode, ...] = ()
    cdi: tuple[str, ...] = ()
    groups: frozenset[GroupNumber] = frozenset()
