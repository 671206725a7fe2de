# SPDX-License-Identifier: Apache-2.0
"""Finds the problems and notes of a Status, each with its hint. Pure.

``agent.reporting.status`` puts the problems and notes into the Status, from which all commands and pages show
them. The problems of the daemon come before those of its devices.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from nodeagent.model.problem import Problem, ProblemCode
from nodeagent.model.resource import waits
from nodeagent.model.status import ANSWERS, RUNNING_AGAIN, DeviceStatus, ResourceStatus, Status
from nodeagent.policy import naming

_KUBELET_LOG = "find the cause in the kubelet's log, on the host: journalctl -u kubelet --since -10min"
_NOT_ASKED = (
    "check that the kubelet runs and that kubelet.podResources names its socket;"
    " until then the devices that were in use last count as in use"
)
_ONE_PLUGIN = (
    "let only one advertise it: set externalResourceProvider: true in the KubeVirt CR if virt-handler does, "
    "else stop the other plugin or rename the resource in one of the two"
)
_SHOWN = 4  # devices in one line
_NAMED = 5  # directories that one problem names
START_KUBELET = (
    "find the cause: systemctl status kubelet (or k3s, rke2-agent, k0sworker, snap.microk8s.daemon-kubelite)"
)
MORE_INSTANCES = "sysctl fs.inotify.max_user_instances=8192, and the same setting in a file in /etc/sysctl.d"
_MORE_WATCHES = "sysctl fs.inotify.max_user_watches=1048576, and the same setting in a file in /etc/sysctl.d"
API_SERVER = (ProblemCode.CLUSTER, "")
"""The key of the problem that the API server gives no valid answer."""


def problems(status: Status) -> Iterator[Problem]:
    """The problems and notes that follow from the Status, and those that the components have reported."""
    yield from _of_daemon(status)
    yield from status.findings
    yield from _of_cluster(status)
    yield from _of_host(status)
    yield from _of_changes(status)
    yield from _of_kubelet(status)
    for resource in status.resources:
        yield from _of_resource(resource, status)


def _of_daemon(status: Status) -> Iterator[Problem]:
    for name, text in status.subsystems.items():
        if text != RUNNING_AGAIN:
            yield _problem(ProblemCode.SUBSYSTEM, name, f"{name}: {text}")
    if (refused := status.configuration.problem) is not None:
        yield refused._replace(message=not_in_force(refused.message))
    if status.http.problem is not None:
        yield status.http.problem


def _of_cluster(status: Status) -> Iterator[Problem]:
    cluster = status.cluster
    if cluster.enabled and cluster.error:
        yield _problem(*API_SERVER, f"no valid answer from the API server: {cluster.error}", cluster.hint)
    for line in cluster.warnings:
        yield _problem(ProblemCode.CLUSTER, line, line)
    yield from cluster.refused
    for line in cluster.write_errors:
        yield _problem(ProblemCode.CLUSTER, line, line)


def _of_host(status: Status) -> Iterator[Problem]:
    error, unread = status.kubelet.pod_resources, status.host.error
    if error != ANSWERS:
        what = f"the devices in use are not known: {error}"
        yield _problem(ProblemCode.POD_RESOURCES, "", what, _NOT_ASKED)
    if unread is not None:
        yield _problem(ProblemCode.HOST_UNREAD, "", f"{unread}: the last scan still counts")


def _of_changes(status: Status) -> Iterator[Problem]:
    """The problems of the plan, of writes from which the kernel has not returned, and of changes that the
    kernel refused, once per card and vGPU type.
    """
    changes = status.changes
    yield from changes.problems
    yield from changes.notes
    for action in changes.stuck:
        yield _problem(ProblemCode.CHANGE, action, f"the kernel does not answer: {action}")
    first = {(failing.card, failing.type): failing for failing in reversed(changes.failing)}
    for failing in reversed(first.values()):
        at = "" if failing.message.startswith(failing.card) else f"{failing.card}: "
        yield _problem(ProblemCode.CHANGE, failing.card, f"{at}{failing.message}", failing.hint)


def _of_kubelet(status: Status) -> Iterator[Problem]:
    if not status.kubelet.present:
        text = f"the kubelet is unreachable: no listener on {status.kubelet.socket}"
        hint = f"{START_KUBELET}; if it is elsewhere, set kubelet.devicePluginDir"
        yield _problem(ProblemCode.NO_KUBELET, "", text, hint)


def describe_other_plugin(resource: ResourceStatus) -> str:
    """The devices that another plugin advertises under this resource name, as a text; "" for none."""
    if not resource.other_plugin_devices:
        return ""
    others = naming.shorten(resource.other_plugin_devices)
    return f"another device plugin registers it: the kubelet lists the devices of that plugin ({others})"


def _of_resource(resource: ResourceStatus, status: Status) -> Iterator[Problem]:
    """The problems of a resource: not registered with the kubelet, or Unhealthy devices that need action."""
    if resource.error:
        yield _problem(
            ProblemCode.NOT_REGISTERED,
            resource.name,
            f"{resource.name}: not registered: {resource.error}",
            _KUBELET_LOG,
        )
    if text := describe_other_plugin(resource):
        yield _problem(ProblemCode.OTHER_PLUGIN, resource.name, f"{resource.name}: {text}", _ONE_PLUGIN)
    for device in resource.devices:
        if device.healthy:
            continue
        holder = status.holders.get(device.id)
        if not waits(device.reason, held=holder is not None and holder.resource == resource.name):
            text = f"{resource.name}: {device.id} is Unhealthy: {device.message}"
            yield _problem(device.reason or "", subject(resource, device), text, device.hint)


def _problem(code: str, subject: str, text: str, hint: str | None = None) -> Problem:
    return Problem(code, subject, text, hint or "", action_required=True)


def subject(resource: ResourceStatus, device: DeviceStatus) -> str:
    """The subject of the problem that reports an Unhealthy device: resource name and device id."""
    return f"{resource.name}/{device.id}"


def not_in_force(error: str) -> str:
    """The message that the newest configuration is invalid, so that an older one stays active."""
    return f"the new configuration is not active: {error}"


def find_unwatched(directories: Sequence[str], *, has_instance: bool) -> Iterator[Problem]:
    """The problem that changes in some directories are seen late, because they have no inotify watch."""
    if not directories:
        return
    if not has_instance:
        what = "changes are found late: the kernel gives no inotify instance (fs.inotify.max_user_instances)"
        yield _problem(ProblemCode.INOTIFY, "", what, MORE_INSTANCES)
        return
    others = " and others" if directories[_NAMED:] else ""
    what = (
        f"changes are found late, or not at all, in {', '.join(directories[:_NAMED])}{others}: "
        "the kernel gives no more watches (fs.inotify.max_user_watches)"
    )
    yield _problem(ProblemCode.INOTIFY, "", what, _MORE_WATCHES)


def combine_devices(status: Status) -> tuple[Problem, ...]:
    """The problems of a Status; devices of one resource with the same Reason are one problem together."""
    listed = {problem.subject for problem in status.found}
    combined: dict[str, str] = {}
    for resource in status.resources:
        for devices in group_by_reason(
            device for device in resource.devices if subject(resource, device) in listed
        ):
            if len(devices) > 1:
                line = f"{resource.name}: {list_ids(devices)} are Unhealthy: {devices[0].message}"
                combined |= {subject(resource, device): line for device in devices}
    found = [
        problem._replace(message=combined.get(problem.subject, problem.message)) for problem in status.found
    ]
    return tuple({problem.message: problem for problem in found}.values())


def list_ids(devices: Iterable[DeviceStatus]) -> str:
    """A list of devices as a text: the first few ids, and the number of the others."""
    return naming.shorten([device.id for device in devices], _SHOWN)


def group_by_reason(devices: Iterable[DeviceStatus]) -> Collection[list[DeviceStatus]]:
    """The Unhealthy devices of one resource; devices with the same message and hint are one group."""
    groups: dict[tuple[str | None, str | None], list[DeviceStatus]] = {}
    for device in devices:
        groups.setdefault((device.message, device.hint), []).append(device)
    return groups.values()
