# SPDX-License-Identifier: Apache-2.0
"""The image in a pod, as the static manifest for DRA makes it: its mounts and rights suffice for claims."""

from __future__ import annotations

import json

import pytest

from nodeagent.sim.host import SimulatedHost
from tests.e2e import test_daemonset
from tests.e2e.cluster import Cluster
from tests.e2e.pods import Pods
from tests.e2e.test_daemonset import PLACES, SLICES, deployed
from tests.image import manifests

GPU = "example.com/gpu"
RULE = {"name": GPU, "via": "dra", "pci": [{"devices": ["1f08"]}]}
namespace, image, policy = test_daemonset.namespace, test_daemonset.image, test_daemonset.policy


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("namespace", "image", "policy")
def test_a_pod_publishes_devices_and_prepares_them_with_the_rights_of_the_manifest(
    running: Cluster, host: SimulatedHost, pods: Pods
) -> None:
    made = manifests.helm(config={"resources": [RULE]})
    device_class = manifests.one(made, "DeviceClass")
    running.api.create(PLACES["DeviceClass"], device_class)
    try:
        with deployed(running, host, "nodeagent-dra", json.dumps({"resources": [RULE]})):
            given = pods.run("one", {GPU: 1})
            assert given.env["PCI_RESOURCE_EXAMPLE_COM_GPU"]
            assert "/dev/vfio/vfio" in given.nodes
            pods.delete("one")
    finally:
        running.api.delete(f"{PLACES['DeviceClass']}/{device_class['metadata']['name']}")
        for each in running.api.get(SLICES)["items"]:
            running.api.delete(f"{SLICES}/{each['metadata']['name']}")
