# SPDX-License-Identifier: Apache-2.0
"""The daemon follows a real API server, and tells it things: KubeVirt's definition, the chart's rights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nodeagent.base import sockets
from nodeagent.sim.host import SimulatedHost
from tests.e2e import kubevirt, waiting
from tests.e2e.cluster import NODE, Cluster
from tests.e2e.daemon import Daemon
from tests.e2e.pods import Pods
from tests.e2e.resources import FIRST, GPU

SERVED, OTHER, LAST = "example.com/served", "example.com/other", "example.com/last"
LABEL = "example.com/zone"
RULES = [
    {"apiGroups": ["kubevirt.io"], "resources": ["kubevirts"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
]
"""Those of the chart: packaging/helm/nodeagent/templates/clusterrole.yaml."""
SETTINGS = {
    "kubeconfig": "/etc/kubeconfig",
    "node": {"name": NODE.rpartition("/")[2]},
    "discovery": {"classes": ["0300"]},
}
EVENTS = "/api/v1/namespaces/{}/events?fieldSelector=involvedObject.uid={},source=nodeagent"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def permitted(resource: str, *, external: bool = True) -> dict[str, Any]:
    """The RTX 2060 of the node under this name."""
    entry = {"pciVendorSelector": "10DE:1F08", "resourceName": resource, "externalResourceProvider": external}
    return {"permittedHostDevices": {"pciHostDevices": [entry]}}


@pytest.fixture
def follower(running: Cluster, daemon: Daemon) -> Iterator[Daemon]:
    """The daemon, with the rights that the chart gives and no others, not started yet."""
    kubevirt.install(running.api)
    certificates = running.control.certificates
    certificates.sign("nodeagent", "/CN=nodeagent")
    role = {"metadata": {"name": "nodeagent"}, "rules": RULES}
    user = {"kind": "User", "name": "nodeagent", "apiGroup": "rbac.authorization.k8s.io"}
    reference = {"kind": "ClusterRole", "name": "nodeagent", "apiGroup": "rbac.authorization.k8s.io"}
    binding = {"metadata": {"name": "nodeagent"}, "subjects": [user], "roleRef": reference}
    for plural, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        if running.api.gone(f"{RBAC}/{plural}/nodeagent"):
            running.api.create(f"{RBAC}/{plural}", body)
    kubeconfig = Path(certificates.kubeconfig("nodeagent", running.control.url))
    (running.host / "var/lib/nodeagent/last.json").unlink(missing_ok=True)  # of the test before
    (running.host / "etc").mkdir(exist_ok=True)
    (running.host / "etc/kubeconfig").write_bytes(kubeconfig.read_bytes())
    daemon.configure(SETTINGS)
    yield daemon
    if not running.api.gone(f"{kubevirt.OBJECTS}/kubevirt"):
        kubevirt.delete(running.api)


def configure(running: Cluster, configuration: Mapping[str, Any]) -> float:
    """Give the CR this configuration; when that was done."""
    running.api.patch(f"{kubevirt.OBJECTS}/kubevirt", {"spec": {"configuration": configuration}})
    return time.monotonic()


def heard(daemon: Daemon, key: str) -> Any:
    """What is told of the cluster; None for what is not worth telling."""
    return daemon.status().get("cluster", {}).get(key)


def labelled(daemon: Daemon, value: str | None) -> bool:
    """True if the label of the Node is known to decisions with this value."""
    basis = sockets.ask(f"{daemon.host}/run/nodeagent/status.sock", "/snapshot", 5.0)
    return dict(basis["snapshot"]["spec"].get("labels", ())).get(LABEL) == value


def devices(daemon: Daemon, resource: str) -> int:
    """How many devices the resource has; none if it is not served."""
    return sum(len(each["devices"]) for each in daemon.status()["resources"] if each["name"] == resource)


def served(daemon: Daemon, resource: str) -> bool:
    """True if the resource is registered, with all four GPUs."""
    found = [each for each in daemon.status()["resources"] if each["name"] == resource]
    return bool(found) and bool(found[0]["registered"]) and len(found[0]["devices"]) == 4


def test_an_edit_of_the_cr_reaches_the_node_within_a_second(running: Cluster, follower: Daemon) -> None:
    follower.start()
    running.await_counts(GPU, 4, 4)
    kubevirt.create(running.api, permitted(SERVED))
    running.await_counts(SERVED, 4, 4)
    assert heard(follower, "kubevirt") == "kubevirt/kubevirt"
    took = []
    for resource in (OTHER, SERVED, OTHER):
        edited = configure(running, permitted(resource))
        waiting.until(partial(served, follower, resource), f"{resource} is served")
        took.append(time.monotonic() - edited)
    print(f"\nCR edit to registered: {', '.join(f'{each * 1000:.0f} ms' for each in took)}")
    assert sorted(took)[1] < 1
    kubevirt.delete(running.api)
    waiting.until(lambda: bool(heard(follower, "warnings")), "the deletion is told")
    running.await_counts(OTHER, 4, 4)


def test_a_cr_that_comes_again_and_a_label_of_the_node_are_followed_within_a_second(
    running: Cluster, follower: Daemon
) -> None:
    kubevirt.create(running.api, permitted(SERVED))
    follower.start()
    running.await_counts(SERVED, 4, 4)
    took = {}
    began = time.monotonic()
    kubevirt.delete(running.api)
    waiting.until(lambda: bool(heard(follower, "warnings")), "the deletion is told")
    took["deletion"] = time.monotonic() - began
    began = time.monotonic()
    kubevirt.create(running.api, permitted(OTHER))
    waiting.until(partial(served, follower, OTHER), "the new CR is in force")
    took["new CR"] = time.monotonic() - began
    assert heard(follower, "warnings") is None
    for value in ("edge", None):
        began = time.monotonic()
        running.api.patch(NODE, {"metadata": {"labels": {LABEL: value}}})
        waiting.until(partial(labelled, follower, value), f"the label is {value}")
        took[f"label {value}"] = time.monotonic() - began
    print("\n" + ", ".join(f"{what} {seconds * 1000:.0f} ms" for what, seconds in took.items()))
    assert max(took.values()) < 1


def test_many_edits_in_a_row_end_in_the_state_of_the_last(running: Cluster, follower: Daemon) -> None:
    kubevirt.create(running.api, permitted(SERVED))
    follower.start()
    for number in range(499):
        configure(running, permitted((OTHER, SERVED)[number % 2]))
    edited = configure(running, permitted(LAST))
    waiting.until(partial(served, follower, LAST), "the last is in force")
    print(f"\nlast of 500 edits to registered: {(time.monotonic() - edited) * 1000:.0f} ms")
    running.await_counts(LAST, 4, 4)
    assert (devices(follower, SERVED), devices(follower, OTHER)) == (0, 0)


def test_what_virt_handler_provides_is_not_offered(running: Cluster, follower: Daemon) -> None:
    follower.start()
    running.await_counts(GPU, 4, 4)
    kubevirt.create(running.api, permitted(GPU, external=False))
    waiting.until(lambda: bool(heard(follower, "reachable")), "the cluster is heard")
    waiting.until(
        lambda: all(
            len(each["devices"]) == 0 for each in follower.status()["resources"] if each["name"] == GPU
        ),
        "nobody offers it",
    )


def test_a_node_goes_on_with_what_it_knows_while_the_api_server_is_away(
    running: Cluster, follower: Daemon
) -> None:
    kubevirt.create(running.api, permitted(SERVED))
    follower.start()
    running.await_counts(SERVED, 4, 4)
    waiting.until(lambda: bool(heard(follower, "lastSaved")), "it is on disk, which nobody waits for")
    with running.control.away():
        follower.stop()
        follower.start()
        waiting.until(lambda: served(follower, SERVED), "it is served without an API server")
        waiting.until(lambda: bool(heard(follower, "error")), "that is told")
    waiting.until(lambda: bool(heard(follower, "reachable")), "it is heard again", 60.0)


def events(running: Cluster, document: Any) -> list[Any]:
    """The Events of nodeagent on an object, found as ``kubectl describe`` finds them."""
    metadata = document["metadata"]
    path = EVENTS.format(metadata.get("namespace", "default"), metadata["uid"])
    return list(running.api.get(path)["items"])


def told(running: Cluster, document: Any) -> dict[str, Any]:
    """Reason → the newest of these Events."""
    return {each["reason"]: each for each in events(running, document)}


def times(running: Cluster, document: Any, reason: str) -> int:
    """How often it is told; on its way out a device may have been seen in several states."""
    return sum(each["count"] for each in events(running, document) if each["reason"] == reason)


def usable(running: Cluster) -> Any:
    """The condition of the Node; None if it has none."""
    conditions = running.api.get(NODE)["status"]["conditions"]
    return next((each for each in conditions if each["type"] == "DevicesUsable"), None)


def test_what_happens_to_a_device_is_told_on_the_node_and_on_its_pod(
    running: Cluster, follower: Daemon, pods: Pods, host: SimulatedHost
) -> None:
    follower.start()
    running.await_counts(GPU, 4, 4)
    waiting.until(lambda: bool(heard(follower, "reachable")), "the cluster is heard")
    pods.run("patient", {GPU: 1})
    (device,) = waiting.until(lambda: follower.status().get("holders"), "the daemon knows the holder")
    node, pod = running.api.get(NODE), pods.get("patient")
    began = time.monotonic()
    host.unplug(device)
    waiting.until(lambda: "DeviceUnhealthy" in told(running, node), "the Node tells it")
    print(f"\nunplugged to the Event on the Node: {(time.monotonic() - began) * 1000:.0f} ms")
    waiting.until(lambda: "DeviceUnhealthy" in told(running, pod), "the pod tells it")
    event = told(running, node)["DeviceUnhealthy"]
    assert (event["type"], device in event["message"]) == ("Warning", True)
    assert event["reportingComponent"] == "nodeagent"
    host.plug(device)
    host.bind(device, "vfio-pci")
    waiting.until(lambda: "DeviceHealthy" in told(running, node), "the Node tells that it is back")
    host.unplug(device)
    waiting.until(lambda: times(running, node, "DeviceUnhealthy") >= 2, "the same is counted")
    follower.stop()
    follower.start()
    waiting.until(lambda: bool(heard(follower, "reachable")), "the cluster is heard")
    host.plug(device)
    host.bind(device, "vfio-pci")
    waiting.until(lambda: told(running, node)["DeviceHealthy"]["count"] == 2, "also by another daemon", 60.0)


def test_the_condition_of_the_node_is_false_while_something_needs_a_person(
    running: Cluster, follower: Daemon, host: SimulatedHost
) -> None:
    follower.configure(SETTINGS | {"cluster": {"condition": True}})
    follower.start()
    running.await_counts(GPU, 4, 4)
    before = waiting.until(lambda: usable(running), "the Node has the condition", 30.0)
    assert before["status"] == "True"
    host.bind(FIRST, "nvidia")
    waiting.until(lambda: usable(running)["status"] == "False", "it is False", 30.0)
    assert FIRST in usable(running)["message"]
    others = {each["type"] for each in running.api.get(NODE)["status"]["conditions"]}
    assert {"Ready", "MemoryPressure", "DevicesUsable"} <= others
    host.bind(FIRST, "vfio-pci")
    waiting.until(lambda: usable(running)["status"] == "True", "it is True again", 30.0)
    follower.configure(SETTINGS)
    waiting.until(lambda: usable(running) is None, "it is taken away", 30.0)


def test_a_right_that_is_missing_is_told(running: Cluster, follower: Daemon, host: SimulatedHost) -> None:
    follower.start()
    running.await_counts(GPU, 4, 4)
    waiting.until(lambda: bool(heard(follower, "reachable")), "the cluster is heard")
    running.api.patch(f"{RBAC}/clusterroles/nodeagent", {"rules": RULES[:2]})
    try:
        host.bind(FIRST, "nvidia")
        (line,) = waiting.until(lambda: heard(follower, "writeErrors"), "the right is missing")
        assert 'cannot create resource "events"' in line
    finally:
        running.api.patch(f"{RBAC}/clusterroles/nodeagent", {"rules": RULES})
        host.bind(FIRST, "vfio-pci")
