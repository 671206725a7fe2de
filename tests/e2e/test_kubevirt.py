# SPDX-License-Identifier: Apache-2.0
"""KubeVirt's own definition in the API server: the fields that matter here are known and kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import kubevirt
from tests.e2e.cluster import Cluster

CONFIGURATION = {
    "permittedHostDevices": {
        "pciHostDevices": [
            {
                "pciVendorSelector": "10DE:1F08",
                "resourceName": "nvidia.com/TU106_GEFORCE_RTX_2060_REV__A",
                "externalResourceProvider": True,
            }
        ],
        "mediatedDevices": [
            {
                "mdevNameSelector": "GRID T4-1Q",
                "resourceName": "nvidia.com/GRID_T4-1Q",
                "externalResourceProvider": True,
            }
        ],
    },
    "mediatedDevicesConfiguration": {
        "enabled": False,
        "mediatedDeviceTypes": ["nvidia-222", "nvidia-228"],
        "nodeMediatedDeviceTypes": [
            {"nodeSelector": {"kubernetes.io/hostname": "node2"}, "mediatedDeviceTypes": ["nvidia-234"]}
        ],
    },
}


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """A cluster that knows KubeVirt."""
    kubevirt.install(running.api)
    kubevirt.create(running.api, CONFIGURATION)
    yield running
    kubevirt.delete(running.api)


def test_what_a_kubevirt_object_says_about_devices_is_kept_by_the_api_server(cluster: Cluster) -> None:
    found = cluster.api.get(f"{kubevirt.OBJECTS}/kubevirt")
    assert found["spec"]["configuration"] == CONFIGURATION
    assert found["status"]["phase"] == "Deployed"
