# SPDX-License-Identifier: Apache-2.0
"""The image in a pod of the real kubelet, as the manifests make it; and what the API server says of them.

Differs from a node of a cluster: the pod is on the host's network, for there is no other here, so it gets
the API server's own address; and its /sys and /dev are the simulated host's.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nodeagent.cluster.credentials import SERVICE_ACCOUNT
from nodeagent.sim.host import SimulatedHost
from tests.e2e import kubevirt, node, waiting
from tests.e2e.api import Answer
from tests.e2e.cluster import Cluster
from tests.e2e.processes import free_port
from tests.e2e.resources import GPU
from tests.facts import names
from tests.image import containers, manifests

IMAGE = "docker.io/library/nodeagent:0.1.0"  # what a short name means to the kubelet
NAMESPACE = "/api/v1/namespaces/nodeagent"
PODS = f"{NAMESPACE}/pods"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
DRA, ADMISSION = "/apis/resource.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
SLICES = f"{DRA}/resourceslices"
PLACES = {
    "ServiceAccount": f"{NAMESPACE}/serviceaccounts",
    "ConfigMap": f"{NAMESPACE}/configmaps",
    "DaemonSet": "/apis/apps/v1/namespaces/nodeagent/daemonsets",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/nodeagent/roles",
    "RoleBinding": f"{RBAC}/namespaces/nodeagent/rolebindings",
    "DeviceClass": f"{DRA}/deviceclasses",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
MADE = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"}  # for all of these tests
AUTHORITY = "authority"
ACCOUNT = [
    {"serviceAccountToken": {"path": "token"}},
    {"configMap": {"name": AUTHORITY, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
]
"""As the admission plugin ServiceAccount would mount it; that is off in this cluster, as is its ConfigMap."""
SERVED = "example.com/served"
PERMITTED = {
    "permittedHostDevices": {
        "pciHostDevices": [
            {"pciVendorSelector": "10DE:1F08", "resourceName": SERVED, "externalResourceProvider": True}
        ]
    }
}
FOREIGN = {"SecurityContextConstraints"}


@pytest.fixture(scope="module")
def namespace(running: Cluster) -> None:
    """The namespace of the manifests, with the account that pods run as, and what that may do."""
    made = manifests.static("nodeagent")
    running.api.create("/api/v1/namespaces", manifests.one(made, "Namespace"))
    running.api.create(PLACES["ServiceAccount"], manifests.one(made, "ServiceAccount"))
    role, binding = (manifests.one(made, kind) for kind in ("ClusterRole", "ClusterRoleBinding"))
    for each in (role, binding, {"metadata": binding["roleRef"]}):
        each["metadata"]["name"] = "nodeagent-pods"  # another test has a user of the name nodeagent
    running.api.create(PLACES["ClusterRole"], role)
    running.api.create(PLACES["ClusterRoleBinding"], binding)
    trust(running)


@pytest.fixture(scope="module")
def image(running: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The image, in the node's runtime."""
    built = containers.build(tmp_path_factory.mktemp("image"), IMAGE)
    running.runtime.load(built.archive)
    yield
    containers.podman("image", "rm", "--force", IMAGE)


def fill_dev(directory: Path) -> None:
    """What runtimes expect in the /dev of a container: the simulated host's has nothing of it."""
    (directory / "shm").mkdir(exist_ok=True)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        if not (directory / name).exists():
            os.mknod(directory / name, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)


def pod_of(running: Cluster, name: str, listen: str) -> Any:
    """The DaemonSet's pod for this machine."""
    fill_dev(Path(f"{running.host}/dev"))
    spec = manifests.pod(manifests.static(name))
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"]
    spec["volumes"].append({"name": "account", "projected": {"sources": ACCOUNT}})
    container["volumeMounts"].append({"name": "account", "mountPath": str(SERVICE_ACCOUNT)})
    server = urlsplit(running.control.url)
    container["env"] += [
        {"name": "KUBERNETES_SERVICE_HOST", "value": str(server.hostname)},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(server.port)},
    ]
    for volume in spec["volumes"]:
        if volume["name"] in ("sys", "dev", "state", "cdi"):
            volume["hostPath"]["path"] = f"{running.host}{volume['hostPath']['path']}"
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


def trust(running: Cluster) -> None:
    """Say whom a pod has to trust; the controller manager's own kube-root-ca.crt is empty here."""
    authority = Path(running.control.certificates.path("ca.crt")).read_text()
    body = {"metadata": {"name": AUTHORITY}, "data": {"ca.crt": authority}}
    if running.api.gone(f"{PLACES['ConfigMap']}/{AUTHORITY}"):
        running.api.create(PLACES["ConfigMap"], body)


def create(running: Cluster, name: str, spec: Any) -> None:
    running.api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def ready(pod: Any) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True"


@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("name", manifests.STATIC)
def test_the_api_server_takes_every_manifest(running: Cluster, name: str) -> None:
    sent = [each for each in manifests.static(name) if each["kind"] not in MADE | FOREIGN]
    for manifest in sent:
        query = "?dryRun=All&fieldValidation=Strict"
        assert running.api.ask("POST", PLACES[manifest["kind"]] + query, manifest)
    assert {"DaemonSet", "ConfigMap"} <= {each["kind"] for each in sent}


STRICT = "?dryRun=All&fieldValidation=Strict"


