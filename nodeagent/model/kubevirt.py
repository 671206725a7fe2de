# SPDX-License-Identifier: Apache-2.0
"""The parts of KubeVirt's objects that concern devices: the KubeVirt CR and virtual machines. Frozen values.

A missing section is None and differs from an empty one, because KubeVirt checks permissions only if the
section exists. Names are user input: printable and of limited length, but otherwise not checked; ``policy``
decides whether the kubelet accepts one. The place of an entry is its path relative to ``spec.configuration``.
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
"""The sections of ``spec.configuration`` that concern devices; places begin with one of them."""
DISABLE_MDEVS = "DisableMDEVConfiguration"
HOST_DEVICES = "HostDevices"


class UsedCR(NamedTuple):
    """The KubeVirt CR that applies to this node, None if none is known, and its source.

    ``source``: file, api-server, daemon, record (saved by a daemon), "" for none.
    """

    cr: KubeVirtCR | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Return the namespace and name of the CR, as far as it has them."""
        return "" if self.cr is None else "/".join(filter(None, (self.cr.namespace, self.cr.name)))


class Permitted(NamedTuple):
    """One entry of ``permittedHostDevices``: a resource, and the selectors of its devices.

    A PCI entry has one selector, vendor and device in lower case ("10de:1eb8"); an mdev entry has one, the
    name or id of the type; a USB entry has one for each device of the bundle ("046d:c31c"). ``external``:
    an external device plugin provides the resource instead of virt-handler.
    """

    kind: Kind
    resource: str
    selectors: tuple[str, ...] = ()
    external: bool = False
    place: str = ""

    @property
    def selector(self) -> str:
        """Return the selector of an entry for display; for a USB entry all selectors."""
        return ", ".join(self.selectors)


class MdevsConfiguration(NamedTuple):
    """The section ``mediatedDevicesConfiguration``; of two spellings of a key, the one that KubeVirt reads.

    ``enabled`` is virt-handler's switch; None if it is not set.
    """

    types: tuple[WantedType, ...] = ()
    nodes: tuple[NodeTypes, ...] = ()
    enabled: bool | None = None


@dataclass(frozen=True, slots=True)
class KubeVirtCR:
    """The parts of a KubeVirt CR that concern devices.

    ``permitted`` and ``mdevs`` are None if the CR has no such section. ``gates`` are the enabled feature
    gates. ``refused`` are the invalid entries with their places; all others apply. ``unusable``: the
    resources of invalid entries; KubeVirt still permits these resources, since it compares names only.
    ``fault``: the error that makes the whole CR unusable; all other fields are then empty.
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
        """Return True if virt-handler creates and removes mdevs itself (pkg/virt-config/virt-config.go)."""
        enabled = None if self.mdevs is None else self.mdevs.enabled
        return DISABLE_MDEVS not in self.gates if enabled is None else enabled


class DeviceList(StrEnum):
    """The list in which a VM requests a device (gpus, hostDevices), with the name in KubeVirt's messages."""

    GPUS = "GPU"
    HOST_DEVICES = "HostDevice"


class VmDevice(NamedTuple):
    """One device that a VM requests. ``resource`` is None if the device comes from a ResourceClaim."""

    listed: DeviceList
    name: str
    resource: str | None = None


@dataclass(frozen=True, slots=True)
class VirtualMachine:
    """The devices of a VirtualMachineInstance, or of a VirtualMachine's template.

    ``refused`` are invalid entries. ``instancetype`` is the name of an instance type that may add devices,
    "" if there is none. ``interfaces`` are the names of interfaces of type sriov: the resource of each is
    in its NetworkAttachmentDefinition.
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
    """The last answer of the cluster for this node: the KubeVirt CR, and the labels of the Node.

    A field is None if nodeagent never read it; a cluster without a CR or a Node without labels has another
    value.
    """

    kubevirt: KubeVirtCR | None = None
    labels: Mapping[str, str] | None = None
