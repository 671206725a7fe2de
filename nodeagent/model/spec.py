# SPDX-License-Identifier: Apache-2.0
"""Spec: what the operator wants, merged from all sources.

The order of entries in a file is data: tuples from end to end. ``place`` is the place of an entry in a file
("config.yaml:12"), for messages only.
"""

# Annotations are not postponed here: plain.fields_of evaluates them at each start, and that takes time.
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, NamedTuple

from nodeagent.model.host import NODES, Kind
from nodeagent.model.ids import VFIO_PCI
from nodeagent.model.plain import Key
from nodeagent.model.problem import Problem
from nodeagent.model.resource import Iommufd, Isolation

API_VERSION = "nodeagent/v1"
"""Of the configuration file, and of every document that a verb answers with."""
SHARES = (1, 1_000_000)
"""The least and the most shares of a device node."""
DISCOVERED_CLASSES = ("0300", "0302", "0380", "0680", "1200")


class PciSelector(NamedTuple):
    """Picks PCI functions: AND between the keys, OR inside a key, an empty key picks all.

    ``addresses`` may hold ``*`` and ``?``; ``classes`` are prefixes of the six-digit class ("0300", "03").
    """

    vendors: Annotated[tuple[str, ...], Key("vendor ids, 4 hexadecimal digits", "vendor id")] = ()
    devices: Annotated[tuple[str, ...], Key("device ids, 4 hexadecimal digits", "device id")] = ()
    subsystems: Annotated[tuple[str, ...], Key('"10de:12a2", or "10de" for the vendor', "subsystem")] = ()
    classes: Annotated[tuple[str, ...], Key("class codes, 2, 4 or 6 digits", "PCI class")] = ()
    drivers: Annotated[tuple[str, ...], Key("drivers that the function is bound to", "driver")] = ()
    addresses: Annotated[tuple[str, ...], Key("addresses; * and ? match", "PCI address pattern")] = ()
    pfs: Annotated[
        tuple[str, ...],
        Key('VFs by the interface or address of their PF, with VF numbers: "ens1f0#0-3"', "VFs of a PF"),
    ] = ()
    numa_nodes: Annotated[tuple[int, ...], Key("NUMA nodes", bounds=(0, 1023))] = ()
    iommu_groups: Annotated[
        tuple[int, ...], Key("IOMMU groups; they may change with a boot", bounds=(0, 2**31 - 1))
    ] = ()
    vgpu_types: Annotated[tuple[str, ...], Key("vGPU types of a vendor driver")] = ()


@dataclass(frozen=True, slots=True)
class PciRule:
    """A resource of PCI functions. No selectors picks nothing.

    ``permitted``: from the KubeVirt CR, which is for all nodes. It takes what is ready for a VM alone, as
    virt-handler would: on another node the same card may be meant for its host.
    """

    name: Annotated[str, Key("the resource, such as example.com/gpu", "resource")]
    selectors: Annotated[tuple[PciSelector, ...], Key("picks PCI functions", name="pci")] = ()
    isolation: Annotated[
        Isolation, Key("group: the rest of an IOMMU group waits; bundle: one device per group; none: neither")
    ] = Isolation.GROUP
    iommufd: Annotated[Iommufd, Key("hand out /dev/iommu and the VFIO device nodes")] = Iommufd.NEVER
    cdi: Annotated[bool, Key("answer with CDI device names")] = False
    topology: Annotated[bool, Key("tell the kubelet the NUMA nodes of the devices")] = True
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.PCI
    words: ClassVar[str] = "PCI functions"


