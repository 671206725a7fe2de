# SPDX-License-Identifier: Apache-2.0
"""``nodeagent status``: prints the Status of the daemon; with ``--watch`` again at each change."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from nodeagent.base.terminal import table
from nodeagent.cli import args, daemon_client, output
from nodeagent.model import plain
from nodeagent.model.resource import WAITS, Via
from nodeagent.model.status import (
    ClusterStatus,
    HolderStatus,
    ResourceStatus,
    StaleStatus,
    Status,
)
from nodeagent.policy import diagnose

_CLEAR = "\x1b[H\x1b[2J"
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_HEAD = ("RESOURCE", "DEVICES", "HEALTHY", "IN USE", "FREE", "REGISTERED")
_WIDE = ("DEVICE", "RESOURCE", "HEALTH", "NUMA", "IN USE BY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--watch``."""
    parser.add_argument("-w", "--watch", action="store_true", help="print again at each change")
    args.add_common(parser, args.WIDE_FORMS)


def run(options: argparse.Namespace) -> int:
    """Print the Status of the daemon. :raises NodeagentError: if there is no readable answer."""
    if options.watch:
        return _watch(options)
    document = daemon_client.read_status(options)
    output.print_answer(_format(options, document))
    return output.WRONG if document.get("problems") else output.FINE


def _watch(options: argparse.Namespace) -> int:
    """Print the Status at each change until interrupted.

    :raises NodeagentError: when the daemon no longer answers.
    """
    before, clear = "", sys.stdout is not None and sys.stdout.isatty()
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            document = daemon_client.read_status(options)
            now = text(_read(document, options), wide=True).partition("\n")[2]  # without the time of line 1
            if now != before:
                output.print_answer(f"{_CLEAR if clear else ''}{_format(options, document)}")
            before = now
            time.sleep(options.timeouts.status_watch)
    return output.FINE


def _format(options: argparse.Namespace, document: Any) -> str:
    if options.output in ("json", "yaml") and isinstance(document, dict) and document:
        return output.format_document(options.output, {**output.heading("Status"), **document})
    status = _read(document, options)
    if options.output == output.NAME:
        return names(status)
    wide = options.output == output.WIDE
    return output.fold_text(text(status, wide=wide), wide=wide)


def _read(document: Any, options: argparse.Namespace) -> Status:
    try:
        return plain.load(Status, document)
    except (TypeError, ValueError) as error:
        raise daemon_client.describe_unreadable(error, args.find_root(options)) from error


def names(status: Status) -> str:
    """The names of the resources, one per line."""
    return "\n".join(resource.name for resource in status.resources)


def text(status: Status, *, wide: bool = False) -> str:
    """The resources, devices in use, and problems; ``wide``: also all devices."""
    kubelet, host = status.kubelet, status.host
    lines = [
        f"nodeagent {status.version}, pid {status.pid}, up {format_duration(status.uptime_seconds)}",
        f"kubelet {'present' if kubelet.present else 'unreachable'} at {kubelet.socket}",
        f"pod-resources: {kubelet.pod_resources}",
        *([f"names: bundled pci.ids of {status.pci_ids}"] if status.pci_ids else []),
        f"host: {host.functions} functions, {host.groups} groups; event source: {host.events.source}",
        *([f"metrics and health at {status.http.address}"] if status.http.address else []),
        *([_cluster(status.cluster)] if status.cluster.enabled else []),
        "",
        table(_HEAD, [_row(each, status.holders) for each in status.resources])
        if status.resources
        else "no resources",
    ]
    lines += ["", table(_WIDE, _devices(status))] if wide and status.resources else []
    lines += [""] if status.holders else []
    lines += [f"{device} in use by {holder.pod}" for device, holder in status.holders.items()]
    waiting = [f"{each.card}: {each.action}: {each.message}" for each in status.changes.waiting]
    waiting += _waiting(status)
    lines += ["", "pending (no action required):", *(f"  {line}" for line in waiting)] if waiting else []
    lines += [_stale(each) for each in status.cluster.stale]
    lines += output.problem_section(output.NOTES, status.notes)
    problems = diagnose.combine_devices(status)
    lines += output.problem_section(output.PROBLEMS, problems) or ["", "all is well"]
    return "\n".join(lines)


def _waiting(status: Status) -> list[str]:
    """The Unhealthy devices that need no action, because a pod uses another device of their group."""
    listed = {problem.subject for problem in status.found}
    return [
        f"{resource.name}: {diagnose.list_ids(devices)}: {devices[0].message}"
        for resource in status.resources
        for devices in diagnose.group_by_reason(
            device
            for device in resource.devices
            if device.reason in WAITS and diagnose.subject(resource, device) not in listed
        )
    ]


def _cluster(cluster: ClusterStatus) -> str:
    """Whether the API server answers, and which KubeVirt CR is in force."""
    when = datetime.fromtimestamp(cluster.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    in_force = f"KubeVirt CR {cluster.kubevirt}" if cluster.kubevirt else "no KubeVirt CR"
    left_out = f"; dropped Events: {cluster.events_dropped}" if cluster.events_dropped else ""
    if cluster.reachable:
        return f"API server: reachable since {when}; in force: {in_force}{left_out}"
    since = f"no valid answer since {when}" if cluster.since else "has not answered yet"
    return f"API server: {since}; in force from its last answer: {in_force}{left_out}"


def _stale(stale: StaleStatus) -> str:
    """A line about a stale resource. A stale resource does no harm: pods that request it stay Pending."""
    why = stale.message or "to remove it from the Node, set cluster.staleResources to remove"
    return f"{stale.resource}: the Node lists it with 0 devices, and no plugin offers it; {why}"


def _row(resource: ResourceStatus, holders: Mapping[str, HolderStatus]) -> tuple[str, ...]:
    ids = {device.id for device in resource.devices}
    held = {
        device for device, holder in holders.items() if device in ids and holder.resource == resource.name
    }
    free = sum(device.healthy and device.id not in held for device in resource.devices)
    numbers = (len(ids), resource.healthy, len(held), free)
    registered = "yes" if resource.registered else "no"
    return (resource.name, *map(str, numbers), "by DRA" if resource.via is Via.DRA else registered)


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


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: ``61.4`` is "1 min 1 s"; less than a second is "0 s"."""
    rest, parts = int(seconds), list[str]()
    for length, unit in _UNITS:
        count, rest = divmod(rest, length)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(filter(None, parts[:2])) or "0 s"
