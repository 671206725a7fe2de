# SPDX-License-Identifier: Apache-2.0
"""What each component says of itself, and how a Status is joined of that. Pure.

A share is a frozen value of what one component alone knows; its ``problems`` are whole lines for people.
Their order in a Status is that of ``_problems``: what hinders the daemon comes before what hinders a device.
Named tuples, since the daemon's start pays for each class, and ten times more for a dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from nodeagent.model.allocation import Allocations, Holder
from nodeagent.model.names import NamesStatus, Rename
from nodeagent.model.resource import waits
from nodeagent.model.status import (
    ANSWERS,
    NO_CHANGES,
    NO_DURATIONS,
    ChangesStatus,
    ClusterStatus,
    ConfigurationStatus,
    DeviceStatus,
    Durations,
    GroupStatus,
    HolderStatus,
    HostStatus,
    HttpStatus,
    KubeletStatus,
    ProcessStatus,
    ResourceStatus,
    Status,
)

RUNNING_AGAIN = "running again"
_NAMED = 5  # directories that one problem names


class ProcessShare(NamedTuple):
    """The process itself; ``root`` is the prefix of all host paths."""

    version: str
    pid: int
    uptime_seconds: float
    root: str
    numbers: ProcessStatus = ProcessStatus()


class SupervisorShare(NamedTuple):
    """Subsystem → why it failed last; "" means that it runs again."""

    failures: Mapping[str, str]

    @property
    def problems(self) -> tuple[str, ...]:
        """What does not run."""
        return tuple(f"{name}: {text}" for name, text in self.failures.items() if text)


class ConfigurationShare(NamedTuple):
    """The settings in force; ``status.error`` has two lines: why the newest are not, or None."""

    status: ConfigurationStatus

    @property
    def problems(self) -> tuple[str, ...]:
        """The first line of the error."""
        if not self.status.error:
            return ()
        return (not_in_force(self.status.error.splitlines()[0]),)


class HoldersShare(NamedTuple):
    """Who holds what, and why that cannot be asked, or None."""

    allocations: Allocations
    error: str | None

    @property
    def problems(self) -> tuple[str, ...]:
        """That the kubelet does not answer."""
        return (unasked(self.error),) if self.error else ()


_NO_INSTANCE = (
    "changes are seen late: the kernel gives no inotify instance; "
    "raise the kernel setting fs.inotify.max_user_instances"
)


class WatchesShare(NamedTuple):
    """The directories that cannot be watched; whether there is an inotify instance at all."""

    unwatched: tuple[str, ...]
    instance: bool = True

    @property
    def problems(self) -> tuple[str, ...]:
        """That the kernel gives no more watches, or no instance."""
        if not self.unwatched:
            return ()
        if not self.instance:
            return (_NO_INSTANCE,)
        others = " and others" if self.unwatched[_NAMED:] else ""
        line = (
            f"changes are seen late, or not at all, in {', '.join(self.unwatched[:_NAMED])}{others}: "
            "the kernel gives no more watches; raise the kernel setting fs.inotify.max_user_watches"
        )
        return (line,)


class DirectoryShare(NamedTuple):
    """The kubelet's socket, and whether somebody is there."""

    socket: str
    present: bool

    @property
    def problems(self) -> tuple[str, ...]:
        """That the kubelet is away."""
        return () if self.present else (away(self.socket),)


class GroupsShare(NamedTuple):
    """The IOMMU groups that matter, with what becomes of their members."""

    groups: tuple[GroupStatus, ...]


class HttpShare(NamedTuple):
    """Where metrics, health and the page are served."""

    status: HttpStatus

    @property
    def problems(self) -> tuple[str, ...]:
        """That the address cannot be had."""
        return (self.status.error,) if self.status.error else ()


class ResourcesShare(NamedTuple):
    """The resources with their devices; ``trouble`` are lines on resources that cannot be served."""

    resources: tuple[ResourceStatus, ...]
    trouble: tuple[str, ...]
    allocating: Durations = NO_DURATIONS

    def problems(self, holders: Mapping[str, Holder]) -> tuple[str, ...]:
        """What is not registered, and each Unhealthy device, unless it only waits for a pod to end."""
        return tuple(line for resource in self.resources for line in _of_resource(resource, holders))


