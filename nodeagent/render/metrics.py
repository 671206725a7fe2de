# SPDX-License-Identifier: Apache-2.0
"""Formats a Status as metrics in the text format of Prometheus, 0.0.4; contains the table of all metrics.

Labels have few values: the resources of this node, fixed lists, or vGPU types. Devices, pods and cards are
never labels: a node has thousands of them over the years, and ``nodeagent status`` shows them. Counters start
at zero, so that Prometheus sees the first increase. The table in ``docs/metrics.md`` is generated from the
table in this module.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from nodeagent.model.change import ActionKind
from nodeagent.model.status import ANSWERS, BOUNDS, RUNNING_AGAIN, Durations, ResourceStatus, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Iterable[tuple[tuple[str, ...], float | Durations]]


class Metric(NamedTuple):
    """One metric. ``type``: gauge, counter or histogram; ``samples`` yields label values and a value."""

    name: str
    type: str
    help: str
    samples: Callable[[Status], Samples]
    labels: tuple[str, ...] = ()


def _gauge(name: str, text: str, value: Callable[[Status], float]) -> Metric:
    return Metric(name, "gauge", text, lambda status: [((), value(status))])


def _counter(name: str, text: str, value: Callable[[Status], float]) -> Metric:
    return Metric(name, "counter", text, lambda status: [((), value(status))])


def _histogram(name: str, text: str, value: Callable[[Status], Durations]) -> Metric:
    return Metric(name, "histogram", text, lambda status: [((), value(status))])


def _each(value: Callable[[ResourceStatus], float]) -> Callable[[Status], Samples]:
    """The samples of a metric with one value per resource."""
    return lambda status: [((resource.name,), value(resource)) for resource in status.resources]


def _devices(status: Status) -> Samples:
    """The healthy devices of each resource, and the unhealthy ones by reason."""
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
    """The samples of a metric about kernel events; the label ``source`` is the same until a restart."""
    return lambda status: [((status.host.events.source,), value(status))]


METRICS: tuple[Metric, ...] = (
    Metric(
        "nodeagent_build_info",
        "gauge",
        "Always 1; the labels have the version of nodeagent.",
        _build,
        ("version", "python"),
    ),
    _gauge(
        "nodeagent_problems",
        "Problems that need action, as nodeagent status lists them.",
        lambda status: len(status.problems),
    ),
    _gauge(
        "nodeagent_subsystems_failing",
        "Components of the daemon that have failed and wait for their next start.",
        lambda status: sum(text != RUNNING_AGAIN for text in status.subsystems.values()),
    ),
    Metric(
        "nodeagent_devices",
        "gauge",
        "Devices as advertised to the kubelet; unhealthy ones by reason code.",
        _devices,
        ("resource", "health", "reason"),
    ),
    Metric(
        "nodeagent_devices_allocated", "gauge", "Devices that are allocated to pods.", _held, ("resource",)
    ),
    Metric(
        "nodeagent_allocations_total",
        "counter",
        "Allocate requests, one for each container, by result.",
        _allocations,
        ("resource", "result"),
    ),
    _histogram(
        "nodeagent_allocate_duration_seconds",
        "Duration of Allocate requests, including the wait until a former pod has closed the device.",
        lambda status: status.allocating,
    ),
    Metric(
        "nodeagent_resource_registered",
        "gauge",
        "1 if the kubelet has registered the resource; resources by DRA have no value.",
        lambda status: [((each.name,), each.registered) for each in status.of_plugins],
        ("resource",),
    ),
    Metric(
        "nodeagent_registrations_total",
        "counter",
        "Registrations that the kubelet accepted; each kubelet restart requires one more.",
        _each(lambda resource: resource.registrations),
        ("resource",),
    ),
    _gauge(
        "nodeagent_kubelet_present",
        "1 if the kubelet's socket exists and accepts connections.",
        lambda status: status.kubelet.present,
    ),
    _gauge(
        "nodeagent_pod_resources_available",
        "1 if the kubelet has answered the last PodResources request.",
        lambda status: status.kubelet.pod_resources == ANSWERS,
    ),
    _gauge(
        "nodeagent_allocations_known",
        "1 if all allocations of the kubelet are known; while it is 0, no device counts as released.",
        lambda status: status.kubelet.holders_known,
    ),
    Metric(
        "nodeagent_events_total",
        "counter",
        "Events of the host that caused a scan.",
        _by_source(lambda status: status.host.events.events),
        ("source",),
    ),
    Metric(
        "nodeagent_event_losses_total",
        "counter",
        "How often the kernel dropped events; after that the whole host is scanned.",
        _by_source(lambda status: status.host.events.lost),
        ("source",),
    ),
    _counter(
        "nodeagent_foreign_events_total",
        "Messages on the kernel's event socket that were not sent by the kernel; they are ignored.",
        lambda status: status.host.events.foreign,
    ),
    _gauge(
        "nodeagent_unwatched_directories",
        "Directories whose changes are found late because the kernel refuses more inotify watches.",
        lambda status: status.host.events.unwatched,
    ),
    _histogram(
        "nodeagent_scan_duration_seconds",
        "Duration of scans of the whole host or of the devices of an event.",
        lambda status: status.host.scans,
    ),
    _gauge(
        "nodeagent_unreadable_devices",
        "Devices and directories of the host that cannot be read.",
        lambda status: len(status.host.not_readable),
    ),
    _gauge("nodeagent_pci_functions", "PCI functions of the host.", lambda status: status.host.functions),
    Metric(
        "nodeagent_mdevs",
        "gauge",
        "Mediated devices and vGPUs by type id; dead: without a driver; leaving: removed, but still open.",
        _mdevs,
        ("type", "state"),
    ),
    Metric(
        "nodeagent_changes_total",
        "counter",
        "Changes of the host: successful ones, and ones that the kernel refused.",
        _changes,
        ("change", "result"),
    ),
    Metric(
        "nodeagent_changes_waiting",
        "gauge",
        "Changes of the host that are pending, such as the removal of an allocated mdev.",
        _waiting,
        ("change",),
    ),
    _gauge(
        "nodeagent_changes_failing",
        "Changes of the host that the kernel refused and that are retried.",
        lambda status: len(status.changes.failing),
    ),
    _gauge(
        "nodeagent_changes_stuck",
        "Changes of the host for which the write in the kernel has not returned in time.",
        lambda status: len(status.changes.stuck),
    ),
    _gauge(
        "nodeagent_config_generation",
        "Number of configurations loaded since the start.",
        lambda status: status.configuration.generation,
    ),
    _gauge(
        "nodeagent_config_in_force_since_timestamp_seconds",
        "Time at which the active configuration was loaded.",
        lambda status: status.configuration.since,
    ),
    _gauge(
        "nodeagent_config_invalid",
        "1 if the newest configuration is invalid, and an older one is active.",
        lambda status: status.configuration.problem is not None,
    ),
    _counter(
        "nodeagent_config_refusals_total",
        "Configurations that were invalid.",
        lambda status: status.configuration.refused,
    ),
    _gauge(
        "nodeagent_cluster_enabled",
        "1 if nodeagent watches the KubeVirt CR and this Node at the API server.",
        lambda status: status.cluster.enabled,
    ),
    _gauge(
        "nodeagent_cluster_reachable",
        "1 if the API server is reachable and the watches are up to date.",
        lambda status: status.cluster.reachable,
    ),
    _gauge(
        "nodeagent_cluster_since_timestamp_seconds",
        "Time at which nodeagent_cluster_reachable changed last.",
        lambda status: status.cluster.since,
    ),
    _gauge("process_start_time_seconds", "Start time of the process.", lambda status: status.process.started),
    _counter(
        "process_cpu_seconds_total",
        "CPU time of the daemon in seconds, in user and kernel mode.",
        lambda status: status.process.cpu_seconds,
    ),
    _gauge(
        "process_resident_memory_bytes",
        "Resident memory.",
        lambda status: status.process.resident_bytes,
    ),
    _gauge("process_open_fds", "Open file descriptors.", lambda status: status.process.open_files),
    _gauge(
        "process_max_fds",
        "Maximum number of open file descriptors of the daemon.",
        lambda status: status.process.most_files,
    ),
    _gauge("process_threads", "Threads.", lambda status: status.process.threads),
)


def text(status: Status) -> str:
    """The text of all metrics of a Status."""
    return "".join(line for metric in METRICS for line in _lines(metric, status))


def _lines(metric: Metric, status: Status) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"
    for values, value in metric.samples(status):
        labels = tuple(zip(metric.labels, values, strict=True))
        if isinstance(value, Durations):
            yield from _histogram_lines(metric.name, labels, value)
        else:
            yield f"{metric.name}{_labels(labels)} {_number(value)}\n"


def _histogram_lines(name: str, labels: tuple[tuple[str, str], ...], value: Durations) -> Iterator[str]:
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
