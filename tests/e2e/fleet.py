# SPDX-License-Identifier: Apache-2.0
"""A control plane of its own with many nodes, whose cluster sides are one process (``sides``).

Etcd and the API server alone: no controller taints Nodes without a kubelet, and nothing else asks. All
nodes are one service account, as the pods of a DaemonSet are, so fairness takes them for one client.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from nodeagent.base import sockets
from nodeagent.base.timeouts import Timeouts
from tests.e2e import kubevirt, sides, waiting
from tests.e2e.api import Api
from tests.e2e.controlplane import ControlPlane
from tests.e2e.daemon import SOURCE
from tests.e2e.processes import Process
from tests.e2e.sides import Spread
from tests.e2e.test_cluster import RBAC, RULES

_ACCOUNTS = f"/api/v1/namespaces/{kubevirt.NAMESPACE}/serviceaccounts"
_ACCOUNT = {"kind": "ServiceAccount", "name": "nodeagent", "namespace": kubevirt.NAMESPACE}
_DEVICES = 20  # entries of the CR


def node(name: str) -> dict[str, Any]:
    """A Node object of 14 KB: with 40 labels, and with 50 images as the kubelet reports them."""
    image = "registry.example.com/some/where/deep/down/an-image"
    images = [
        {"names": [f"{image}@sha256:{number:064x}", f"{image}:v1.{number}"], "sizeBytes": 123456789}
        for number in range(50)
    ]
    labels = {f"feature.node.kubernetes.io/cpu-{number}": "true" for number in range(40)}
    return {"metadata": {"name": name, "labels": labels}, "status": {"images": images}}


class Fleet:
    """The Nodes, and the process of those that stand for their daemons; files are below ``base``."""

    def __init__(self, base: Path, control: ControlPlane, count: int) -> None:
        self.count, self.name = count, f"{count} nodes"
        self._base, self._control = base, control
        self._process: Process | None = None
        self._places = [base / "nodes" / f"node-{number:04}" for number in range(count)]

    def programs(self) -> dict[str, Process]:
        """What runs now, by the names that figures have."""
        servers = {name: self._control.process(name) for name in ("kube-apiserver", "etcd")}
        return servers | ({} if self._process is None else {self.name: self._process})

    @property
    def api(self) -> Api:
        """The API server."""
        return self._control.api

    def prepare(self) -> None:
        """Make the Nodes, the KubeVirt CR, and who may read them."""
        kubevirt.install(self.api)
        kubevirt.create(self.api, configuration(0))
        certificates = self._control.certificates
        kubeconfig = certificates.kubeconfig("nodeagent", self._control.url, self._token())
        for place in self._places:
            self.api.create("/api/v1/nodes", node(place.name))
            (place / "etc").mkdir(parents=True)
            (place / "etc/kubeconfig").symlink_to(kubeconfig)

    def _token(self) -> str:
        """That of a service account with the rights of the chart."""
        self.api.create(_ACCOUNTS, {"metadata": {"name": _ACCOUNT["name"]}})
        name = {"name": "nodeagent"}
        reference = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", **name}
        self.api.create(f"{RBAC}/clusterroles", {"metadata": name, "rules": RULES})
        binding = {"metadata": name, "subjects": [_ACCOUNT], "roleRef": reference}
        self.api.create(f"{RBAC}/clusterrolebindings", binding)
        request = {"spec": {"expirationSeconds": 7200}}
        return str(self.api.create(f"{_ACCOUNTS}/{_ACCOUNT['name']}/token", request)["status"]["token"])

    def start(self) -> float:
        """Start them all at once; returns when each is answered: the moment of the start, since 1970."""
        self._socket.unlink(missing_ok=True)  # of the process before
        began = time.time()
        argv = [sys.executable, "-P", "-m", "tests.e2e.sides", str(self._base / "nodes")]
        self._process = Process(argv, self._base / "sides.log", {"PYTHONPATH": str(SOURCE.parent)})
        waiting.until(self._all_heard, f"{self.count} nodes are answered", 60.0)
        return began

    def _all_heard(self) -> bool:
        if self._process is None or not self._process.running:
            raise RuntimeError("the nodes have ended" if self._process is None else self._process.tail())
        return len(self.heard()) == self.count

    def stop(self) -> None:
        """End them."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def heard(self) -> list[float]:
        """Since when each is answered that is, in seconds since 1970, in order."""
        return sorted(self._told()["heard"])

    def edit(self, number: int) -> float:
        """Edit the CR; the moment before."""
        began = time.monotonic()
        self.api.patch(f"{kubevirt.OBJECTS}/kubevirt", {"spec": {"configuration": configuration(number)}})
        return began

    def all_have(self, number: int) -> Spread:
        """Wait until that edit is in force on all nodes; when it was."""

        def found() -> Spread | None:
            spread = self.reached(number)
            return spread if spread is not None and spread.nodes == self.count else None

        return waiting.until(found, f"edit {number} is in force on all nodes", 30.0)

    def reached(self, number: int) -> Spread | None:
        """How far that edit has come; None: nowhere yet."""
        found = self._told()["edits"].get(f"{sides.EDIT}{number}")
        return None if found is None else Spread(*found)

    @property
    def _socket(self) -> Path:
        return self._base / "nodes" / sides.SOCKET

    def _told(self) -> Any:
        try:
            return sockets.ask(str(self._socket), "/", Timeouts().local_socket_answer)
        except ValueError as error:  # it has ended in the middle of its answer
            raise OSError(str(error)) from error


def configuration(edit: int) -> dict[str, Any]:
    """20 devices of a CR, the first under a name that has the number of the edit."""
    names = [f"{sides.EDIT}{edit}", *(f"nvidia.com/gpu{number}" for number in range(1, _DEVICES))]
    entries = [
        {"pciVendorSelector": f"10DE:{number:04X}", "resourceName": name, "externalResourceProvider": True}
        for number, name in enumerate(names)
    ]
    return {"permittedHostDevices": {"pciHostDevices": entries}}
