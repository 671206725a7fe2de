# SPDX-License-Identifier: Apache-2.0
"""The kubelet: started, stopped, killed and started again on the same directories, as on a node.

Its configuration leaves the machine alone as far as a kubelet can: no cgroup hierarchy, no iptables, no
eviction, no garbage collection; and it reports its state twice a second, so that tests need not wait.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from tests import fetching
from tests.e2e import processes, waiting
from tests.e2e.certificates import Certificates
from tests.e2e.controlplane import GATES
from tests.e2e.namespace import Namespace
from tests.e2e.processes import Process

NAME = "node1"
ROOT = "/var/lib/kubelet"
_ALLOCATES = b"Making allocation request for device plugin"  # pkg/kubelet/cm/devicemanager/manager.go
_EVICTION = ("imagefs.available", "imagefs.inodesFree", "nodefs.available", "nodefs.inodesFree")


class Kubelet:
    """The kubelet of the one node. ``pid`` changes with each start."""

    def __init__(
        self,
        program: Path,
        namespace: Namespace,
        runtime: Path,
        certificates: Certificates,
        server: str,
        gates: Mapping[str, bool] = GATES,
    ) -> None:
        certificates.sign("kubelet", f"/O=system:nodes/CN=system:node:{NAME}")
        self._namespace = namespace
        self._health = processes.free_port()
        self.log = namespace.base / "kubelet.log"
        self.directory = namespace.base / "host/var/lib/kubelet"
        self.static = namespace.base / "static"
        self.static.mkdir()
        config = namespace.base / "kubelet.json"
        config.write_text(json.dumps(_config(namespace.base, runtime, self._health, gates)))
        self._argv = (
            str(program),
            f"--config={config}",
            f"--kubeconfig={certificates.kubeconfig('kubelet', server)}",
            f"--hostname-override={NAME}",
            f"--root-dir={ROOT}",
            f"--cert-dir={namespace.base}/kubelet-pki",
            "--v=2",
            # It says when an Allocate is on its way, and which calls a DRA driver gets.
            "--vmodule=manager=4,dra_plugin=4,dra_plugin_manager=4",
        )
        self._process: Process | None = None
        self.started = 0.0

    @property
    def running(self) -> bool:
        """True while it lives."""
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Start it; returns at once. ``started`` is the monotonic time of that."""
        self.started = time.monotonic()
        self._process = self._namespace.start("kubelet", *self._argv)

    def await_ready(self) -> None:
        """Wait until it is healthy and takes registrations."""
        waiting.until(self._healthy, f"the kubelet is healthy; {self.log.name} knows more", 60.0)
        socket = self.directory / "device-plugins/kubelet.sock"
        waiting.until(socket.exists, "kubelet.sock is there")

    def _healthy(self) -> bool:
        if not self.running:
            raise RuntimeError("the kubelet has ended: " + (self._process.tail() if self._process else ""))
        url = f"http://127.0.0.1:{self._health}/healthz"
        return fetching.body(url, 5.0) == "ok"

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop it with a signal; pods go on."""
        if self._process is not None:
            self._process.stop(number)
            self._process = None

    def allocates(self, after: int) -> bool:
        """True if its log says beyond the offset ``after`` that it asks for devices, or is about to."""
        with self.log.open("rb") as log:
            log.seek(after)
            return _ALLOCATES in log.read()


def _config(base: Path, runtime: Path, health: int, gates: Mapping[str, bool]) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": processes.free_port(),
        "readOnlyPort": 0,
        "healthzPort": health,
        "containerRuntimeEndpoint": f"unix://{runtime}",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "evictionHard": dict.fromkeys(_EVICTION, "0%"),
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "nodeStatusUpdateFrequency": "500ms",
        "staticPodPath": str(base / "static"),
        "volumePluginDir": str(base / "volume-plugins"),
        "topologyManagerPolicy": "best-effort",
        "featureGates": dict(gates),
    }
