# SPDX-License-Identifier: Apache-2.0
"""Spec: the desired state from the operator, merged from all sources.

The order of entries in a configuration file matters, so entries are stored in tuples. ``place`` is the file
and line of an entry ("config.yaml:12"), for messages only.
"""

# Annotations are not postponed here: plain.fields_of evaluates them at each start, and that takes time.
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, NamedTuple

from nodeagent.model.host import NODES, Kind
from nodeagent.model.ids import VFIO_PCI
from nodeagent.model.plain import Key
from nodeagent.model.problem import Problem
from nodeagent.model.resource import Iommufd, Isolation, Via

API_VERSION = "nodeagent/v1"
"""The API version of the configuration file, and of every document that a command prints."""
SHARES = (1, 1_000_000)
"""The minimum and maximum number of shares of a device node."""
DISCOVERED_CLASSES = ("0300", "0302", "0380", "0680", "1200")


class PciSelector(NamedTuple):
    """Matches PCI functions: keys are combined with AND, values of a key with OR; an empty key matches all.

    ``addresses`` may contain ``*`` and ``?``; ``classes`` are prefixes of the six-digit class ("0300",
    "03").
    """

    vendors: Annotated[tuple[str, ...], Key("vendor ids, 4 hexadecimal digits", "vendor id")] = ()
    devices: Annotated[tuple[str, ...], Key("device ids, 4 hexadecimal digits", "device id")] = ()
    subsystems: Annotated[tuple[str, ...], Key('"10de:12a2", or "10de" for the vendor', "subsystem")] = ()
    classes: Annotated[tuple[str, ...], Key("class codes, 2, 4 or 6 digits", "PCI class")] = ()
    drivers: Annotated[tuple[str, ...], Key("drivers to which the PCI function is bound", "driver")] = ()
    addresses: Annotated[tuple[str, ...], Key("addresses; * and ? match", "PCI address pattern")] = ()
    pfs: Annotated[
        tuple[str, ...],
        Key('VFs by the interface or address of their PF, with VF numbers: "ens1f0#0-3"', "VFs of a PF"),
    ] = ()
    numa_nodes: Annotated[tuple[int, ...], Key("NUMA nodes", bounds=(0, 1023))] = ()
    iommu_groups: Annotated[
        tuple[int, ...], Key("IOMMU groups; their numbers may change at each boot", bounds=(0, 2**31 - 1))
    ] = ()
    vgpu_types: Annotated[tuple[str, ...], Key("vGPU types of VFs, as their vendor driver numbers them")] = ()


@dataclass(frozen=True, slots=True)
class PciRule:
    """A resource of PCI functions. Without selectors it matches nothing.

    ``permitted``: the rule is from the KubeVirt CR, which applies to all nodes. Like virt-handler, a
    permitted rule matches only functions on a VFIO driver, because the host of some Nodes may need the same
    card model for itself.
    """

    name: Annotated[str, Key("the resource, such as example.com/gpu", "resource")]
    selectors: Annotated[tuple[PciSelector, ...], Key("matches PCI functions", name="pci")] = ()
    isolation: Annotated[
        Isolation,
        Key(
            "group: an allocated device blocks its IOMMU group; bundle: one Device per group; "
            "none: no blocking"
        ),
    ] = Isolation.GROUP
    iommufd: Annotated[Iommufd, Key("allocate /dev/iommu and the VFIO device nodes")] = Iommufd.NEVER
    cdi: Annotated[bool, Key("allocate with CDI device names")] = False
    topology: Annotated[bool, Key("report the NUMA nodes of the devices to the kubelet")] = True
    via: Annotated[
        Via, Key("advertise the devices by a device plugin, or by DRA: as ResourceSlices for the scheduler")
    ] = Via.DEVICE_PLUGIN
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.PCI
    words: ClassVar[str] = "PCI functions"


