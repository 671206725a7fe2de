# SPDX-License-Identifier: Apache-2.0
"""Who holds which device: the kubelet's PodResources API (podresources v1), all resources in one List.

The answer names active pods with their devices, also those of other device plugins. It may be empty or
incomplete right after a kubelet start; what that means is decided by the caller. Ids are unique within a
resource only: numbers are shares of somebody's device, but for virt-handler's plugins of PCI devices and
mdevs, whose ids are IOMMU groups (``constructDPIdevices`` in its
pkg/virt-handler/device-manager/pci_device.go, ``constructDPIdevicesFromMdev`` in mediated_device.go).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_
from typing import NamedTuple

from grpclib.const import Cardinality

from nodeagent.base.errors import KubeletUnavailable
from nodeagent.base.slices import Slices
from nodeagent.kubelet.api.podresources import v1
from nodeagent.kubelet.grpc import wire
from nodeagent.kubelet.grpc.channel import SocketChannel
from nodeagent.kubelet.grpc.kept import KeptChannel
from nodeagent.model.allocation import ByPossession, Holder, PodList, Pods, Possession
from nodeagent.model.ids import ResourceName

LIST = "/v1.PodResourcesLister/List"

_PODS = 1  # the field of ListPodResourcesResponse
_PIECE = 4096  # bytes of a pod that are read in one go; most have less
_PART = 500  # devices that are taken in one go
_LOOK = 64  # pods between two looks at the clock
_CODEC = wire.Codec()


class VirtHandler:
    """Which resources virt-handler's own plugins serve: their sockets say so, in the kubelet's directory.

    Its plugin of PCI devices names the socket after the resource, the one of mdevs leaves the vendor out
    (``NewPCIDevicePlugin``, ``NewMediatedDevicePlugin`` in its pkg/virt-handler/device-manager). A kubelet
    that starts removes them, so what was seen once is remembered, and the checkpoint tells, too.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: set[str] = set()

    def learn(self, resources: Iterable[str]) -> None:
        """These are known to have groups for their ids."""
        self._seen.update(resources)

    def serves(self, resource: str) -> bool:
        """True if ids of this resource are numbers of IOMMU groups."""
        if resource not in self._seen:
            names = (resource.replace("/", "-"), resource.partition("/")[2])
            if not any(os.path.lexists(f"{self._directory}/kubevirt-{name}.sock") for name in names):
                return False
            self._seen.add(resource)
        return True


_Held = tuple[str, Holder]
"""The id of a device, and who has it."""


class _Pod(NamedTuple):
    """One pod of an answer."""

    name: str  # with its namespace
    devices: tuple[_Held, ...]
    shown: frozenset[Possession]


class _List(NamedTuple):
    """One answer: its pods, by what was said of them, and what was made of it."""

    known: Mapping[bytes, _Pod] = {}
    served: Mapping[str, bool] = {}  # which resources have groups for ids; only what has numbers for ids
    told: PodList = PodList({}, {})


class _Table:
    """Who has which id of which resource; a table that is not changed stays the same object."""

    def __init__(self, before: ByPossession[Holder]) -> None:
        self.ids: dict[ResourceName, Mapping[str, Holder]] = dict(before)
        self._own: dict[ResourceName, dict[str, Holder]] = {}

    def add(self, held: Collection[_Held]) -> None:
        """These are allocated, too."""
        for device_id, holder in held:
            ids = self._own.get(holder.resource)
            if ids is None:
                ids = self._own[holder.resource] = dict(self.ids.get(holder.resource, {}))
                self.ids[holder.resource] = ids
            ids[device_id] = holder


