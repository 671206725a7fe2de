# SPDX-License-Identifier: Apache-2.0
"""Status: the state of the daemon as one frozen typed value, from which every output is rendered.

The plain data of a Status (``model.plain``) is the JSON document that the status socket serves to users and
programs. Keys may be added with a default, but must not be renamed. Each component of the daemon provides its
part of the Status (``agent.reporting.status``); ``policy.diagnose`` finds the problems in the Status. The
classes here are named tuples, because a dataclass takes ten times longer to define when the daemon starts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from nodeagent.model.host import Host, HostDevice
from nodeagent.model.ids import DeviceId, ResourceName
from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.resource import Device, Resource, Via

ANSWERS = "answers"
RUNNING_AGAIN = "running again"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of the classes in which durations are counted; a last class has no bound."""


class Durations(NamedTuple):
    """A histogram of durations: the ``counts`` of durations up to each of the ``BOUNDS``, and the sum in
    seconds.
    """

    counts: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0

    def and_one(self, seconds: float) -> Durations:
        """Return the histogram with one more duration."""
        place = bisect_left(BOUNDS, seconds)
        before, here, after = self.counts[:place], self.counts[place], self.counts[place + 1 :]
        return Durations((*before, here + 1, *after), self.seconds + seconds)


NO_DURATIONS = Durations()


class ProcessStatus(NamedTuple):
    """Facts of the daemon's process; ``started`` is in seconds since 1970, ``capabilities`` is a bit mask."""

    started: float = 0.0
    cpu_seconds: float = 0.0
    resident_bytes: int = 0
    open_files: int = 0
    most_files: int = 0
    threads: int = 0
    capabilities: int | None = None


class KubeletStatus(NamedTuple):
    """The state of the kubelet; ``pod_resources`` is "answers", or the error of the PodResources API."""

    socket: str
    present: bool
    pod_resources: str
    holders_known: bool


class EventsStatus(NamedTuple):
    """The ``source`` of the events that cause scans, the numbers of events since the start, and the
    ``unwatched`` directories.
    """

    source: str
    events: int
    lost: int
    foreign: int
    unwatched: int


class MdevsStatus(NamedTuple):
    """The numbers of mdevs and vGPUs of a type: "held", "free", "dead" (without a driver), "leaving"."""

    type: str
    state: str
    mdevs: int


class HostStatus(NamedTuple):
    """The numbers of devices on the host; ``not_readable`` lists the devices whose attributes cannot be read.

    ``scanned`` is False until a first scan has succeeded.
    """

    functions: int
    groups: int
    mdevs: int
    iommu: bool
    not_readable: tuple[str, ...]
    events: EventsStatus
    scanned: bool = False
    scans: Durations = NO_DURATIONS
    mdev_states: tuple[MdevsStatus, ...] = ()
    error: str | None = None  # why the host cannot be read now

    @classmethod
    def of(
        cls,
        host: Host,
        not_readable: tuple[str, ...],
        events: EventsStatus,
        scans: Durations = NO_DURATIONS,
        held: Container[str] = (),
        unread: str | None = None,
    ) -> HostStatus:
        """Return the numbers of a Host; ``held`` are the ids that pods use."""
        return cls(
            len(host.functions),
            len(host.groups),
            len(host.mdevs),
            host.iommu,
            not_readable,
            events,
            host.generation > 0,
            scans,
            tuple(MdevsStatus(*key, number) for key, number in sorted(_mdevs(host, held).items())),
            unread,
        )


def _mdevs(host: Host, held: Container[str]) -> Counter[tuple[str, str]]:
    """Count the mdevs, and the VFs with a vGPU type, by type and state; an unreadable type is "unknown"."""

    def state(device: HostDevice) -> str:
        if device.id in held:
            return "held"
        return "free" if device.driver is not None else "dead"

    mdevs = Counter((mdev.type_id or "unknown", state(mdev)) for mdev in host.mdevs.values())
    vgpus = Counter(
        (function.vgpu_type, state(function)) for function in host.functions.values() if function.vgpu_type
    )
    leaving = Counter(("unknown", "leaving") for _ in host.leaving)
    return mdevs + vgpus + leaving


