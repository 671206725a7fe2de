# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent status`` prints of a Status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from nodeagent.model.status import ClusterStatus, HolderStatus, ResourceStatus, Status
from nodeagent.render.table import table

_HEAD = ("RESOURCE", "DEVICES", "HEALTHY", "REGISTERED", "HELD")


def text(status: Status) -> str:
    """The resources, who holds what, and what needs a person."""
    kubelet, host = status.kubelet, status.host
    lines = [
        f"nodeagent {status.version}, pid {status.pid}, up {status.uptime_seconds:.0f} s",
        f"kubelet {'present' if kubelet.present else 'away'} at {kubelet.socket}",
        f"pod-resources: {kubelet.pod_resources}",
        f"host: {host.functions} functions, {host.groups} groups; events by {host.events.source}",
        *([f"metrics and health at {status.http.address}"] if status.http.address else []),
        *([_cluster(status.cluster)] if status.cluster.followed else []),
        "",
        table(_HEAD, [_row(each, status.holders) for each in status.resources])
        if status.resources
        else "no resources",
    ]
    lines += [""] if status.holders else []
    lines += [f"{device} held by {holder.pod}" for device, holder in status.holders.items()]
    lines += [f"waiting on {each.card}: {each.action}: {each.why}" for each in status.changes.waiting]
    lines += ["", "all is well"] if not status.problems else ["", "to look at:"]
    return "\n".join([*lines, *(f"  {problem}" for problem in status.problems)])


def _cluster(cluster: ClusterStatus) -> str:
    """Whether the cluster answers, and whose wishes are in force."""
    when = datetime.fromtimestamp(cluster.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    wishes = f"KubeVirt CR {cluster.kubevirt}" if cluster.kubevirt else "no KubeVirt CR"
    if cluster.answers:
        return f"cluster: answers since {when}; in force: {wishes}"
    since = f"does not answer since {when}" if cluster.since else "has not answered yet"
    return f"cluster: {since}; in force, as it was heard last: {wishes}"


def _row(resource: ResourceStatus, holders: Mapping[str, HolderStatus]) -> tuple[str, ...]:
    ids = {device.id for device in resource.devices}
    held = sum(device in ids and holder.resource == resource.name for device, holder in holders.items())
    return (
        resource.name,
        str(len(ids)),
        str(resource.healthy),
        "yes" if resource.registered else "no",
        str(held),
    )
