# SPDX-License-Identifier: Apache-2.0
"""``nodeagent explain claim``: a ResourceClaim of the cluster, explained without a daemon."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nodeagent.sim.apiserver.server import FakeApiServer
from nodeagent.sim.apiserver.store import RESOURCE_CLAIMS
from tests.blackbox.claims import cluster_of, daemon_of
from tests.blackbox.harness import Node
from tests.blackbox.test_cluster import NAME, server_of
from tests.facts import names

ASKING = ("--kubeconfig", "/etc/kubeconfig", "--node-name", NAME)
DRIVER = "nodeagent.local"
GPU = "0000:20:00.0"
DEVICE = "pci-0000-20-00-0"
RULE = "resources: [{name: example.com/gpu, pci: [{vendors: ['10de']}], via: dra}]\n"


def claim(server: FakeApiServer, *results: dict[str, str]) -> None:
    """The cluster has the claim vms/red, allocated if it has results."""
    devices = {"results": [{"request": "gpu", "driver": DRIVER, **each} for each in results]}
    status = {"allocation": {"devices": devices}} if results else {}
    metadata = {"name": "red", "namespace": "vms"}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    server.store.put(RESOURCE_CLAIMS, {"metadata": metadata, "spec": spec, "status": status})


@pytest.fixture
async def server(node: Node) -> AsyncIterator[FakeApiServer]:
    """An API server, and a node with one GPU by DRA."""
    node.add_gpu(GPU, 20)
    node.configure(RULE)
    async with server_of(node) as server:
        yield server


async def explained(node: Node, name: str = "vms/red") -> Any:
    """The explanation of the claim."""
    done = await node.command("explain", "claim", name, *ASKING, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_an_unallocated_claim_lists_the_devices_of_the_node_and_what_is_wrong_with_them(
    node: Node, server: FakeApiServer
) -> None:
    claim(server)
    found = await explained(node)
    assert (found["claim"], found["state"]) == ("vms/red", "unallocated")
    (device,) = found["onNode"]
    assert device == {"device": DEVICE, "resource": "example.com/gpu"}
    node.host.bind(GPU, "nvidia")
    (device,) = (await explained(node))["onNode"]
    names(device["message"], "nvidia")
    text = (await node.command("explain", "claim", "vms/red", *ASKING)).stdout
    names(text, "not allocated", DEVICE, "nvidia")


async def test_an_allocated_claim_says_whether_it_can_be_prepared(node: Node, server: FakeApiServer) -> None:
    claim(server, {"pool": f"{DRIVER}/{NAME}", "device": DEVICE})
    found = await explained(node)
    assert found["state"] == "ready"
    assert found["devices"] == [{"request": "gpu", "device": DEVICE, "pool": f"{DRIVER}/{NAME}"}]
    node.host.bind(GPU, "nvidia")
    found = await explained(node)
    assert found["state"] == "refused"
    names(found["message"], DEVICE, "nvidia")


async def test_a_claim_of_another_node_is_reported_as_such(node: Node, server: FakeApiServer) -> None:
    claim(server, {"pool": f"{DRIVER}/other", "device": DEVICE})
    assert (await explained(node))["state"] == "other-node"


async def test_a_claim_that_does_not_exist_is_an_error(node: Node, server: FakeApiServer) -> None:
    done = await node.command("explain", "claim", "vms/blue", *ASKING)
    assert done.returncode == 1
    names(done.stderr, "vms/blue", "kubectl get resourceclaims")
    assert (await node.command("explain", "claim", "blue", *ASKING)).returncode == 2


async def test_a_device_is_found_by_its_name_in_the_slices(node: Node, server: FakeApiServer) -> None:
    for name in (DEVICE, DEVICE.replace("pci-", "board-")):
        done = await node.command("explain", name, "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["id"] == GPU


async def test_two_resources_by_dra_of_one_vm_come_from_different_groups(
    node: Node, server: FakeApiServer
) -> None:
    node.configure(
        "resources:\n"
        "- {name: example.com/gpu, pci: [{vendors: ['10de'], addresses: ['*.0']}], via: dra}\n"
        "- {name: example.com/audio, pci: [{vendors: ['10de'], addresses: ['*.1']}], via: dra}\n"
    )
    node.add_gpu("0000:20:00.1", 20)
    names_ = ("example.com/gpu", "example.com/audio")
    listed = [{"name": name.rpartition("/")[2], "deviceName": name} for name in names_]
    vm = {
        "kind": "VirtualMachineInstance",
        "metadata": {"name": "red", "namespace": "vms"},
        "spec": {"domain": {"devices": {"hostDevices": listed}}},
    }
    (node.root / "vm.json").write_text(json.dumps(vm))
    done = await node.command("explain", "vmi", str(node.root / "vm.json"), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert any("IOMMU groups" in note for note in json.loads(done.stdout)["notes"])
    listed[0] = {"name": "gpu", "claimName": "devices", "requestName": "gpu"}
    (node.root / "vm.json").write_text(json.dumps(vm))
    done = await node.command("explain", "vmi", str(node.root / "vm.json"), "-o", "json")
    (note,) = (each for each in json.loads(done.stdout)["notes"] if "ResourceClaim" in each)
    names(note, "gpu", "nodeagent explain claim")
    assert not any("IOMMU groups" in note for note in json.loads(done.stdout)["notes"])


async def test_a_prepared_claim_and_its_pod(node: Node) -> None:
    node.add_gpu(GPU, 20)
    async with cluster_of(node) as cluster, daemon_of(cluster):
        await cluster.until_published(DEVICE)
        cluster.allocate("red", {"gpu": DEVICE})
        await cluster.start("pod", "red")
        assert (await explained(node, "ns/red"))["state"] == "prepared"
        done = await node.command("explain", "ns/pod")
    assert done.returncode == 1
    names(done.stderr, "ns/pod", "nodeagent explain claim")