class DeviceStatus(NamedTuple):
    """A Device as sent to the kubelet; an Unhealthy Device has a reason and a hint."""

    id: DeviceId
    healthy: bool
    numa: int | None
    reason: str | None = None  # a ReasonCode; from another version possibly an unknown one
    message: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, device: Device) -> DeviceStatus:
        """Return the status of a Device."""
        if device.reason is None:
            return cls(device.id, True, device.numa)
        return cls(
            device.id, False, device.numa, device.reason.code, device.reason.message, device.reason.hint
        )


class AllocationsStatus(NamedTuple):
    """The numbers of Allocate calls of one resource by outcome: granted, refused, failed."""

    granted: int = 0
    refused: int = 0
    failed: int = 0


NO_ALLOCATIONS = AllocationsStatus()


class ResourceStatus(NamedTuple):
    """A Resource, and its state at the kubelet; ``error`` is why the Resource is not registered.

    ``watched``: the kubelet reads its ListAndWatch stream. ``other_plugin_devices``: the device ids of
    another plugin that has registered the same resource name. ``via``: a resource by DRA has no registration.
    """

    name: ResourceName
    devices: tuple[DeviceStatus, ...]
    healthy: int
    registered: bool
    registrations: int
    error: str | None
    watched: bool = False
    allocations: AllocationsStatus = NO_ALLOCATIONS
    other_plugin_devices: tuple[str, ...] = ()
    via: Via = Via.DEVICE_PLUGIN

    @classmethod
    def of(
        cls,
        resource: Resource,
        registered: bool,
        registrations: int,
        error: str | None,
        listed: bool = False,
        allocations: AllocationsStatus = NO_ALLOCATIONS,
        others: tuple[str, ...] = (),
    ) -> ResourceStatus:
        """Return the status of a Resource, given the state of its endpoint."""
        devices = tuple(map(DeviceStatus.of, resource.devices))
        healthy = sum(device.healthy for device in devices)
        counts = (registered, registrations, error, listed, allocations, others)
        return cls(resource.name, devices, healthy, *counts, resource.via)


class MemberStatus(NamedTuple):
    """A PCI function or mdev of an IOMMU group: its name, its role in the group, and its resource or why it
    has no resource.

    ``role`` is "vfio", "bridge", "unbound", "friendly", "blocks" or "mdev"; in a group that is not for VFIO
    also "splits" or "vacant". ``parent`` is the physical function of a VF or mdev. ``device`` is the id under
    which the kubelet knows the function or mdev; None if it is not advertised: ``message`` then says why.
    """

    id: str
    description: str | None
    driver: str | None
    role: str
    parent: str | None = None
    device: str | None = None
    message: str | None = None


class GroupStatus(NamedTuple):
    """An IOMMU group that the status shows; ``number`` None means a single device without an IOMMU group."""

    number: int | None
    viable: bool
    members: tuple[MemberStatus, ...]


class CardStatus(NamedTuple):
    """A card with planned mdevs or vGPUs: its desired types, and its numbers of instances."""

    card: str
    types: tuple[str, ...]
    instances: int
    notes: tuple[str, ...]


class WaitingStatus(NamedTuple):
    """A change of the host that waits, and its reason; ``kind`` is one of ``model.change.ActionKind``."""

    card: str
    action: str
    message: str
    kind: str = ""


class FailingStatus(NamedTuple):
    """A change of the host that the kernel refused."""

    card: str
    type: str | None
    action: str
    message: str
    hint: str
    tries: int
    next_try_seconds: float


class ResultsStatus(NamedTuple):
    """The numbers of successful and refused changes of one kind since the start."""

    kind: str
    made: int = 0
    refused: int = 0


class ChangesStatus(NamedTuple):
    """The changes of the host; ``late`` are writes from which the kernel has not returned.

    ``problems`` are reasons why configured changes are impossible. ``notes`` are about desired vGPU types
    that no card of this Node supports, as they may be for other Nodes.
    """

    cards: tuple[CardStatus, ...]
    in_progress: tuple[str, ...]
    waiting: tuple[WaitingStatus, ...]
    failing: tuple[FailingStatus, ...]
    problems: tuple[Problem, ...]
    writes: int
    stuck: tuple[str, ...] = ()
    results: tuple[ResultsStatus, ...] = ()
    notes: tuple[Problem, ...] = ()


NO_CHANGES = ChangesStatus((), (), (), (), (), 0)