def test_the_api_server_takes_the_classes_of_the_chart(running: Cluster) -> None:
    rule = {"name": "nvidia.com/TU104GL_TESLA_T4", "via": "dra", "pci": [{"devices": ["1eb8"]}]}
    (made,) = (each for each in manifests.helm(config={"resources": [rule]}) if each["kind"] == "DeviceClass")
    stored = json.loads(running.api.ask("POST", PLACES["DeviceClass"] + STRICT, made))
    assert stored["spec"]["extendedResourceName"] == rule["name"]


def slice_of(node_name: str, driver: str = "nodeagent.local", name: str = "") -> Any:
    pool = {"name": f"{driver}/{node_name}", "generation": 1, "resourceSliceCount": 1}
    metadata = {"name": name} if name else {"generateName": "it-"}
    return {"metadata": metadata, "spec": {"driver": driver, "nodeName": node_name, "pool": pool}}


def as_pod_on(node_name: str) -> dict[str, str]:
    """The headers for a request of nodeagent's pod on that node."""
    headers = {"Impersonate-User": "system:serviceaccount:nodeagent:nodeagent"}
    extra = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"
    return headers | ({extra: node_name} if node_name else {})


@pytest.fixture
def policy(running: Cluster) -> Iterator[None]:
    """The rights and the policy of the static manifest for DRA."""
    kinds = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy")
    made = [
        manifests.one(manifests.static("nodeagent-dra"), kind)
        for kind in (*kinds, "ValidatingAdmissionPolicyBinding")
    ]
    for each in made:
        if each["kind"].startswith("Cluster"):
            each["metadata"]["name"] = "nodeagent-dra"
    made[1]["roleRef"]["name"] = "nodeagent-dra"
    for each in made:
        running.api.create(PLACES[each["kind"]], each)
    yield
    for each in made:
        running.api.delete(f"{PLACES[each['kind']]}/{each['metadata']['name']}")


def refused(running: Cluster, method: str, path: str, body: object, node_name: str) -> bool:
    """True if the policy refuses the request of nodeagent's pod on that node."""
    try:
        running.api.ask(method, path, body, headers=as_pod_on(node_name))
    except Answer as answer:
        return "ValidatingAdmissionPolicy" in str(answer)
    return False


@pytest.mark.usefixtures("namespace", "policy")
def test_a_pod_can_write_slices_of_its_own_node_and_driver_only(running: Cluster) -> None:
    create = partial(refused, running, "POST", SLICES + STRICT)
    waiting.until(lambda: create(slice_of("other"), "here"), "the policy is in force")
    assert create(slice_of("here"), ""), "a user without a node"
    assert create(slice_of("here", "other.example.com"), "here")
    assert not create(slice_of("here"), "here")
    running.api.create(SLICES, slice_of("other", name="it-other"))
    try:
        path = f"{SLICES}/it-other"
        assert refused(running, "DELETE", path + "?dryRun=All", None, "here")
        assert not refused(running, "DELETE", path + "?dryRun=All", None, "other")
    finally:
        running.api.delete(f"{SLICES}/it-other")


@contextmanager
def deployed(running: Cluster, host: SimulatedHost, name: str, config: str = "") -> Iterator[None]:
    """The first pod of the static file, perhaps with another config.yaml, ready; no pod after the block."""
    os.makedirs(host.path("/sys/fs/cgroup"))  # mounted on by the runtime
    settings = manifests.one(manifests.static(name), "ConfigMap")
    settings["metadata"]["name"] = "nodeagent-config"
    if config:
        settings["data"]["config.yaml"] = config
    running.api.create(PLACES["ConfigMap"], settings)
    create(running, "first", pod_of(running, name, f"127.0.0.1:{free_port()}"))
    try:
        running.api.until(f"{PODS}/first", ready, "the pod is ready", 60.0)
        yield
    finally:
        for pod in running.api.get(PODS)["items"]:
            running.api.delete(f"{PODS}/{pod['metadata']['name']}")
        running.api.delete(f"{PLACES['ConfigMap']}/nodeagent-config")
        running.api.until(PODS, lambda found: not found["items"], "the pods have gone", 60.0)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("namespace", "image")
@pytest.mark.parametrize("name", ["nodeagent", "nodeagent-vgpu"])
def test_a_pod_offers_the_devices_of_its_node(running: Cluster, host: SimulatedHost, name: str) -> None:
    with deployed(running, host, name):
        running.await_counts(GPU, 4, 4)
        create(running, "second", pod_of(running, name, "") | {"restartPolicy": "Never"})
        ended = running.api.until(
            f"{PODS}/second",
            lambda pod: pod["status"]["phase"] == "Failed" and pod,
            "the second one ends",
            60.0,
        )
        (status,) = ended["status"]["containerStatuses"]
        assert status["state"]["terminated"]["exitCode"] == 1
        told = status["state"]["terminated"]["message"]
        names(told, "/var/lib/kubelet/device-plugins", f"pod {os.uname().nodename}", "DaemonSet")
        assert ready(running.api.get(f"{PODS}/first"))


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("namespace", "image")
def test_a_pod_follows_the_kubevirt_cr_as_its_service_account(running: Cluster, host: SimulatedHost) -> None:
    kubevirt.install(running.api)
    with deployed(running, host, "nodeagent"):
        kubevirt.create(running.api, PERMITTED)
        try:
            running.await_counts(SERVED, 4, 4)
        finally:
            kubevirt.delete(running.api)