class PodReader:
    """Asks the kubelet at one socket. A pod of which it says what it said before is not read again.

    A long answer is read pod by pod, a long pod piece by piece, and the event loop goes on meanwhile. Of what
    is the same the objects are the same, too: for whoever compares much that is a tenth of the time.
    """

    def __init__(self, path: str, virt_handler: VirtHandler, limit: float, idle: float = 0.0) -> None:
        """``limit``: seconds for an answer; ``idle``: until the connection is closed that nobody uses."""
        self._path = path
        self._kubelet = KeptChannel(path, idle)
        self._virt_handler = virt_handler
        self._limit = limit
        self._last = _List()

    async def pods(self) -> PodList:
        """Who holds what.

        :raises KubeletUnavailable: without an answer in time.
        :raises KubeletAway: if nobody listens.
        """
        try:
            async with self._kubelet.channel() as channel:
                return await self._pod_list(await _answer(channel, self._limit))
        except KubeletUnavailable as error:
            raise type(error)(f"{self._path}: {error.what}") from error

    def close(self) -> None:
        """Close the connection, if there is one."""
        self._kubelet.close()

    async def _pod_list(self, answer: bytes) -> PodList:
        """Who holds what by this answer.

        Questions overlap, and are given up half-way: each starts from a whole list, and leaves a whole one.
        """
        slices, last = Slices(), self._last
        by_name: dict[str, _Pod] = {}
        read: dict[bytes, _Pod] = {}
        new: dict[bytes, _Pod] = {}
        for number, message in enumerate(wire.messages(answer, _PODS)):
            pod = last.known.get(message)
            if pod is None:
                by_name = by_name or {each.name: each for each in last.known.values()}
                pod = new[message] = await _pod(message, by_name, slices)
            read[message] = pod
            if number % _LOOK == 0:
                await slices.rest()
        now = self._last = await self._listed(last, read, new, slices)
        return now.told

    async def _listed(
        self, last: _List, read: Mapping[bytes, _Pod], new: Mapping[bytes, _Pod], slices: Slices
    ) -> _List:
        """What these pods have: as it was told last, if that is the same.

        By what is said of each: they come in no order, and of two with one id the same is to be told.
        """
        gone = [last.known[message] for message in last.known.keys() - read.keys()]
        as_served = all(self._virt_handler.serves(name) is was for name, was in last.served.items())
        if as_served and not new and not gone:
            return last
        pods = [read[message] for message in sorted(read)]
        await slices.rest()
        if as_served and not any(pod.devices for pod in gone) and not _taken_twice(new.values(), last.told):
            served, table = dict(last.served), _Table(last.told.table)
            await self._add([new[message] for message in sorted(new)], served, table, slices)
        else:
            served, table = {}, _Table({})
            await self._add(pods, served, table, slices)
        return _List(read, served, PodList(table.ids, _by_name(pods)))

    async def _add(
        self, pods: Sequence[_Pod], served: dict[str, bool], table: _Table, slices: Slices
    ) -> None:
        """What these have; ``served`` spares looks at files: one is enough for all ids of a resource."""
        for pod in pods:
            for part in _parts(pod.devices):
                numbers = {holder.resource for each, holder in part if each.isdecimal()}
                served |= {each: self._virt_handler.serves(each) for each in numbers - served.keys()}
                table.add([each for each in part if not each[0].isdecimal() or served[each[1].resource]])
                await slices.rest()


def _taken_twice(pods: Iterable[_Pod], told: PodList) -> bool:
    """True if one of the pods shows what another pod was said to have."""
    return any(each in told.table.get(holder.resource, {}) for pod in pods for each, holder in pod.devices)


def _by_name(pods: Sequence[_Pod]) -> Pods:
    """What each shows; of two with one name, both."""
    shown = {pod.name: pod.shown for pod in pods}
    if len(shown) < len(pods):
        for pod in pods:
            if not pod.shown <= shown[pod.name]:
                shown[pod.name] |= pod.shown
    return shown


async def _answer(channel: SocketChannel, limit: float) -> bytes:
    kinds = (Cardinality.UNARY_UNARY, v1.ListPodResourcesRequest, bytes)
    async with channel.request(LIST, *kinds, timeout=limit) as stream:
        await stream.send_message(v1.ListPodResourcesRequest(), end=True)
        answer: bytes = await stream.recv_message()
    return answer


async def _pod(message: bytes, known: Mapping[str, _Pod], slices: Slices) -> _Pod:
    """What it says, or the known one if that is the same.

    :raises KubeletUnavailable: for what no kubelet sends: whose devices these are would be guessed.
    """
    pieces = (_CODEC.decode(piece, v1.PodResources) for piece in wire.pieces(message, _PIECE))
    named: list[v1.PodResources] = []  # those until it has said its name: most often the first
    name = namespace = ""
    while not (name and namespace):
        piece = next(pieces, None)
        if piece is None:
            raise KubeletUnavailable("an answer with pods that have no name")
        named.append(piece)
        name, namespace = name or piece.name, namespace or piece.namespace
        await slices.rest()
    full_name = f"{namespace}/{name}"
    before = known.get(full_name) or _Pod(full_name, (), frozenset())
    devices: list[_Held] = []
    holder_of = functools.cache(functools.partial(Holder, namespace, name))  # one for all that is alike
    for piece in chain(named, pieces):
        for device in _held(piece, holder_of):
            at = len(devices)
            same = at < len(before.devices) and before.devices[at] == device
            devices.append(before.devices[at] if same else device)
        await slices.rest()
    return await _with(before, devices, slices)


async def _with(before: _Pod, devices: Sequence[_Held], slices: Slices) -> _Pod:
    """The pod with these devices, or as it is if these are its devices: most often they are."""
    if len(devices) == len(before.devices) and all(map(is_, devices, before.devices)):
        return before
    shown: set[Possession] = set()
    for part in _parts(devices):
        shown.update((holder.resource, device_id) for device_id, holder in part)
        await slices.rest()
    return _Pod(before.name, tuple(devices), frozenset(shown))


def _parts(devices: Sequence[_Held]) -> Iterator[Sequence[_Held]]:
    return (devices[at : at + _PART] for at in range(0, len(devices), _PART))


def _held(piece: v1.PodResources, holder_of: Callable[[ResourceName, int | None], Holder]) -> Iterator[_Held]:
    for container in piece.containers:
        for devices in container.devices:
            if not devices.resource_name:
                raise KubeletUnavailable("an answer with devices that have no name")
            holder = holder_of(ResourceName(devices.resource_name), _numa(devices.topology))
            for device_id in devices.device_ids:
                yield device_id, holder


def _numa(topology: v1.TopologyInfo | None) -> int | None:
    return topology.nodes[0].id if topology is not None and topology.nodes else None