class NodePath(NamedTuple):
    """The path of a device node of a Device; with ``*``, ``?`` or ``[…]`` in the last part of the path, all
    device nodes that match.

    ``mount_path``: the path of the device node in the container; "" means the same path. If ``permissions``
    is "", the permissions of the rule apply. ``limit``, with ``per_path``: how many Devices may contain the
    device node; None means 1 for a pattern, and all Devices for a path.
    """

    path: Annotated[
        str, Key("path of the device node; *, ? and [...] in the last part match several", "device nodes")
    ]
    mount_path: Annotated[
        str,
        Key("path in the container; a directory ends with /; default: the same path", "mount path"),
    ] = ""
    permissions: Annotated[
        str, Key("permissions out of r, w and m; default: those of the rule", "permissions")
    ] = ""
    optional: Annotated[bool, Key("the Device is Healthy even if this device node does not exist")] = False
    limit: Annotated[
        int | None,
        Key(
            "with perPath: how many Devices may contain the device node; default: 1 for a "
            "pattern, all for a path",
            bounds=SHARES,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A resource of ``count`` shares of one device node such as /dev/kvm, or of several device nodes
    together.

    ``per_path``: each device node that matches the first of the ``paths`` is a Device with ``count`` shares.
    """

    name: str
    path: Annotated[str, Key("one node below /dev", "device node")] = ""
    count: Annotated[int, Key("how many containers may share the device node", bounds=SHARES)] = 1
    permissions: Annotated[str, Key("permissions out of r, w and m", "permissions")] = "rw"
    paths: Annotated[tuple[NodePath, ...], Key("device nodes of one Device; patterns are allowed")] = ()
    per_path: Annotated[bool, Key("one Device for each device node that matches the first path")] = False
    topology: bool = True
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.NODE
    words: ClassVar[str] = "device nodes"

    @property
    def each_alone(self) -> bool:
        """Return True if the health of each Device of this rule is independent of the other Devices."""
        return self.per_path and self.count == 1

    @property
    def entries(self) -> tuple[NodePath, ...]:
        """Return the entries for all device nodes of a Device; the first entry determines the name of the
        Device.
        """
        return self.paths or (NodePath(self.path),)


class MdevSelector(NamedTuple):
    """Matches mdevs whose type has an id in ``types`` AND a name in ``names``; an empty key matches all."""

    types: Annotated[tuple[str, ...], Key("type ids, such as nvidia-222")] = ()
    names: Annotated[tuple[str, ...], Key("type names, such as GRID T4-1Q")] = ()


@dataclass(frozen=True, slots=True)
class MdevRule:
    """A resource of mdevs. Without selectors it matches nothing. ``permitted``: the rule is from the KubeVirt
    CR.
    """

    name: str
    selectors: Annotated[tuple[MdevSelector, ...], Key("matches mediated devices", name="mdev")] = ()
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    cdi: bool = False
    topology: bool = True
    via: Via = Via.DEVICE_PLUGIN
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.MDEV
    words: ClassVar[str] = "mediated devices"


class UsbSelector(NamedTuple):
    """Matches USB devices: keys are combined with AND, values of a key with OR; an empty key matches all.

    ``ports`` may contain ``*`` and ``?``, and name a port by its bus ("1-1.2") or by its controller.
    ``classes`` are prefixes of the class of the device or of one of its interfaces ("08", "0806").
    """

    vendors: Annotated[tuple[str, ...], Key("vendor ids, 4 hexadecimal digits", "vendor id")] = ()
    products: Annotated[tuple[str, ...], Key("product ids, 4 hexadecimal digits", "device id")] = ()
    serials: Annotated[tuple[str, ...], Key("serial numbers")] = ()
    classes: Annotated[
        tuple[str, ...], Key("classes of the device or its interfaces, 2 to 6 digits", "PCI class")
    ] = ()
    ports: Annotated[tuple[str, ...], Key("ports, such as 1-1.2; * and ? match")] = ()


@dataclass(frozen=True, slots=True)
class UsbRule:
    """A resource of USB devices. Without selectors it matches nothing.

    ``bundle``: each Device is a set of USB devices that has one USB device for every selector. ``force`` are
    ids or ports of USB devices that are offered although the host uses them. ``permitted``: the rule is from
    the KubeVirt CR, in which each entry is one rule.
    """

    name: str
    selectors: Annotated[tuple[UsbSelector, ...], Key("matches USB devices", name="usb")] = ()
    bundle: Annotated[
        bool, Key("allocate sets of USB devices: each set has one USB device for every selector")
    ] = False
    force: Annotated[
        tuple[str, ...], Key("ids or ports of USB devices that are advertised although the host uses them")
    ] = ()
    topology: bool = True
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.USB
    words: ClassVar[str] = "USB devices"
    isolation: ClassVar[Isolation] = Isolation.NONE
    iommufd: ClassVar[Iommufd] = Iommufd.NEVER
    cdi: ClassVar[bool] = False
    via: ClassVar[Via] = Via.DEVICE_PLUGIN


DeviceRule = PciRule | MdevRule | UsbRule
"""A rule for HostDevices; each rule matches devices of one kind."""


@dataclass(frozen=True, slots=True)
class CdiRule:
    """A resource of the CDI devices of one CDI kind, such as nvidia.com/gpu; CDI files on the host define
    these devices.

    ``names`` and ``exclude`` are patterns of device names; the device "all" contains all devices of a kind.
    """

    name: str
    spec_kind: Annotated[str, Key("vendor and class, such as nvidia.com/gpu", "CDI kind", name="kind")]
    names: Annotated[tuple[str, ...], Key("names of devices; * and ? match")] = ("*",)
    exclude: Annotated[
        tuple[str, ...],
        Key("names of devices to skip; default: the device named all, which contains all others"),
    ] = ("all",)
    topology: bool = True
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.CDI
    words: ClassVar[str] = "CDI devices"
    each_alone: ClassVar[bool] = True


DirectRule = NodeRule | CdiRule
"""A rule whose Devices are not HostDevices: it has no selectors, and its Devices have no IOMMU group."""

Rule = DeviceRule | DirectRule


def use_dra(rules: Iterable[Rule]) -> bool:
    """Return True if one of these rules offers its devices by DRA."""
    return any(isinstance(each, DeviceRule) and each.via is Via.DRA for each in rules)


BySelector = Mapping[str, DeviceRule]
"""Rules of the KubeVirt CR, possibly thousands, by each selector: ids, or the name of a type."""
NO_RULES: Final[BySelector] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WantedType:
    """A vGPU type to create on a card: its id or name, and the number per card (None: as many as fit).

    ``short`` is the last word of the type's name, as in NVIDIA's vgpu-device-manager: "T4-1Q".
    """

    name: Annotated[str, Key("type id or name", name="type")]
    count: Annotated[
        int | None, Key("how many vGPUs of the type to create on each card", bounds=(1, 1024))
    ] = None
    short: bool = False


class NodeTypes(NamedTuple):
    """The vGPU types for Nodes with all these labels; an empty set of labels matches every Node."""

    labels: Annotated[
        tuple[tuple[str, str], ...], Key("labels of the node", "label", name="nodeSelector")
    ] = ()
    types: Annotated[tuple[WantedType, ...], Key("vGPU types on these Nodes, in order")] = ()


class CardTypes(NamedTuple):
    """The vGPU types for certain GPUs, which are selected by ids and by position in the list of GPUs in
    address order.

    ``positions`` None means every GPU. A filter is (vendor, device, subsystem vendor, subsystem device); the
    last two may be None. Without ``filters``, GPUs with all ids match. An entry without ``types`` means that
    the GPU must have no vGPUs.
    """

    positions: tuple[int, ...] | None = None
    filters: tuple[tuple[str, str, str | None, str | None], ...] = ()
    types: tuple[WantedType, ...] = ()


class MdevDefinition(NamedTuple):
    """One mdev that a definition of mdevctl describes, with its own UUID."""

    uuid: str
    parent: str
    type_id: str


class MdevSpec(NamedTuple):
    """The desired mdevs and vendor vGPUs. ``manage`` False: nothing is created or removed.

    For a card, ``definitions`` have precedence over ``cards``, and ``cards`` over the types of the Node. The
    types of the Node are those of all matching ``nodes``, or ``types`` if none of the ``nodes`` matches.
    Instances of ``excluded`` types are neither created nor removed. Even with ``adopt``, nodeagent never
    removes instances of a ``protected`` type that other tools have created. ``defined`` are the UUIDs of all
    definitions of mdevctl, also of unused ones, and ``reserved`` the parents on which mdevctl itself creates
    devices. ``obstacle``: why ``manage`` is False although the configuration enables it.
    """

    manage: bool = False
    types: tuple[WantedType, ...] = ()
    nodes: tuple[NodeTypes, ...] = ()
    adopt: bool = False
    excluded: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    cards: tuple[CardTypes, ...] = ()
    definitions: tuple[MdevDefinition, ...] = ()
    defined: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()
    obstacle: Problem | None = None


@dataclass(frozen=True, slots=True)
class SriovRule:
    """The desired number of VFs of the matching physical functions, and the VFIO driver of the VFs.

    ``driver`` None means that this rule binds no driver.
    """

    selectors: Annotated[tuple[PciSelector, ...], Key("which functions", name="match")]
    num_vfs: Annotated[int, Key("how many VFs", bounds=(0, 65535), name="numVFs")]
    driver: Annotated[
        str | None, Key("the VFIO driver for the VFs, which are never bound to a host driver", "VFIO driver")
    ] = None
    place: str = field(default="", compare=False)


class GroupScope(StrEnum):
    """The functions of an IOMMU group that a rule binds."""

    WHOLE = "whole"
    MATCHED = "matched"


@dataclass(frozen=True, slots=True)
class PassthroughRule:
    """The functions to bind to a VFIO driver. ``group``: whether the other functions of their IOMMU groups
    are bound as well.

    ``force`` are the addresses of functions that are bound although the host uses them.
    """

    selectors: Annotated[tuple[PciSelector, ...], Key("which functions", name="match")]
    driver: Annotated[
        str, Key("the VFIO driver to bind the PCI functions to; default: vfio-pci", "VFIO driver")
    ] = VFIO_PCI
    group: Annotated[
        GroupScope,
        Key(
            "whole: bind all PCI functions of an IOMMU group, or none; matched: bind only matching functions"
        ),
    ] = GroupScope.WHOLE
    force: Annotated[
        tuple[str, ...],
        Key(
            "addresses of PCI functions to bind although the host uses them for network or display",
            "PCI address",
        ),
    ] = ()
    place: str = field(default="", compare=False)


class Discovery(NamedTuple):
    """Automatic discovery: the PCI classes, and how resources are named (``name`` or ``id`` style).

    ``pci_ids`` is the path of the configured pci.ids file, "" for none.
    """

    enabled: Annotated[bool, Key("advertise PCI functions on a VFIO driver that no rule matches")] = True
    naming: Annotated[
        str,
        Key("name discovered resources after pci.ids, or after vendor and device id", choices=("name", "id")),
    ] = "name"
    prefix: Annotated[
        str,
        Key(
            'domain of discovered resource names; "" means one domain per vendor, such as nvidia.com',
            "domain",
        ),
    ] = ""
    pci_ids: Annotated[
        str,
        Key(
            "a pci.ids file that takes precedence over the bundled copy and the host's file",
            "optional file",
            at_start=True,
        ),
    ] = ""
    classes: Annotated[
        tuple[str, ...],
        Key(
            "PCI classes that are discovered, 2, 4 or 6 digits each; 0680 (NVSwitch) for NVIDIA only",
            "PCI class",
        ),
    ] = DISCOVERED_CLASSES


class ClusterMode(Enum):
    """Whether to watch the API server; ``AS_POD`` means: only if there is the service account of a pod."""

    NO = "no"
    AS_POD = "as a pod"
    YES = "yes"


class Spec(NamedTuple):
    """The desired state of this Node; ``labels`` are the labels of the Node, which select its vGPU types.

    ``kubevirt_rules`` are the ``rules`` that come from the KubeVirt CR. virt-handler serves the rules in
    ``virt_handler_rules``: discovery skips their devices.
    """

    discovery: Discovery = Discovery()
    aliases: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()
    mdevs: MdevSpec = MdevSpec()
    sriov: tuple[SriovRule, ...] = ()
    passthrough: tuple[PassthroughRule, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    kubevirt_rules: BySelector = NO_RULES
    virt_handler_rules: BySelector = NO_RULES
    following: ClusterMode = ClusterMode.NO

    @property
    def node_paths(self) -> tuple[str, ...]:
        """Return the device nodes and patterns that rules name; rules for USB devices add the directory of
        all USB device nodes.
        """
        rules = (rule for rule in self.rules if isinstance(rule, NodeRule))
        paths = tuple(dict.fromkeys(entry.path for rule in rules for entry in rule.entries))
        return (*paths, NODES) if any(isinstance(rule, UsbRule) for rule in self.rules) else paths

    @property
    def cdi_kinds(self) -> frozenset[str]:
        """Return the kinds of CDI devices that rules name."""
        return frozenset(rule.spec_kind for rule in self.rules if isinstance(rule, CdiRule))

    @property
    def changes_host(self) -> bool:
        """Return True if nodeagent may have to change the host."""
        return self.mdevs.manage or bool(self.sriov) or bool(self.passthrough)

    @property
    def uses_dra(self) -> bool:
        """Return True if a rule offers its devices by DRA."""
        return use_dra(self.rules)
