# SPDX-License-Identifier: Apache-2.0
"""Keys of other tools: who pastes one of their files is told where its counterpart is described.

Only their names are known here. Those of KubeVirt are from its API (core/v1), those of the others from their
documentation: sriov-network-device-plugin 3.11, generic-device-plugin 0.1, k8s-device-plugin 0.20,
vgpu-device-manager 0.5, mdevctl 1.4, and the GPU operator's ClusterPolicy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodeagent.policy import naming

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PAGE = "docs/migrating.md"
_KUBEVIRT, _SRIOV = "the KubeVirt CR", "the sriov-network-device-plugin"
_GENERIC = "squat's generic-device-plugin"
_TRANSLATED = (_KUBEVIRT, _SRIOV, _GENERIC)

_KEYS: Mapping[str, str] = {
    "a Kubernetes object": "kind metadata spec",
    _KUBEVIRT: "permittedHostDevices pciHostDevices mediatedDevices pciVendorSelector mdevNameSelector "
    "externalResourceProvider resourceName mediatedDevicesConfiguration mediatedDeviceTypes "
    "mediatedDevicesTypes nodeMediatedDeviceTypes",
    _SRIOV: "resourceList resourcePrefix deviceType selectors pciAddresses acpiIndexes rootDevices pfNames "
    "linkTypes ddpProfiles isRdma needVhostNet vdpaType pKeys auxTypes excludeTopology additionalInfo",
    _GENERIC: "groups domain",
    "NVIDIA's k8s-device-plugin": "sharing timeSlicing mps migStrategy renameByDefault deviceListStrategy "
    "deviceIDStrategy",
    "NVIDIA's vgpu-device-manager": "vgpu-configs vgpu-devices device-filter",
    "mdevctl": "mdev_type attrs",
    "NVIDIA's GPU operator": "sandboxWorkloads sandboxDevicePlugin vfioManager vgpuManager vgpuDeviceManager",
}
_OWNERS = {key: owner for owner, keys in _KEYS.items() for key in keys.split()}


def hint(key: str, known: Iterable[str]) -> str:
    """What to do about an unknown key: whose it is and where that is described, or what may be meant."""
    owner = _OWNERS.get(key)
    if owner is None:
        return naming.nearest(key, known)
    more = "; nodeagent config --from FILE makes rules of it" if owner in _TRANSLATED else ""
    return f"this is a key of {owner}: {PAGE} has its counterpart{more}"
