# SPDX-License-Identifier: Apache-2.0
"""Status: how the daemon is, as one frozen typed value; every face is a rendering of it.

Its plain form (``model.plain``) is the document of the status socket, which users and programs read: keys may
be added, with a default, and none is renamed. What the components fill in, and how a Status is joined of
that, is in ``model.shares``. Named tuples, since the daemon's start pays for each class, and ten times more
for a dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nodeagent.model.host import Host
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.resource import Device, Resource

ANSWERS = "answers"


class KubeletStatus(NamedTuple):
    """The kubelet as the daemon sees it; ``pod_resources`` is "answers", or why it does not."""

    socket: str
    present: bool
    pod_resources: str
    holders_known: bool


class EventsStatus(NamedTuple):
    """Where Wakes come from (``source``), and counts since the start; ``unwatched`` is the present number."""

    source: str
    events: int
    lost: int
    foreign: int
    unwatched: int


class HostStatus(NamedTuple):
    """The host in numbers; ``not_readable`` has the keys of what does not answer."""

    functions: int
    groups: int
    mdevs: int
    iommu: bool
    not_readable: tuple[str, ...]
    events: EventsStatus

    @classmethod
    def of(cls, host: Host, not_readable: tuple[str, ...], events: EventsStatus) -> HostStatus:
        """The numbers of a Host."""
        return cls(len(host.functions), len(host.groups), len(host.mdevs), host.iommu, not_readable, events)


class DeviceStatus(NamedTuple):
    """A Device as the kubelet is told of it; an Unhealthy one says why, and what to do."""

    id: DeviceId
    healthy: bool
    numa: int | None
    reason: str | None = None  # a ReasonCode; of another version maybe one that is not known here
    what: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, device: Device) -> DeviceStatus:
        """The status of a Device."""
        if device.reason is None:
            return cls(device.id, True, device.numa)
        return cls(device.id, False, device.numa, device.reason.code, device.reason.what, device.reason.hint)


class ResourceStatus(NamedTuple):
    """A Resource, and how it stands with the kubelet; ``error`` is why it is not registered."""

    name: ResourceName
    devices: tuple[DeviceStatus, ...]
    healthy: int
    registered: bool
    registrations: int
    error: str | None

    @classmethod
    def of(
        cls, resource: Resource, registered: bool, registrations: int, error: str | None
    ) -> ResourceStatus:
        """The status of a Resource, of which the endpoint knows the rest."""
        devices = tuple(map(DeviceStatus.of, resource.devices))
        healthy = sum(device.healthy for device in devices)
        return cls(resource.name, devices, healthy, registered, registrations, error)


class CardStatus(NamedTuple):
    """A card that mdevs or vGPUs are planned for: its type, and how many instances it has."""

    card: str
    type: str | None
    instances: int
    notes: tuple[str, ...]


class WaitingStatus(NamedTuple):
    """A change of the host that waits, and what for."""

    card: str
    action: str
    why: str


class FailingStatus(NamedTuple):
    """A change of the host that the kernel refused."""

    card: str
    type: str | None
    action: str
    what: str
    hint: str
    tries: int
    next_try_seconds: float


class ChangesStatus(NamedTuple):
    """What is made of the host.

    ``problems`` are the plan's alone, and ``late`` are changes to which the kernel does not answer.
    """

    cards: tuple[CardStatus, ...]
    under_way: tuple[str, ...]
    waiting: tuple[WaitingStatus, ...]
    failing: tuple[FailingStatus, ...]
    problems: tuple[str, ...]
    writes: int
    late: tuple[str, ...] = ()


NO_CHANGES = ChangesStatus((), (), (), (), (), 0)


class HolderStatus(NamedTuple):
    """Who holds a device, and under which resource."""

    pod: str
    resource: ResourceName


class Status(NamedTuple):
    """Everything at one moment; ``problems`` has a line for each thing that needs a person.

    ``subsystems`` has those that failed since the start: why, or "running again".
    """

    version: str
    pid: int
    uptime_seconds: float
    root: str
    kubelet: KubeletStatus
    host: HostStatus
    resources: tuple[ResourceStatus, ...]
    changes: ChangesStatus
    holders: Mapping[str, HolderStatus]
    subsystems: Mapping[str, str]
    problems: tuple[str, ...]
