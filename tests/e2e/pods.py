# SPDX-License-Identifier: Apache-2.0
"""Pods of our image: made, waited for, read, deleted. What a container was given is read inside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e import image, node, waiting
from tests.e2e.api import Api

PODS = "/api/v1/namespaces/default/pods"
EVENTS = "/api/v1/namespaces/default/events"
# The environment is read from /proc, for a shell drops names with a hyphen. A trap makes the stop quick.
_TELL = "tr '\\0' '\\n' </proc/1/environ; ls -d /dev/vfio/* 2>/dev/null; echo ready"
STAY = "trap 'exit 0' TERM; sleep 100000 & wait"
LINGER = "trap '' TERM; sleep 100000 & wait"  # until it is killed, at the end of the grace period
# By these a process of a container says whose it is, also when nobody else knows that pod any more.
_IDENTITY = {"E2E_POD": "metadata.name", "E2E_UID": "metadata.uid"}

Limits = Mapping[str, int]


def container(name: str, limits: Limits, *commands: str, then: str = STAY) -> dict[str, Any]:
    """A container that runs the commands, tells what it was given, and stays (or does something else)."""
    script = "\n".join((*commands, _TELL, then))
    return {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in _IDENTITY.items()
        ],
        "resources": {"limits": {resource: str(count) for resource, count in limits.items()}},
    }


def manifest(
    name: str,
    *containers: Mapping[str, Any],
    init: tuple[Mapping[str, Any], ...] = (),
    restart: str = "Never",
) -> Any:
    """A pod on the host's network, which needs no CNI."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": restart,
            "initContainers": list(init),
            "containers": list(containers),
        },
    }


def bound(pod: Any) -> Any:
    """The pod without the scheduler: the kubelet has it at once, whatever the Node's counts say."""
    return {**pod, "spec": {**pod["spec"], "nodeName": node.NAME}}


@dataclass(frozen=True)
class Given:
    """What one container found: its environment, the nodes below /dev/vfio, and other lines."""

    env: Mapping[str, str]
    nodes: frozenset[str]
    text: str


class Pods:
    """The pods of one test; ``close`` deletes them all."""

    def __init__(self, api: Api, logs: Path) -> None:
        self._api = api
        self._logs = logs
        self.patience = 30.0  # seconds for the start of a container
        self._names: list[str] = []

    def start(self, name: str, limits: Limits, *commands: str) -> None:
        """Make a pod with one container, ``main``."""
        self.create(manifest(name, container("main", limits, *commands)))

    def create(self, pod: Any) -> None:
        """Make a pod."""
        self._names.append(pod["metadata"]["name"])
        self._api.create(PODS, pod)

    def get(self, name: str) -> Any:
        """The pod object."""
        return self._api.get(f"{PODS}/{name}")

    def run(self, name: str, limits: Limits, *commands: str) -> Given:
        """Make a pod with one container, wait until it has told what it was given."""
        self.start(name, limits, *commands)
        return self.given(name)

    def given(self, name: str, container_name: str = "main", start: int = 0) -> Given:
        """What a container was given at that start of it, counted from 0, once it says so."""
        what = f"{name}/{container_name} runs"
        try:
            text = waiting.until(lambda: self._told(name, container_name, start), what, self.patience)
        except AssertionError as error:
            raise AssertionError(f"{error}; events: {self._events(name)}") from error
        lines = text.splitlines()
        nodes = frozenset(line for line in lines if line.startswith("/dev/vfio/"))
        return Given(dict(line.split("=", 1) for line in lines if "=" in line), nodes, text)

    def _events(self, name: str) -> list[str]:
        """The messages of the pod's Events."""
        uid = self.get(name)["metadata"]["uid"]
        found = self._api.get(f"{EVENTS}?fieldSelector=involvedObject.uid%3D{uid}")
        return [str(event["message"]) for event in found["items"]]

    def _told(self, name: str, container_name: str, start: int) -> str | None:
        pod = self.get(name)
        if pod["status"]["phase"] == "Failed":
            raise AssertionError(f"{name} failed: {pod['status'].get('message')}")
        directory = self._logs / f"default_{name}_{pod['metadata']['uid']}" / container_name
        log = directory / f"{start}.log"
        lines = (line.split(" ", 3) for line in log.read_text().splitlines())
        # What goes to stderr is written by another task of containerd, and may come after the last line.
        text = "\n".join(words[3] for words in lines if words[1] == "stdout")
        return text if text.endswith("ready") else None

    def await_phase(self, name: str, phase: str, seconds: float = 20.0) -> Any:
        """The pod's status, once it is in that phase."""

        def reached(pod: Any) -> Any:
            return pod["status"] if pod["status"]["phase"] == phase else None

        return self._api.until(f"{PODS}/{name}", reached, f"{name} is {phase}", seconds)

    def started_at(self, name: str) -> str:
        """Id and start time of the running container ``main``: others after a restart."""
        (status,) = self.await_phase(name, "Running")["containerStatuses"]
        return f"{status['containerID']} {status['restartCount']} {status['state']['running']['startedAt']}"

    def delete(self, *names: str) -> None:
        """Delete pods and wait until they have gone."""
        for name in names:
            if not self._api.gone(f"{PODS}/{name}"):
                self._api.delete(f"{PODS}/{name}")
        for name in names:
            path = f"{PODS}/{name}"
            waiting.until(partial(self._api.gone, path), f"pod {name} has gone", 30.0)
            self._names.remove(name)

    def force(self, name: str) -> None:
        """Delete a pod by force: it is forgotten at once, and its containers end when they end."""
        self._api.delete(f"{PODS}/{name}", grace=0)
        self._names.remove(name)

    def close(self) -> None:
        """Delete all pods that are left."""
        self.delete(*self._names)
