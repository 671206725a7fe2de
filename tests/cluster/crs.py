# SPDX-License-Identifier: Apache-2.0
"""KubeVirt CRs as the API server sends them, for the tests of all that reads one."""

from __future__ import annotations

from typing import Any

from nodeagent.cluster import kubevirt
from nodeagent.model.kubevirt import KubeVirtCR

T4 = {"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/TU104GL_Tesla_T4"}
VGPU = {"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/GRID_T4-1Q"}
GUIDE = {
    "pciHostDevices": [
        {**T4, "externalResourceProvider": True},
        {"pciVendorSelector": "8086:6F54", "resourceName": "intel.com/qat"},
    ],
    "mediatedDevices": [VGPU],
}
"""The first example of KubeVirt's user guide (docs/compute/host-devices.md)."""


def document(configuration: Any, **metadata: Any) -> dict[str, Any]:
    """A CR in the namespace kubevirt."""
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "KubeVirt",
        "metadata": {"namespace": "kubevirt", "name": "kubevirt", **metadata},
        "spec": {"configuration": configuration},
        "status": {"phase": "Deployed"},
    }


def read(permitted: Any = None, mdevs: Any = None, gates: Any = ()) -> KubeVirtCR:
    """What a CR with these sections says; None: it has no such section."""
    sections = {"permittedHostDevices": permitted, "mediatedDevicesConfiguration": mdevs}
    given = {key: value for key, value in sections.items() if value is not None}
    return kubevirt.cr(document({**given, "developerConfiguration": {"featureGates": list(gates)}}))


def external(entry: dict[str, Any], **other: Any) -> dict[str, Any]:
    """The entry, for another device plugin than virt-handler's."""
    return {**entry, "externalResourceProvider": True, **other}
