# SPDX-License-Identifier: Apache-2.0
"""etcd, API server, controller manager and scheduler on loopback ports."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.e2e import processes, waiting
from tests.e2e.api import Answer, Api
from tests.e2e.certificates import Certificates
from tests.e2e.processes import Process

_OFF_BEFORE_1_36 = (
    "ResourceHealthStatus",  # KEP-4680
    "DRADeviceTaints",  # KEP-5055
    "DRAExtendedResource",  # KEP-5004
    "DRAPartitionableDevices",  # KEP-4815
)
GATES: Mapping[str, bool] = dict.fromkeys(_OFF_BEFORE_1_36, True)


class ControlPlane:
    """The control plane; ``api`` talks to it as an administrator."""

    def __init__(
        self,
        base: Path,
        programs: Mapping[str, Path],
        certificates: Certificates,
        gates: Mapping[str, bool] = GATES,
    ) -> None:
        for name, subject in (
            ("apiserver", "/CN=kube-apiserver"),
            ("admin", "/O=system:masters/CN=admin"),
        ):
            certificates.sign(name, subject)
        self._base, self._programs, self.certificates = base, programs, certificates
        self._gates = f"--feature-gates={','.join(f'{gate}={on}' for gate, on in gates.items())}"
        self._processes: list[Process] = []
        port = processes.free_port()
        self.url = f"https://127.0.0.1:{port}"
        self.api = Api(port, certificates)
        self._port = port

    def serve(self) -> None:
        """Start etcd and the API server; returns when that is ready."""
        self._start("kube-apiserver", *self._apiserver(self._start_etcd(), self._port))
        waiting.until(self._ready, "the API server is ready", 60.0)

    def start(self) -> None:
        """Start all programs; returns when the API server is ready."""
        self.serve()
        client = f"--kubeconfig={self.certificates.kubeconfig('admin', self.url)}"
        for name in ("kube-controller-manager", "kube-scheduler"):
            secure = f"--secure-port={processes.free_port()}"
            self._start(name, client, secure, self._gates, "--leader-elect=false", "--bind-address=127.0.0.1")

    def _start(self, name: str, *argv: str) -> None:
        log = self._base / f"{name}.log"
        self._processes.append(Process([str(self._programs[name]), *argv], log))

    def _start_etcd(self) -> str:
        client, peer = (f"http://127.0.0.1:{processes.free_port()}" for _ in range(2))
        self._start(
            "etcd",
            f"--data-dir={self._base}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        return client

    def _apiserver(self, etcd: str, port: int) -> list[str]:
        path = self.certificates.path
        return [
            f"--etcd-servers={etcd}",
            f"--secure-port={port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--tls-cert-file={path('apiserver.crt')}",
            f"--tls-private-key-file={path('apiserver.key')}",
            f"--client-ca-file={path('ca.crt')}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={path('ca.crt')}",
            f"--service-account-signing-key-file={path('ca.key')}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--disable-admission-plugins=ServiceAccount",
            self._gates,
        ]

    def _ready(self) -> bool:
        for process in self._processes:
            if not process.running:
                raise RuntimeError(f"{process.log.name}:\n{process.tail()}")
        try:
            return self.api.ask("GET", "/readyz") == "ok"
        except Answer:
            return False

    def process(self, name: str) -> Process:
        """The program of that name, which has been started."""
        (found,) = (process for process in self._processes if process.log.stem == name)
        return found

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """The API server stands still: whoever asks it gets no answer."""
        server = self.process("kube-apiserver")
        server.send(signal.SIGSTOP)
        try:
            yield
        finally:
            server.send(signal.SIGCONT)

    def close(self) -> None:
        """Stop everything, etcd last."""
        for process in reversed(self._processes):
            process.stop()
