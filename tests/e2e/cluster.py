# SPDX-License-Identifier: Apache-2.0
"""The whole cluster below one temporary directory: namespace, containerd, control plane and kubelet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e import node
from tests.e2e.api import Api
from tests.e2e.certificates import Certificates
from tests.e2e.controlplane import GATES, ControlPlane
from tests.e2e.namespace import Namespace, host_unchanged
from tests.e2e.node import Kubelet
from tests.e2e.runtime import Containerd

NODE = f"/api/v1/nodes/{node.NAME}"


@dataclass(frozen=True)
class Cluster:
    """What the tests use of a running cluster. ``host`` is the root directory of the simulated host."""

    base: Path
    control: ControlPlane
    kubelet: Kubelet
    runtime: Containerd

    @property
    def api(self) -> Api:
        """The API server."""
        return self.control.api

    @property
    def host(self) -> Path:
        """What the daemon gets as ``--root``."""
        return self.base / "host"

    def counts(self, resource: str) -> tuple[int, int] | None:
        """Capacity and allocatable of a resource on the Node; None if the Node does not know it."""
        status = self.api.get(NODE)["status"]
        if resource not in status["capacity"]:
            return None
        return int(status["capacity"][resource]), int(status["allocatable"][resource])

    def await_counts(self, resource: str, capacity: int, allocatable: int, seconds: float = 20.0) -> None:
        """Wait until the Node shows these numbers."""

        def same(found: Any) -> bool:
            status = found["status"]
            shown = [status[key].get(resource) for key in ("capacity", "allocatable")]
            return shown == [str(capacity), str(allocatable)]

        self.api.until(NODE, same, f"the Node shows {resource} {capacity}/{allocatable}", seconds)


@contextlib.contextmanager
def running(
    programs: Mapping[str, Path],
    launcher: Path,
    runtime: Path | None = None,
    gates: Mapping[str, bool] = GATES,
) -> Iterator[Cluster]:
    """A cluster whose Node is Ready; everything is stopped and removed at the end.

    ``programs`` are the built ones of Kubernetes by name; ``runtime`` is the directory of another containerd
    than the installed one; ``gates`` are the feature gates of all programs.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(host_unchanged())
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nodeagent-e2e-")))
        certificates = Certificates(base / "pki")
        namespace = Namespace(base)
        stack.callback(namespace.close)
        containerd = Containerd(namespace, launcher, runtime)
        stack.callback(containerd.close)
        containerd.start()
        control = ControlPlane(base, programs, certificates, gates)
        stack.callback(control.close)
        control.start()
        kubelet = Kubelet(programs["kubelet"], namespace, containerd.socket, certificates, control.url, gates)
        stack.callback(kubelet.stop)
        kubelet.start()
        kubelet.await_ready()
        control.api.until(NODE, _usable, "the Node is Ready and has no taints", 60.0)
        yield Cluster(base, control, kubelet, containerd)


def _usable(found: Any) -> bool:
    conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and not found["spec"].get("taints")