class NodePath(NamedTuple):
    """A device node of a unit, or with ``*``, ``?`` and ``[…]`` in its last part all nodes that it fits.

    ``mount_path``: where a container finds it; "" is the same path. ``permissions`` "": those of the rule.
    ``limit``, for ``per_path``: of how many Devices a node may be a part; None: 1 for a pattern, else of all.
    """

    path: Annotated[str, Key("the node; with *, ? and [...] in its last part all that fit", "device nodes")]
    mount_path: Annotated[
        str,
        Key("where a container finds it; a directory ends with /; without it the same path", "mount path"),
    ] = ""
    permissions: Annotated[str, Key("of r, w and m; without them those of the rule", "permissions")] = ""
    optional: Annotated[bool, Key("a Device is Healthy without it, too")] = False
    limit: Annotated[
        int | None,
        Key(
            "with perPath, of how many Devices a node may be a part: 1 for a pattern, any for a path",
            bounds=SHARES,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class NodeRule:
    """A resource of ``count`` shares of one device node, e.g. /dev/kvm, or of several that go together.

    ``per_path``: for each node that the first of the ``paths`` fits there is a Device, with ``count`` shares.
    """

    name: str
    path: Annotated[str, Key("one node below /dev", "device node")] = ""
    count: Annotated[int, Key("how many containers may share it", bounds=SHARES)] = 1
    permissions: Annotated[str, Key("of r, w and m", "permissions")] = "rw"
    paths: Annotated[tuple[NodePath, ...], Key("nodes that go together; patterns, too")] = ()
    per_path: Annotated[bool, Key("a device for each node that the first of the paths means")] = False
    topology: bool = True
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.NODE
    words: ClassVar[str] = "device nodes"

    @property
    def each_alone(self) -> bool:
        """True if its Devices do not stand and fall together."""
        return self.per_path and self.count == 1

    @property
    def entries(self) -> tuple[NodePath, ...]:
        """All that a unit is made of, the one that gives its name first."""
        return self.paths or (NodePath(self.path),)


class MdevSelector(NamedTuple):
    """Picks mediated devices by type: one of ``types`` (ids) AND one of ``names``; an empty key picks all."""

    types: Annotated[tuple[str, ...], Key("type ids, such as nvidia-222")] = ()
    names: Annotated[tuple[str, ...], Key("type names, such as GRID T4-1Q")] = ()


@dataclass(frozen=True, slots=True)
class MdevRule:
    """A resource of mediated devices. No selectors picks nothing. ``permitted``: from the KubeVirt CR."""

    name: str
    selectors: Annotated[tuple[MdevSelector, ...], Key("picks mediated devices", name="mdev")] = ()
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    cdi: bool = False
    topology: bool = True
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.MDEV
    words: ClassVar[str] = "mediated devices"


class UsbSelector(NamedTuple):
    """Picks USB devices: AND between the keys, OR inside a key, an empty key picks all.

    ``ports`` may hold ``*`` and ``?``, and name a port by its bus ("1-1.2") or by its controller; ``classes``
    are prefixes of the device's class or of the code of one of its interfaces ("08", "0806").
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
    """A resource of USB devices. No selectors picks nothing.

    ``bundle``: one Device for each set that has one for every selector. ``force`` are ids or ports of what
    the host itself may lose. ``permitted``: from the KubeVirt CR, of which each entry is a rule of its own.
    """

    name: str
    selectors: Annotated[tuple[UsbSelector, ...], Key("picks USB devices", name="usb")] = ()
    bundle: Annotated[bool, Key("one device for each set of USB devices that has one for every selector")] = (
        False
    )
    force: Annotated[tuple[str, ...], Key("ids or ports of USB devices that the host may lose")] = ()
    topology: bool = True
    permitted: bool = False
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.USB
    words: ClassVar[str] = "USB devices"
    isolation: ClassVar[Isolation] = Isolation.NONE
    iommufd: ClassVar[Iommufd] = Iommufd.NEVER
    cdi: ClassVar[bool] = False


DeviceRule = PciRule | MdevRule | UsbRule
"""A rule that picks HostDevices, each rule those of one kind."""


@dataclass(frozen=True, slots=True)
class CdiRule:
    """A resource of what CDI files on the host define: the devices of a kind, such as nvidia.com/gpu.

    ``names`` and ``exclude`` are patterns of device names; "all" stands for all of a kind in one device.
    """

    name: str
    spec_kind: Annotated[str, Key("vendor and class, such as nvidia.com/gpu", "CDI kind", name="kind")]
    names: Annotated[tuple[str, ...], Key("names of devices; * and ? match")] = ("*",)
    exclude: Annotated[
        tuple[str, ...], Key("names that are not taken; without it those that stand for all")
    ] = ("all",)
    topology: bool = True
    place: str = field(default="", compare=False)

    kind: ClassVar[Kind] = Kind.CDI
    words: ClassVar[str] = "CDI devices"
    each_alone: ClassVar[bool] = True


DirectRule = NodeRule | CdiRule
"""A rule whose Devices are no HostDevices: it has no selectors, and nothing of it is in an IOMMU group."""

Rule = DeviceRule | DirectRule

BySelector = Mapping[str, DeviceRule]
"""Rules of the KubeVirt CR, which may be thousands, by each selector: ids, or what a type is called."""
NO_RULES: Final[BySelector] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WantedType:
    """A type to make on a card: its id or its name, and how many on each card (None: as many as fit).

    ``short`` names the last word of the type's name, as NVIDIA's vgpu-device-manager does: "T4-1Q".
    """

    name: Annotated[str, Key("type id or name", name="type")]
    count: Annotated[int | None, Key("how many to make on each card", bounds=(1, 1024))] = None
    short: bool = False


class NodeTypes(NamedTuple):
    """The types for nodes that carry all these labels; no labels at all fit every node."""

    labels: Annotated[
        tuple[tuple[str, str], ...], Key("labels of the node", "label", name="nodeSelector")
    ] = ()
    types: Annotated[tuple[WantedType, ...], Key("types on such a node, in order")] = ()


class CardTypes(NamedTuple):
    """The types for certain GPUs: a place in the list of all GPUs by address, and a filter on their ids.

    ``positions`` None is every GPU. A filter is (vendor, device, subsystem vendor, subsystem device); its
    last two may be None. No filter fits all. No types means that the card is to be empty.
    """

    positions: tuple[int, ...] | None = None
    filters: tuple[tuple[str, str, str | None, str | None], ...] = ()
    types: tuple[WantedType, ...] = ()


class MdevDefinition(NamedTuple):
    """One instance that a definition of mdevctl asks for, by its own UUID."""

    uuid: str
    parent: str
    type_id: str


class MdevSpec(NamedTuple):
    """What the operator wants of mdevs and vendor vGPUs. ``manage`` False: nothing is made or removed.

    On a card, ``definitions`` go before ``cards``, and these before the node's types: those of all
    ``nodes`` that fit, else ``types``. ``excluded`` types are neither made nor removed. What
    others made of a type in ``protected`` stays theirs, also with ``adopt``. ``defined`` are the UUIDs of all
    definitions of mdevctl, also of those that are no wishes here, and ``reserved`` the parents on which
    mdevctl is to make something by itself. ``obstacle``: why ``manage`` is off although it is wanted.
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
    """How many VFs the picked physical functions are to have, and which VFIO driver (None: none by this)."""

    selectors: Annotated[tuple[PciSelector, ...], Key("which functions", name="match")]
    num_vfs: Annotated[int, Key("how many VFs", bounds=(0, 65535), name="numVFs")]
    driver: Annotated[
        str | None, Key("the VFIO driver of the VFs: none of the host's gets them first", "VFIO driver")
    ] = None
    place: str = field(default="", compare=False)


class GroupScope(StrEnum):
    """What of an IOMMU group a rule binds."""

    WHOLE = "whole"
    MATCHED = "matched"


@dataclass(frozen=True, slots=True)
class PassthroughRule:
    """The functions that are to have a VFIO driver. ``group``: with the rest of their IOMMU groups, or alone.

    ``force`` are the addresses of functions that the host itself may lose.
    """

    selectors: Annotated[tuple[PciSelector, ...], Key("which functions", name="match")]
    driver: Annotated[
        str, Key("the VFIO driver to bind them to; vfio-pci if none is given", "VFIO driver")
    ] = VFIO_PCI
    group: Annotated[
        GroupScope, Key("whole: bind all of their IOMMU groups, at once or not at all; matched: them alone")
    ] = GroupScope.WHOLE
    force: Annotated[
        tuple[str, ...],
        Key(
            "addresses of functions that this host may lose although its network or display is on them",
            "PCI address",
        ),
    ] = ()
    place: str = field(default="", compare=False)


class Discovery(NamedTuple):
    """Automatic discovery: which classes, and how a resource is named (``name`` or ``id`` style).

    ``pci_ids`` is the operator's own database of names, "" for none.
    """

    enabled: Annotated[bool, Key("offer VFIO-bound functions without a rule")] = True
    naming: Annotated[
        str,
        Key("name discovered resources after pci.ids, or after vendor and device id", choices=("name", "id")),
    ] = "name"
    prefix: Annotated[
        str, Key('domain of discovered names; "" takes one per vendor, such as nvidia.com', "domain")
    ] = ""
    pci_ids: Annotated[
        str,
        Key(
            "a pci.ids whose names go before those of the bundled copy; the host's own comes last",
            "optional file",
            at_start=True,
        ),
    ] = ""
    classes: Annotated[
        tuple[str, ...],
        Key(
            "PCI classes that are discovered, 2, 4 or 6 digits each; 0680 (NVSwitch) of NVIDIA alone",
            "PCI class",
        ),
    ] = DISCOVERED_CLASSES


class ClusterMode(Enum):
    """Whether the cluster is to be followed: ``AS_POD`` where there is a pod's service account."""

    NO = "no"
    AS_POD = "as a pod"
    YES = "yes"


class Spec(NamedTuple):
    """All that the operator wants of this node; ``labels`` are the node's, by which its types are chosen.

    ``kubevirt_rules`` are those of the ``rules`` that come from the KubeVirt CR. Rules in
    ``virt_handler_rules`` are carried out by virt-handler: discovery leaves their devices to it.
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
        """The device nodes that rules name, and patterns of such; for USB devices their directory."""
        rules = (rule for rule in self.rules if isinstance(rule, NodeRule))
        paths = tuple(dict.fromkeys(entry.path for rule in rules for entry in rule.entries))
        return (*paths, NODES) if any(isinstance(rule, UsbRule) for rule in self.rules) else paths

    @property
    def cdi_kinds(self) -> frozenset[str]:
        """The kinds of CDI devices that rules ask for."""
        return frozenset(rule.spec_kind for rule in self.rules if isinstance(rule, CdiRule))

    @property
    def changes_host(self) -> bool:
        """True if nodeagent is to change anything at all."""
        return self.mdevs.manage or bool(self.sriov) or bool(self.passthrough)
