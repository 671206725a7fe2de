# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent status`` prints of a Status."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from nodeagent.base.terminal import table
from nodeagent.model.resource import WAITS
from nodeagent.model.status import (
    ClusterStatus,
    DeviceStatus,
    HolderStatus,
    ResourceStatus,
    StaleStatus,
    Status,
)
from nodeagent.policy import diagnose
from nodeagent.render import remarks, times
from nodeagent.render.rules import few

_HEAD = ("RESOURCE", "DEVICES", "HEALTHY", "HELD", "FREE", "KUBELET")
_WIDE = ("DEVICE", "RESOURCE", "HEALTH", "NUMA", "HELD BY")


def names(status: Status) -> str:
    """The names of the resources, a line each."""
    return "\n".join(resource.name for resource in status.resources)


def text(status: Status, *, wide: bool = False) -> str:
    """The resources, who holds what, and what needs a person; ``wide``: all devices, too."""
    kubelet, host = status.kubelet, status.host
    lines = [
        f"nodeagent {status.version}, pid {status.pid}, up {times.span(status.uptime_seconds)}",
        f"kubelet {'present' if kubelet.present else 'away'} at {kubelet.socket}",
        f"pod-resources: {kubelet.pod_resources}",
        *([f"names: bundled pci.ids of {status.pci_ids}"] if status.pci_ids else []),
        f"host: {host.functions} functions, {host.groups} groups; events by {host.events.source}",
        *([f"metrics and health at {status.http.address}"] if status.http.address else []),
        *([_cluster(status.cluster)] if status.cluster.followed else []),
        "",
        table(_HEAD, [_row(each, status.holders) for each in status.resources])
        if status.resources
        else "no resources",
    ]
    lines += ["", table(_WIDE, _devices(status))] if wide and status.resources else []
    lines += [""] if status.holders else []
    lines += [f"{device} held by {holder.pod}" for device, holder in status.holders.items()]
    waiting = [f"{each.card}: {each.action}: {each.why}" for each in status.changes.waiting]
    waiting += _waiting(status)
    lines += ["", "waiting, which needs nobody:", *(f"  {line}" for line in waiting)] if waiting else []
    lines += [_stale(each) for each in status.cluster.stale]
    lines += remarks.section(remarks.NOTES, status.notes)
    lines += ["", "all is well"] if not status.problems else ["", remarks.PROBLEMS]
    return "\n".join([*lines, *_told(status)])


def _told(status: Status) -> Iterator[str]:
    """Each problem, and below it what to do where that is known; a hint for several comes with the last."""
    hints = {problem.what: problem.hint for problem in diagnose.problems(status)}
    combined = _unhealthy_by_reason(status)
    by_line = {combined.get(problem, problem): hints.get(problem, "") for problem in status.problems}
    for hint, lines in itertools.groupby(by_line, lambda line: by_line[line]):
        yield from (f"  {line}" for line in lines)
        first, *others = hint.splitlines() or [""]
        yield from (f"    {line}" for line in (f"to do: {first}" if first else "", *others) if line)


def _unhealthy_by_reason(status: Status) -> dict[str, str]:
    """Problem of an Unhealthy device → one line for all devices of the resource with the same reason.

    A node with 1,000 shares is 1,000 devices.
    """
    problems = set(status.problems)
    lines: dict[str, str] = {}
    for resource in status.resources:
        for devices in _by_reason(
            d for d in resource.devices if diagnose.unhealthy(resource.name, d) in problems
        ):
            if len(devices) > 1:
                ids = few([device.id for device in devices])
                line = f"{resource.name}: {ids} are Unhealthy: {devices[0].what}"
                lines |= {diagnose.unhealthy(resource.name, device): line for device in devices}
    return lines


def _by_reason(devices: Iterable[DeviceStatus]) -> Collection[list[DeviceStatus]]:
    """Unhealthy devices of one resource, those with the same text and hint together."""
    groups: dict[tuple[str | None, str | None], list[DeviceStatus]] = {}
    for device in devices:
        groups.setdefault((device.what, device.hint), []).append(device)
    return groups.values()


def _waiting(status: Status) -> list[str]:
    """What is Unhealthy and no problem: it is as it should be while a pod has the rest of its group."""
    problems = set(status.problems)
    return [
        f"{resource.name}: {few([device.id for device in devices])}: {devices[0].what}"
        for resource in status.resources
        for devices in _by_reason(
            device
            for device in resource.devices
            if device.reason in WAITS and diagnose.unhealthy(resource.name, device) not in problems
        )
    ]


def _cluster(cluster: ClusterStatus) -> str:
    """Whether the cluster answers, and whose wishes are in force."""
    when = datetime.fromtimestamp(cluster.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    wishes = f"KubeVirt CR {cluster.kubevirt}" if cluster.kubevirt else "no KubeVirt CR"
    untold = f"; Events left out: {cluster.events_left_out}" if cluster.events_left_out else ""
    if cluster.answers:
        return f"cluster: answers since {when}; in force: {wishes}{untold}"
    since = f"does not answer since {when}" if cluster.since else "has not answered yet"
    return f"cluster: {since}; in force, as it was heard last: {wishes}{untold}"


def _stale(stale: StaleStatus) -> str:
    """No fault: pods that ask for it wait as they would without it."""
    why = stale.why or "cluster.staleResources: remove takes it away"
    return f"{stale.resource}: the Node counts it as 0, and nobody gives it any more; {why}"


def _row(resource: ResourceStatus, holders: Mapping[str, HolderStatus]) -> tuple[str, ...]:
    ids = {device.id for device in resource.devices}
    held = {
        device for device, holder in holders.items() if device in ids and holder.resource == resource.name
    }
    free = sum(device.healthy and device.id not in held for device in resource.devices)
    numbers = (len(ids), resource.healthy, len(held), free)
    return (resource.name, *map(str, numbers), "yes" if resource.registered else "no")


def _devices(status: Status) -> Iterator[tuple[str, ...]]:
    for resource in status.resources:
        for device in resource.devices:
            holder = status.holders.get(device.id)
            yield (
                device.id,
                resource.name,
                "Healthy" if device.healthy else device.reason or "Unhealthy",
                "-" if device.numa is None else str(device.numa),
                holder.pod if holder is not None and holder.resource == resource.name else "-",
            )