class ClusterShare(NamedTuple):
    """What is followed in the cluster."""

    status: ClusterStatus

    @property
    def problems(self) -> tuple[str, ...]:
        """That it does not answer, what stays in force all the same, what cannot be used or written."""
        status = self.status
        silent = (unheard(status.error),) if status.followed and status.error else ()
        return (*silent, *status.doubts, *status.refused, *status.unwritten)


class NamesShare(NamedTuple):
    """Where names come from, and which are others now."""

    status: NamesStatus

    @property
    def problems(self) -> tuple[str, ...]:
        """What is called otherwise: pods, and the KubeVirt CR, may ask for the old name."""
        return tuple(map(renamed, self.status.changed))


class Shares(NamedTuple):
    """What all components say at one moment."""

    process: ProcessShare
    directory: DirectoryShare
    host: HostStatus
    supervisor: SupervisorShare
    configuration: ConfigurationShare
    holders: HoldersShare
    watches: WatchesShare
    resources: ResourcesShare
    changes: ChangesStatus = NO_CHANGES
    http: HttpShare = HttpShare(HttpStatus())
    groups: GroupsShare = GroupsShare(())
    cluster: ClusterShare = ClusterShare(ClusterStatus())
    names: NamesShare = NamesShare(NamesStatus())


def joined(shares: Shares) -> Status:
    """The Status of all shares."""
    process, directory, holders = shares.process, shares.directory, shares.holders
    return Status(
        version=process.version,
        pid=process.pid,
        uptime_seconds=process.uptime_seconds,
        root=process.root,
        kubelet=KubeletStatus(
            directory.socket, directory.present, holders.error or ANSWERS, holders.allocations.complete
        ),
        host=shares.host,
        resources=shares.resources.resources,
        changes=shares.changes,
        holders={
            device_id: HolderStatus(str(holder), holder.resource)
            for device_id, holder in holders.allocations.holders.items()
        },
        subsystems={name: text or RUNNING_AGAIN for name, text in shares.supervisor.failures.items()},
        problems=tuple(_problems(shares)),
        process=process.numbers,
        configuration=shares.configuration.status,
        http=shares.http.status,
        allocating=shares.resources.allocating,
        groups=shares.groups.groups,
        cluster=shares.cluster.status,
        names=shares.names.status,
    )


def _problems(shares: Shares) -> Iterator[str]:
    yield from shares.supervisor.problems
    yield from shares.configuration.problems
    yield from shares.cluster.problems
    yield from shares.holders.problems
    yield from shares.host.problems
    yield from shares.watches.problems
    yield from shares.http.problems
    yield from shares.names.problems
    yield from shares.resources.trouble
    yield from _of_changes(shares.changes)
    yield from shares.directory.problems
    yield from shares.resources.problems(shares.holders.allocations.holders)


def _of_resource(resource: ResourceStatus, holders: Mapping[str, Holder]) -> Iterator[str]:
    if resource.error:
        yield unregistered(resource)
    for device in resource.devices:
        holder = holders.get(device.id)
        held = holder is not None and holder.resource == resource.name
        if not device.healthy and not waits(device.reason, held=held):
            yield unhealthy(resource.name, device)


def unhealthy(resource: str, device: DeviceStatus) -> str:
    """The line of a device that cannot be given."""
    return f"{resource}: {device.id} is Unhealthy: {device.what}"


def unregistered(resource: ResourceStatus) -> str:
    """The line of a resource that the kubelet does not take."""
    return f"{resource.name}: not registered: {resource.error}"


def unasked(error: str) -> str:
    """The line on holders that nobody tells."""
    return f"who holds what is not known: {error}"


def not_in_force(error: str) -> str:
    """The line of settings that were refused."""
    return f"the new configuration is not in force: {error}"


def renamed(rename: Rename) -> str:
    """The line of a resource that has another name since this start."""
    return f"{rename.old} is called {rename.new} now: what names are made of says something else"


def unheard(error: str) -> str:
    """The line on a cluster that does not answer."""
    return f"the cluster is not heard: {error}"


def away(socket: str) -> str:
    """The line of a kubelet that is not there."""
    return f"the kubelet is away: nobody is at {socket}"


def _of_changes(changes: ChangesStatus) -> Iterator[str]:
    """What cannot be meant, what the kernel does not answer, and what it refuses: once per card and type."""
    yield from changes.problems
    yield from (f"the kernel does not answer: {action}" for action in changes.late)
    first: dict[tuple[str, str | None], str] = {}
    for failing in reversed(changes.failing):
        first[failing.card, failing.type] = f"{failing.card}: {failing.what}"
    yield from reversed(first.values())
