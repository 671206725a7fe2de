# SPDX-License-Identifier: Apache-2.0
"""The parts of KubeVirt's objects that are about devices: the KubeVirt CR, and a virtual machine. Frozen
values, no I/O.

Unknown is None: a section that the CR lacks is not an empty one, for KubeVirt checks permissions only where
there is a section. Names are texts of users: printable and of bounded length, but otherwise not
checked; whether the kubelet takes one is ``policy``'s to say. Places lie below ``spec.configuration``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from nodeagent.model.host import Kind
from nodeagent.model.problem import Problem
from nodeagent.model.spec import NodeTypes, WantedType

PERMITTED, MDEVS, MDEVS_OF_NODES, DEVELOPER = SECTIONS = (
    "permittedHostDevices",
    "mediatedDevicesConfiguration",
    "nodeMediatedDeviceTypes",
    "developerConfiguration",
)
"""The sections of ``spec.configuration`` that say something about devices; places begin with one of them."""
DISABLE_MDEVS = "DisableMDEVConfiguration"
HOST_DEVICES = "HostDevices"


class UsedCR(NamedTuple):
    """The KubeVirt CR by which a machine is judged, None if none is known; and where it comes from.

    ``source``: file, api-server, daemon, record (what a daemon has heard last), "" for none.
    """

    cr: KubeVirtCR | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Namespace and name, as far as it has them."""
        return "" if self.cr is None else "/".join(filter(None, (self.cr.namespace, self.cr.name)))


class Permitted(NamedTuple):
    """One entry of ``permittedHostDevices``: a resource, and the devices that it is.

    ``selectors``: of PCI functions one, vendor and device in lower case ("10de:1eb8"); of mediated devices
    one, the name or id of their type as written; of USB devices one for each of the bundle ("046d:c31c").
    ``external``: another device plugin than virt-handler's own provides it.
    """

    kind: Kind
    resource: str
    selectors: tuple[str, ...] = ()
    external: bool = False
    place: str = ""

    @property
    def selector(self) -> str:
        """The one selector; of USB devices all of them, for people."""
        return ", ".join(self.selectors)


class MdevsConfiguration(NamedTuple):
    """The section ``mediatedDevicesConfiguration``, of two spellings the one that KubeVirt would read.

    ``enabled`` is virt-handler's switch; None: not given.
    """

    types: tuple[WantedType, ...] = ()
    nodes: tuple[NodeTypes, ...] = ()
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class KubeVirtCR:
    """The parts of a KubeVirt CR that are about devices.

    ``permitted`` and ``mdevs`` None: the CR has no such section. ``gates`` are the feature gates that it
    lists, without those that it disables. ``refused`` are the entries that cannot be used, each with its
    place; all others count. ``unusable``: the resources of refused entries, which KubeVirt permits all the
    same, as it compares names only. ``fault``: why nothing of it can be used; then all else is empty.
    """

    namespace: str = ""
    name: str = ""
    permitted: tuple[Permitted, ...] | None = None  # PCI, mdevs, USB; each in its order
    mdevs: MdevsConfiguration | None = None
    gates: frozenset[str] = frozenset()
    refused: tuple[Problem, ...] = ()
    unusable: tuple[tuple[str, Problem], ...] = ()
    fault: Problem | None = None

    @property
    def virt_handler_makes_mdevs(self) -> bool:
        """True if virt-handler makes and removes mdevs by itself (pkg/virt-config/virt-config.go)."""
        enabled = None if self.mdevs is None else self.mdevs.enabled
        return DISABLE_MDEVS not in self.gates if enabled is None else enabled


class DeviceList(StrEnum):
    """The list in which a virtual machine asks for a device, as KubeVirt's messages call its entries."""

    GPUS = "GPU"
    HOST_DEVICES = "HostDevice"


class VmDevice(NamedTuple):
    """One device that a virtual machine asks for. ``resource`` None: it comes from a ResourceClaim."""

    listed: DeviceList
    name: str
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """The devices of a VirtualMachineInstance, or of a VirtualMachine's template.

    ``refused`` are entries that ask for nothing that can be understood. ``instancetype`` is the name of one
    that may add devices, "" if none is named. ``interfaces`` are the names of those of type sriov: the
    resource of each is in its NetworkAttachmentDefinition.
    """

    KINDS: ClassVar[tuple[str, ...]] = ("VirtualMachineInstance", "VirtualMachine")

    kind: str
    namespace: str
    name: str
    devices: tuple[VmDevice, ...] = ()
    refused: tuple[Problem, ...] = ()
    instancetype: str = ""
    interfaces: tuple[str, ...] = ()


class ClusterConfig(NamedTuple):
    """The last answer of the cluster for this node: the KubeVirt CR, the labels of the Node.

    None: it was never read. That differs from a cluster without a CR, or a Node without labels.
    """

    kubevirt: KubeVirtCR | None = None
    labels: Mapping[str, str] | None = None
