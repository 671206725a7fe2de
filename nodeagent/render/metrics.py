# SPDX-License-Identifier: Apache-2.0
"""A Status as metrics in the text format of Prometheus, 0.0.4; THE table of all metrics.

Labels have few values: resources of this node, closed lists, types of vGPUs. No device, pod or card is one: a
node has thousands of them over the years, and ``nodeagent status`` names them. Counters begin with zero, so
that a first increase counts. The page ``docs/metrics.md`` is made from the table.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nodeagent.model.change import ActionKind
from nodeagent.model.status import ANSWERS, BOUNDS, Durations, ResourceStatus, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RUNNING_AGAIN = "running again"

Samples = Iterable[tuple[tuple[str, ...], float | Durations]]


class Metric(NamedTuple):
    """One metric: ``type`` is gauge, counter or histogram; ``samples`` gives labels' values and a value."""

    name: str
    type: str
    help: str
    samples: Callable[[Status], Samples]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Status], float | Durations]) -> Callable[[Status], Samples]:
    """The samples of a metric without labels."""
    return lambda status: [((), value(status))]


def _each(value: Callable[[ResourceStatus], float]) -> Callable[[Status], Samples]:
    """The samples of a metric that each resource has."""
    return lambda status: [((resource.name,), value(resource)) for resource in status.resources]


def _devices(status: Status) -> Samples:
    """Healthy and unhealthy ones of each resource; the latter by reason, as far as there are any."""
    for resource in status.resources:
        yield (resource.name, "healthy", ""), resource.healthy
        reasons = Counter(device.reason or "" for device in resource.devices if not device.healthy)
        for reason, number in sorted(reasons.items()):
            yield (resource.name, "unhealthy", reason), number


def _held(status: Status) -> Samples:
    held = Counter(holder.resource for holder in status.holders.values())
    return [((resource.name,), held[resource.name]) for resource in status.resources]


def _allocations(status: Status) -> Samples:
    for resource in status.resources:
        for result, number in resource.allocations._asdict().items():
            yield (resource.name, result), number


def _changes(status: Status) -> Samples:
    known = {each.kind: each for each in status.changes.results}
    for kind in ActionKind:
        results = known.get(kind)
        yield (kind, "made"), results.made if results else 0
        yield (kind, "refused"), results.refused if results else 0


def _waiting(status: Status) -> Samples:
    waiting = Counter(each.kind for each in status.changes.waiting)
    return [((kind,), waiting[kind]) for kind in ActionKind]


def _mdevs(status: Status) -> Samples:
    return [((each.type, each.state), each.mdevs) for each in status.host.mdev_states]


def _build(status: Status) -> Samples:
    return [((status.version, platform.python_version()), 1)]


def _by_source(value: Callable[[Status], float]) -> Callable[[Status], Samples]:
    """The samples of a metric on events, which have one source for as long as the process lives."""
    return lambda status: [((status.host.events.source,), value(status))]