class HolderStatus(NamedTuple):
    """The pod that uses a device, and the resource of the device; with ``claim`` a ResourceClaim instead."""

    pod: str
    resource: ResourceName
    claim: bool = False


class ConfigurationStatus(NamedTuple):
    """The settings in force: their number since the start, and the time of the change (seconds since 1970).

    ``problem`` is why newer settings are not in force; ``refused`` counts the rejected configurations.
    """

    generation: int = 1
    since: float = 0.0
    refused: int = 0
    problem: Problem | None = None


class HttpStatus(NamedTuple):
    """The address that serves metrics, health and the status page ("http://127.0.0.1:9481/").

    ``problem``: why the configured address is not served.
    """

    address: str | None = None
    problem: Problem | None = None


class StaleStatus(NamedTuple):
    """An extended resource that nodeagent advertised formerly, and that the Node still lists although no
    plugin offers it.

    ``message`` is why the resource cannot be removed from the Node; "" if it can be.
    """

    resource: str
    message: str = ""


class ClusterStatus(NamedTuple):
    """The state of the watches on the API server.

    ``enabled``: the settings require it, and there are credentials. ``reachable``: the watches are up to
    date; ``since`` is the time when ``reachable`` last changed, in seconds since 1970. ``kubevirt`` is the CR
    in force, or ""; ``last_saved`` the time at which the CR or the labels were last written to disk.
    ``warnings`` are messages about state that stays in force although the cluster differs; ``refused`` are
    the parts of the KubeVirt CR that are not in force; ``write_errors`` are missing permissions.
    ``events_dropped`` counts Events over the rate limit. ``stale`` are resources that the Node should no
    longer list; ``stale_removed`` are resources removed from the Node.
    """

    enabled: bool = False
    reachable: bool = False
    since: float = 0.0
    kubevirt: str = ""
    last_saved: float = 0.0
    error: str = ""
    hint: str = ""
    warnings: tuple[str, ...] = ()
    refused: tuple[Problem, ...] = ()
    write_errors: tuple[str, ...] = ()
    events_dropped: int = 0
    stale: tuple[StaleStatus, ...] = ()
    stale_removed: tuple[str, ...] = ()


class Status(NamedTuple):
    """The state of the daemon at one moment. ``findings`` are all problems with their hints, then notes.

    ``problems`` are the texts of the findings that need action. ``subsystems`` has the components that failed
    since the start, each with the error or "running again". ``pci_ids`` is the date of the bundled copy of
    pci.ids.
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
    process: ProcessStatus = ProcessStatus()
    configuration: ConfigurationStatus = ConfigurationStatus()
    http: HttpStatus = HttpStatus()
    allocating: Durations = NO_DURATIONS
    groups: tuple[GroupStatus, ...] = ()
    cluster: ClusterStatus = ClusterStatus()
    pci_ids: str = ""
    findings: tuple[Problem, ...] = ()

    @property
    def found(self) -> tuple[Problem, ...]:
        """Return the problems that need action."""
        return tuple(each for each in self.findings if each.action_required)

    @property
    def notes(self) -> tuple[Problem, ...]:
        """Return the findings (notes) that may be intended."""
        return tuple(each for each in self.findings if not each.action_required)

    def with_findings(self, findings: Iterable[Problem]) -> Status:
        """Return the Status with these problems and notes."""
        ordered = sorted(findings, key=lambda finding: not finding.action_required)
        texts = tuple(finding.message for finding in ordered if finding.action_required)
        return self._replace(findings=tuple(ordered), problems=texts)

    @property
    def of_plugins(self) -> tuple[ResourceStatus, ...]:
        """Return the resources that the kubelet registers: those of device plugins."""
        return tuple(each for each in self.resources if each.via is Via.DEVICE_PLUGIN)

    @property
    def unready(self) -> tuple[str, ...]:
        """Return the reasons why ``/readyz`` fails; an unreachable kubelet is no such reason."""
        missing = () if self.host.scanned else ("the host was not scanned yet",)
        if not self.kubelet.present:
            return missing
        late = (each for each in self.of_plugins if not (each.registered and each.watched))
        lacks = {False: "does not know it yet", True: "does not read its list of devices yet"}
        by_dra = (each.message for each in self.findings if each.code == ProblemCode.DRA_NOT_REGISTERED)
        return (*missing, *(f"{each.name}: the kubelet {lacks[each.registered]}" for each in late), *by_dra)
