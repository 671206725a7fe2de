# SPDX-License-Identifier: Apache-2.0
"""The image in a pod of the real kubelet, as the manifests make it; and what the API server says of them.

Differs from a node of a cluster: the pod is on the host's network, for there is no other here, and its /sys
and /dev/vfio are the simulated host's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import node
from tests.e2e.cluster import Cluster
from tests.e2e.processes import free_port
from tests.e2e.resources import GPU
from tests.image import containers, manifests

IMAGE = "docker.io/library/nodeagent:0.1.0"  # what a short name means to the kubelet
NAMESPACE = "/api/v1/namespaces/nodeagent"
PODS = f"{NAMESPACE}/pods"
PLACES = {
    "ServiceAccount": f"{NAMESPACE}/serviceaccounts",
    "ConfigMap": f"{NAMESPACE}/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/nodeagent/daemonsets",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/nodeagent/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/nodeagent/rolebindings",
}
MADE = {"Namespace", "ServiceAccount"}  # for all of these tests
FOREIGN = {"SecurityContextConstraints"}


@pytest.fixture(scope="module")
def namespace(running: Cluster) -> None:
    """The namespace of the manifests, with the account that pods run as."""
    made = manifests.kustomize("base")
    running.api.create("/api/v1/namespaces", manifests.one(made, "Namespace"))
    running.api.create(PLACES["ServiceAccount"], manifests.one(made, "ServiceAccount"))


@pytest.fixture(scope="module")
def image(running: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The image, in the node's runtime."""
    built = containers.build(tmp_path_factory.mktemp("image"), IMAGE)
    running.runtime.load(built.archive)
    yield
    containers.podman("image", "rm", "--force", IMAGE)


def pod_of(overlay: str, host: SimulatedHost, listen: str) -> Any:
    """The DaemonSet's pod for this machine."""
    spec = manifests.pod(manifests.kustomize(overlay))
    (container,) = spec["containers"]
    for volume in spec["volumes"]:
        if volume["name"] in ("sys", "dev"):
            volume["hostPath"]["path"] = host.path(volume["hostPath"]["path"])
    for variable in container["env"]:
        if variable["name"] == "NODEAGENT_HTTP_LISTEN":
            variable["value"] = listen
    port = int(listen.rpartition(":")[2] or 0)
    container["ports"] = [{"name": "http", "containerPort": port}] if port else []
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        container[probe]["httpGet"] |= {"host": "127.0.0.1", "port": port}
        if not port:
            del container[probe]
    return spec | {"hostNetwork": True, "nodeName": node.NAME}


def create(running: Cluster, name: str, spec: Any) -> None:
    running.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def ready(pod: Any) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("overlay", manifests.OVERLAYS)
def test_the_api_server_takes_every_manifest(running: Cluster, overlay: str) -> None:
    sent = [each for each in manifests.kustomize(overlay) if each["kind"] not in MADE | FOREIGN]
    for manifest in sent:
        query = "?dryRun=All&fieldValidation=Strict"
        assert running.api.ask("POST", PLACES[manifest["kind"]] + query, manifest)
    assert {"DaemonSet", "ConfigMap"} <= {each["kind"] for each in sent}


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("namespace", "image")
@pytest.mark.parametrize("overlay", ["base", "overlays/vgpu"])
def test_a_pod_offers_the_devices_of_its_node(running: Cluster, host: SimulatedHost, overlay: str) -> None:
    os.makedirs(host.path("/sys/fs/cgroup"))  # mounted on by the runtime
    settings = manifests.one(manifests.kustomize(overlay), "ConfigMap")
    settings["metadata"]["name"] = "nodeagent-config"
    running.api.create(PLACES["ConfigMap"], settings)
    create(running, "first", pod_of(overlay, host, f"127.0.0.1:{free_port()}"))
    try:
        running.api.until(f"{PODS}/first", ready, "the pod is ready", 60.0)
        running.await_counts(GPU, 4, 4)
        create(running, "second", pod_of(overlay, host, "") | {"restartPolicy": "Never"})
        ended = running.api.until(
            f"{PODS}/second",
            lambda pod: pod["status"]["phase"] == "Failed" and pod,
            "the second one ends",
            60.0,
        )
        (status,) = ended["status"]["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 1
        told = status["state"]["terminated"]["message"]
        assert f"serves /var/lib/kubelet/device-plugins already: pod {os.uname().nodename};" in told
        assert "exclude it from the DaemonSet" in told
        assert ready(running.api.get(f"{PODS}/first"))
    finally:
        for name in ("second", "first"):
            running.api.delete(f"{PODS}/{name}")
        running.api.delete(f"{PLACES['ConfigMap']}/nodeagent-config")
        running.api.until(PODS, lambda found: not found["items"], "the pods have gone", 60.0)