METRICS: tuple[Metric, ...] = (
    Metric("nodeagent_build_info", "gauge", "Always 1; what runs here.", _build, ("version", "python")),
    Metric(
        "nodeagent_problems",
        "gauge",
        "Things that need a person: the lines below 'to look at' of nodeagent status.",
        _one(lambda status: len(status.problems)),
    ),
    Metric(
        "nodeagent_subsystems_failing",
        "gauge",
        "Subsystems that have failed and wait for their next start.",
        _one(lambda status: sum(text != RUNNING_AGAIN for text in status.subsystems.values())),
    ),
    Metric(
        "nodeagent_devices",
        "gauge",
        "Devices as the kubelet is told of them; unhealthy ones by the reason code.",
        _devices,
        ("resource", "health", "reason"),
    ),
    Metric("nodeagent_devices_held", "gauge", "Devices that pods hold.", _held, ("resource",)),
    Metric(
        "nodeagent_allocations_total",
        "counter",
        "Allocates of one container each, by how they ended.",
        _allocations,
        ("resource", "result"),
    ),
    Metric(
        "nodeagent_allocate_duration_seconds",
        "histogram",
        "How long Allocates took, waiting for a former holder included.",
        _one(lambda status: status.allocating),
    ),
    Metric(
        "nodeagent_resource_registered",
        "gauge",
        "1 if the kubelet has registered the resource.",
        _each(lambda resource: resource.registered),
        ("resource",),
    ),
    Metric(
        "nodeagent_registrations_total",
        "counter",
        "Registrations that the kubelet took; each start of a kubelet needs a new one.",
        _each(lambda resource: resource.registrations),
        ("resource",),
    ),
    Metric(
        "nodeagent_kubelet_present",
        "gauge",
        "1 if the kubelet's socket is there and nobody was refused at it.",
        _one(lambda status: status.kubelet.present),
    ),
    Metric(
        "nodeagent_kubelet_answers",
        "gauge",
        "1 if the kubelet said who holds what when it was asked last.",
        _one(lambda status: status.kubelet.pod_resources == ANSWERS),
    ),
    Metric(
        "nodeagent_holders_known",
        "gauge",
        "1 if whoever is not named holds nothing; before that nothing is taken away.",
        _one(lambda status: status.kubelet.holders_known),
    ),
    Metric(
        "nodeagent_events_total",
        "counter",
        "Events of the host that led to a look at it.",
        _by_source(lambda status: status.host.events.events),
        ("source",),
    ),
    Metric(
        "nodeagent_event_losses_total",
        "counter",
        "Times that events were lost because there were too many at once; all is read again then.",
        _by_source(lambda status: status.host.events.lost),
        ("source",),
    ),
    Metric(
        "nodeagent_foreign_events_total",
        "counter",
        "Messages on the kernel's event socket that were not the kernel's; they count for nothing.",
        _one(lambda status: status.host.events.foreign),
    ),
    Metric(
        "nodeagent_unwatched_directories",
        "gauge",
        "Directories whose changes are seen late because the kernel gives no more watches.",
        _one(lambda status: status.host.events.unwatched),
    ),
    Metric(
        "nodeagent_scan_duration_seconds",
        "histogram",
        "How long scans took, of the whole host or of what an event named.",
        _one(lambda status: status.host.scans),
    ),
    Metric(
        "nodeagent_unreadable_devices",
        "gauge",
        "Parts of the host that do not answer when they are read.",
        _one(lambda status: len(status.host.not_readable)),
    ),
    Metric(
        "nodeagent_pci_functions",
        "gauge",
        "PCI functions of the host.",
        _one(lambda status: status.host.functions),
    ),
    Metric(
        "nodeagent_mdevs",
        "gauge",
        "Mediated devices and vGPUs by type id; dead ones have no driver, leaving ones wait for a holder.",
        _mdevs,
        ("type", "state"),
    ),
    Metric(
        "nodeagent_changes_total",
        "counter",
        "Changes of the host that were made, and those that the kernel refused.",
        _changes,
        ("change", "result"),
    ),
    Metric(
        "nodeagent_changes_waiting",
        "gauge",
        "Changes of the host that wait, such as the removal of what a pod holds.",
        _waiting,
        ("change",),
    ),
    Metric(
        "nodeagent_changes_failing",
        "gauge",
        "Changes of the host that the kernel refused last, and that are tried again.",
        _one(lambda status: len(status.changes.failing)),
    ),
    Metric(
        "nodeagent_changes_late",
        "gauge",
        "Changes of the host to which the kernel does not answer.",
        _one(lambda status: len(status.changes.late)),
    ),
    Metric(
        "nodeagent_config_generation",
        "gauge",
        "The how manyth settings since the start are in force.",
        _one(lambda status: status.configuration.generation),
    ),
    Metric(
        "nodeagent_config_in_force_since_timestamp_seconds",
        "gauge",
        "Since when the settings are in force.",
        _one(lambda status: status.configuration.since),
    ),
    Metric(
        "nodeagent_config_wrong",
        "gauge",
        "1 if the newest settings are wrong, and older ones in force.",
        _one(lambda status: status.configuration.error is not None),
    ),
    Metric(
        "nodeagent_config_refusals_total",
        "counter",
        "Settings that were wrong.",
        _one(lambda status: status.configuration.refused),
    ),
    Metric(
        "nodeagent_cluster_followed",
        "gauge",
        "1 if the API server is asked for the KubeVirt CR and this Node.",
        _one(lambda status: status.cluster.followed),
    ),
    Metric(
        "nodeagent_cluster_answers",
        "gauge",
        "1 if what is in force of the cluster is what it says now.",
        _one(lambda status: status.cluster.answers),
    ),
    Metric(
        "nodeagent_cluster_since_timestamp_seconds",
        "gauge",
        "Since when it is so: time() less this is the age of what is in force while it does not answer.",
        _one(lambda status: status.cluster.since),
    ),
    Metric(
        "process_start_time_seconds",
        "gauge",
        "When the process began.",
        _one(lambda status: status.process.started),
    ),
    Metric(
        "process_cpu_seconds_total",
        "counter",
        "Time on a CPU, in user and kernel mode.",
        _one(lambda status: status.process.cpu_seconds),
    ),
    Metric(
        "process_resident_memory_bytes",
        "gauge",
        "Memory that is resident.",
        _one(lambda status: status.process.resident_bytes),
    ),
    Metric(
        "process_open_fds", "gauge", "Open file descriptors.", _one(lambda status: status.process.open_files)
    ),
    Metric(
        "process_max_fds",
        "gauge",
        "How many file descriptors may be open.",
        _one(lambda status: status.process.most_files),
    ),
    Metric("process_threads", "gauge", "Threads.", _one(lambda status: status.process.threads)),
)


def text(status: Status) -> str:
    """All metrics of a Status."""
    return "".join(line for metric in METRICS for line in _lines(metric, status))


def _lines(metric: Metric, status: Status) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"
    for values, value in metric.samples(status):
        labels = tuple(zip(metric.labels, values, strict=True))
        if isinstance(value, Durations):
            yield from _histogram(metric.name, labels, value)
        else:
            yield f"{metric.name}{_labels(labels)} {_number(value)}\n"


def _histogram(name: str, labels: tuple[tuple[str, str], ...], value: Durations) -> Iterator[str]:
    below = 0
    for bound, count in zip((*BOUNDS, float("inf")), value.counts, strict=True):
        below += count
        yield f"{name}_bucket{_labels((*labels, ('le', _number(bound))))} {below}\n"
    yield f"{name}_sum{_labels(labels)} {_number(value.seconds)}\n"
    yield f"{name}_count{_labels(labels)} {below}\n"


def _labels(labels: tuple[tuple[str, str], ...]) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
