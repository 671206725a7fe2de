# SPDX-License-Identifier: Apache-2.0
"""What the daemon tells about itself: one plain document, for ``nodeagent status`` and for programs."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from nodeagent import __version__
from nodeagent.agent.config_loop import ConfigLoop
from nodeagent.agent.deviceplugins import DevicePlugins
from nodeagent.agent.holders import HoldersLoop
from nodeagent.agent.observe import Observer
from nodeagent.agent.offering import Offering
from nodeagent.base.supervise import Supervisor
from nodeagent.base.watching import Watcher
from nodeagent.kernel.root import Root
from nodeagent.kubelet.deviceplugin.endpoint import Endpoint
from nodeagent.kubelet.deviceplugin.socketdir import SocketDir
from nodeagent.model.plan import ChangesStatus, FailingStatus
from nodeagent.model.resource import Device, Resource

if TYPE_CHECKING:
    from nodeagent.agent.changing.feature import Changing


_NAMED = 5  # directories that one problem names


class Parts(Protocol):
    """The parts of the daemon that have something to tell."""

    began: float
    root: Root
    supervisor: Supervisor
    watcher: Watcher
    desire: ConfigLoop
    directory: SocketDir
    observe: Observer
    allocations: HoldersLoop
    reconcile: Offering
    plugins: DevicePlugins
    changes: Changing | None


def document(agent: Parts) -> dict[str, Any]:
    """Everything at this moment; ``problems`` holds a line for each thing that needs a person."""
    endpoints = agent.plugins.endpoints
    resources = agent.reconcile.resources.get()
    told = [_resource(resource, endpoints.get(name)) for name, resource in resources.items()]
    return {
        "version": __version__,
        "pid": os.getpid(),
        "uptimeSeconds": round(time.monotonic() - agent.began, 1),
        "root": agent.root.prefix,
        "kubelet": _kubelet(agent),
        "host": _host(agent),
        "resources": told,
        "changes": _changes(_of(agent.changes)),
        "holders": {
            device_id: {"pod": str(holder), "resource": holder.resource}
            for device_id, holder in agent.allocations.cell.get().holders.items()
        },
        "subsystems": {name: text or "running again" for name, text in agent.supervisor.failures.items()},
        "problems": _problems(agent, told),
    }


def _kubelet(agent: Parts) -> dict[str, Any]:
    return {
        "socket": agent.directory.kubelet_path,
        "present": agent.directory.kubelet.get() is not None,
        "podResources": agent.allocations.error or "answers",
        "holdersKnown": agent.allocations.cell.get().complete,
    }


def _host(agent: Parts) -> dict[str, Any]:
    host = agent.observe.host.get()
    return {
        "functions": len(host.functions),
        "groups": len(host.groups),
        "mdevs": len(host.mdevs),
        "iommu": host.iommu,
        "notReadable": list(agent.observe.stuck),
        "events": dataclasses.asdict(agent.observe.statistics),
    }


def _resource(resource: Resource, endpoint: Endpoint | None) -> dict[str, Any]:
    standing = endpoint.standing if endpoint else None
    return {
        "name": resource.name,
        "devices": [_device(device) for device in resource.devices],
        "healthy": sum(device.healthy for device in resource.devices),
        "registered": bool(standing and standing.registered),
        "registrations": standing.registrations if standing else 0,
        "error": standing.last_error if standing else None,
    }


def _of(changes: Changing | None) -> ChangesStatus:
    return ChangesStatus() if changes is None else changes.loop.status()


def _changes(changes: ChangesStatus) -> dict[str, Any]:
    """What is made of the host: each card's type, what waits and what for, what the kernel refuses."""
    return {
        "cards": [dataclasses.asdict(card) for card in changes.cards],
        "underWay": list(changes.under_way),
        "waiting": [dataclasses.asdict(waiting) for waiting in changes.waiting],
        "failing": [_failing(failing) for failing in changes.failing],
        "problems": list(changes.problems),
        "writes": changes.writes,
    }


def _failing(failing: FailingStatus) -> dict[str, Any]:
    plain = dataclasses.asdict(failing)
    return plain | {"nextTrySeconds": plain.pop("next_try_seconds")}


def _device(device: Device) -> dict[str, Any]:
    told: dict[str, Any] = {"id": device.id, "healthy": device.healthy, "numa": device.numa}
    if device.reason is not None:
        told |= {"reason": device.reason.code, "what": device.reason.what, "hint": device.reason.hint}
    return told


def _problems(agent: Parts, resources: Sequence[Mapping[str, Any]]) -> list[str]:
    problems = [f"{name}: {text}" for name, text in agent.supervisor.failures.items() if text]
    if agent.desire.error:
        problems.append(f"the new configuration is not in force: {agent.desire.error.splitlines()[0]}")
    if agent.allocations.error:
        problems.append(f"who holds what is not known: {agent.allocations.error}")
    if unwatched := agent.watcher.unwatched:
        problems.append(
            f"changes are seen late, or not at all, in {', '.join(unwatched[:_NAMED])}"
            f"{' and others' if unwatched[_NAMED:] else ''}: the kernel gives no more watches; raise the "
            "kernel setting fs.inotify.max_user_watches"
        )
    problems += agent.plugins.problems
    problems += _of_changes(_of(agent.changes))
    if agent.directory.kubelet.get() is None:
        problems.append(f"the kubelet is away: no {agent.directory.kubelet_path}")
    for resource in resources:
        if resource["error"]:
            problems.append(f"{resource['name']}: not registered: {resource['error']}")
        problems += [
            f"{resource['name']}: {device['id']} is Unhealthy: {device['what']}"
            for device in resource["devices"]
            if not device["healthy"]
        ]
    return problems


def _of_changes(changes: ChangesStatus) -> list[str]:
    """What the kernel refuses, what it does not answer, and what cannot be meant."""
    late = (f"the kernel does not answer: {action}" for action in changes.late)
    first = {(each.card, each.type): f"{each.card}: {each.what}" for each in reversed(changes.failing)}
    return [*changes.problems, *late, *reversed(first.values())]
