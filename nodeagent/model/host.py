# SPDX-License-Identifier: Apache-2.0
"""Host: an immutable snapshot of the node's devices, groups, drivers, mdevs and nodes.

Unusable devices are included too, because ``policy`` makes the decisions. An unknown value is None, never 0
or "". ``kernel.scan`` builds it. An object that has not changed is the same object in the next Host, so two
Hosts are compared by identity. A HostUse is a fact; the decision is made in ``policy``.

The number of a USB device on its bus changes with each replug and each reset. A USB device is therefore
identified by its serial number, or by its port if the number is missing or not unique.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain, compress
from operator import is_not
from typing import Annotated, Any, NamedTuple, TypeVar

from nodeagent.model.ids import (
    UUID_LENGTH,
    DeviceId,
    GroupNumber,
    PciAddress,
    mdev_uuid,
    pci_address,
    usb_id,
)
from nodeagent.model.nodes import CdiEntry, CdiFile, DevNode, resolve_cdi_names
from nodeagent.model.plain import LISTED, UNSAVED


class Kind(StrEnum):
    """The kind of a HostDevice and of the devices of a resource; it determines the prefix of the variable."""

    PCI = "pci"
    MDEV = "mdev"
    NODE = "node"
    CDI = "cdi"
    USB = "usb"


class UseKind(StrEnum):
    """The ways in which the host uses one of its own devices."""

    NETWORK = "network"  # an interface that has an address, carries a route, or is part of another interface
    MOUNTED = "mounted"
    SWAP = "swap"
    STACKED = "stacked"  # part of md, LVM or another device mapper that is neither mounted nor used as swap
    POOL = "pool"  # a ZFS pool is imported, and the kernel does not show whether this is one of its disks
    OPEN = "open"  # a process has the disk, or a character device below the function, open
    DISPLAY = "display"  # the firmware uses this display
    KEYBOARD = "keyboard"  # the console reads this keyboard


FIRM = frozenset({UseKind.MOUNTED, UseKind.SWAP, UseKind.OPEN})
"""Uses that ``force`` does not override."""


class HostUse(NamedTuple):
    """One use of a function by the host: ``eth0``, ``default route``."""

    kind: UseKind
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what}, {self.how}"


class HostUses(NamedTuple):
    """The uses of a function by the host that were found, and descriptions of those that cannot be seen.

    If both lists are empty, all uses were checked, and the host does not use the function.
    """

    found: tuple[HostUse, ...] = ()
    unseen: tuple[str, ...] = ()

    def counting(self, forced: bool) -> HostUses:
        """Return the uses that prevent a driver change; with ``forced`` only those that ``force`` cannot
        override.

        A mounted, swap or open disk always counts, because an unbind would lose data or hang.
        """
        return HostUses(tuple(use for use in self.found if use.kind in FIRM)) if forced else self


NODES = "/dev/bus/usb"
"""The directory of USB device nodes; only a scan that includes it reads USB devices."""
_HUB = "09"
_KEYBOARD = "030101"  # a keyboard that the firmware can also use: its boot protocol


class UsbInterface(NamedTuple):
    """An interface of a USB device: class, subclass and protocol ("080650"), and its driver."""

    code: str
    driver: str | None = None


class UsbDevice(NamedTuple):
    """One USB device (kernel Documentation/ABI/testing/sysfs-bus-usb); hubs are devices as well."""

    id: str  # "46f4:0001-<serial>", or "46f4:0001@<path>"
    name: str  # "1-1.2": bus and ports
    # the same relative to the controller, which is stable across reboots: "0000:00:04.0-usb-0:1.2"
    path: str = ""
    bus: int | None = None
    number: int | None = None  # on the bus: it changes with each re-plug
    vendor: str | None = None  # "46f4"
    product: str | None = None  # "0001"
    serial: str | None = None
    text: str | None = None  # the product name that the device reports
    device_class: str | None = None  # "00": the classes are those of its interfaces
    interfaces: tuple[UsbInterface, ...] = ()
    numa_node: int | None = None  # that of its controller
    present: bool = False  # its node exists
    uses: HostUses = HostUses()  # uses by the host itself
    unreadable: str | None = None  # why its other facts are unknown

    @property
    def kind(self) -> Kind:
        """Return Kind.USB."""
        return Kind.USB

    @property
    def group(self) -> GroupNumber | None:
        """Return None (no IOMMU group), since no IOMMU isolates USB devices from each other."""
        return None

    @property
    def driver(self) -> str | None:
        """Return the drivers of the interfaces of the USB device."""
        names = dict.fromkeys(each.driver for each in self.interfaces if each.driver is not None)
        return ", ".join(names) or None

    @property
    def hub(self) -> bool:
        """Return True for a hub, which is never allocated."""
        return self.device_class == _HUB or any(each.code.startswith(_HUB) for each in self.interfaces)

    @property
    def keyboard(self) -> bool:
        """Return True if one of the interfaces of the USB device is a keyboard."""
        return any(each.code == _KEYBOARD for each in self.interfaces)

    @property
    def controller(self) -> PciAddress | None:
        """Return the PCI function of the USB controller; None if the controller is no PCI function, or
        unknown.
        """
        address = self.path.partition("-usb-")[0]
        return PciAddress(address) if pci_address(address) == address else None

    @property
    def node(self) -> str:
        """Return the path of the device node of the USB device."""
        return f"{NODES}/{self.bus or 0:03}/{self.number or 0:03}"

    @property
    def place(self) -> str:
        """Return the bus and the number of the USB device in virt-launcher's format."""
        return f"{self.bus}:{self.number}"


class Loan(NamedTuple):
    """An allocated USB device: id, node, number on the bus, ports, and the previous owner of the node."""

    id: str
    node: str
    place: str
    user: int = 0
    group: int = 0
    name: str = ""  # bus and ports; empty in records of older versions


Loans = Mapping[DeviceId, tuple[Loan, ...]]
"""The USB devices allocated to a pod under each Device id, until the pod releases them."""


K = TypeVar("K")


class Missing(NamedTuple):
    """A missing prerequisite of the host (IOMMU, vfio-pci): the evidence, and the fix for this host."""

    message: str
    hint: str


NO_IOMMU = Missing(
    "no IOMMU is active: /sys/class/iommu is empty",
    "switch it on (VT-d, AMD-Vi, SMMU) in the firmware's setup, on Intel also with intel_iommu=on, "
    "and drain the node and reboot",
)
NO_VFIO = Missing(
    "the driver vfio-pci is not loaded",
    "load vfio-pci on the host: modprobe vfio-pci; "
    "name it in /etc/modules-load.d/vfio-pci.conf for each boot",
)


class Recovery(StrEnum):
    """The result of the recovery of a function after its last PCIe error, which sysfs does not show."""

    RUNNING = "running"  # by an AER event
    FAILED = "failed"  # by an AER event
    UNHEARD = "unheard"  # it began, and no event reported its end
    FALLEN = "fallen"  # its configuration space read as all ones before an Allocate


class Hints(NamedTuple):
    """Facts of one PCI function that take long to read or are rarely needed; only ``explain`` reads them."""

    reset_methods: tuple[str, ...] = ()
    runtime_status: str | None = None
    aer_fatal: int | None = None
    aer_nonfatal: int | None = None


class Sight(NamedTuple):
    """The process that /proc shows to have a function open, and the function's open count at that time.

    ``whole``: every process could be inspected, so no other process has the function open.
    """

    process: str | None = None
    whole: bool = False


class PciFunction(NamedTuple):
    """One PCI function as sysfs shows it (kernel Documentation/ABI/testing/sysfs-bus-pci)."""

    address: PciAddress
    vendor: str | None = None  # "10de"
    device: str | None = None  # "1eb8"
    subsystem_vendor: str | None = None
    subsystem_device: str | None = None
    pci_class: str | None = None  # "030000": class, subclass, programming interface
    driver: str | None = None
    group: GroupNumber | None = None
    numa_node: int | None = None
    enable: int | None = None
    # the lowest ``enable`` in this binding of a VFIO driver; else the count that a host driver left
    idle: int | None = None
    sight: Sight | None = None  # None: /proc was not read
    power_state: str | None = None
    physfn: PciAddress | None = None  # the PF, if this is a VF
    pf_driver: str | None = None  # of the PF
    pf_interfaces: tuple[str, ...] = ()  # names of the PF's network interfaces; of a PF, its own
    vf_number: int | None = None  # 2: the PF lists it as virtfn2
    vfs: tuple[PciAddress, ...] = ()
    vf_numbers: tuple[int, ...] = ()  # of its VFs; () if they are 0, 1, 2, …: s390 adds VFs one by one
    left_behind: bool = False  # a VF whose PF was removed, or was rescanned and does not list it
    sriov_capable: bool = False
    total_vfs: int | None = None  # the maximum number of VFs that its driver supports
    vf_device: str | None = None  # the device id of its VFs: "1889"
    vf_offset: int | None = None  # offset from its routing id to that of its first VF
    vf_stride: int | None = None  # offset from each VF's routing id to the next
    autoprobe: bool | None = None  # host drivers are probed for its VFs; None: the kernel has no such setting
    vfio: bool = False  # a VFIO driver is bound: <function>/vfio-dev exists
    vfio_device: str | None = None  # "vfio3", the name in vfio-dev
    vfio_inode: int | None = None  # inode of vfio-dev/vfioN: a different one means a new binding
    cdev: bool = False  # vfio-dev/vfioN/dev and /dev/vfio/devices/vfioN both exist
    ports: tuple[
        str, ...
    ] = ()  # the names above it in its sysfs path, root bus first: ("pci0000:00", "0000:00:10.0")
    inode: int | None = None  # inode of the device directory: a different one means another device
    recovery: Recovery | None = None
    hints: Hints | None = None
    uses: HostUses | None = None  # uses by the host itself; None: not examined
    unreadable: str | None = None  # why its other facts are unknown
    answers: bool | None = None  # False: its configuration space is all ones; read while it is open and awake
    vgpu: bool = False  # NVIDIA's driver supports vGPU types on it: nvidia/current_vgpu_type exists
    vgpu_type: str | None = None  # the id of the current vGPU type
    vgpu_types: tuple[tuple[str, str], ...] = ()  # (id, name) that nvidia/creatable_vgpu_types offers now
    denylisted: bool = False  # vfio-pci refuses its id: drivers/vfio/pci/vfio_pci.c, disable_denylist is N
    lowest: int | None = None  # without a driver: the lowest ``enable`` under the previous VFIO driver

    @property
    def kind(self) -> Kind:
        """Return Kind.PCI."""
        return Kind.PCI

    @property
    def id(self) -> str:
        """Return the PCI address, which is the id of the function as a Device."""
        return self.address

    @property
    def bridge(self) -> bool:
        """Return True for PCI bridges (class 0604): they never make a group unviable, and are never
        allocated.
        """
        return self.pci_class is not None and self.pci_class.startswith("0604")

    @property
    def usable(self) -> bool:
        """Return True if the host may use the function: it has a host driver, or the firmware uses its
        display.
        """
        display = self.pci_class is not None and self.pci_class.startswith("03")
        return not self.vfio and not self.bridge and (self.driver is not None or display)

    @property
    def pcie_root(self) -> str:
        """Return the root bus and root port above the function: functions below one port share its link."""
        return "/".join(self.ports[:2])


class Group(NamedTuple):
    """An IOMMU group with all its members: PCI addresses and mdev UUIDs, in address order."""

    number: GroupNumber
    members: tuple[str, ...] = ()
    kind: str | None = None  # "DMA", "DMA-FQ", "identity", "unknown" (mdev)
    name: str | None = None  # "vfio-noiommu" for groups without an IOMMU
    node: bool = False  # /dev/vfio/<number> exists
    direct: bool = False  # reserved_regions lists memory that must stay mapped 1:1 for a member
    stale: bool = False  # the node at that path belongs to another device

    @property
    def no_iommu(self) -> bool:
        """Return True if VFIO created this group without an IOMMU."""
        return self.name == "vfio-noiommu"


def differing(before: Mapping[K, object], now: Mapping[K, object]) -> set[K]:
    """Return the keys whose values are different objects, or that only one of the tables has."""
    if before is now:
        return set()
    # runs without a Python step per key
    changed = compress(now, map(is_not, map(before.get, now), now.values()))
    return {*changed, *(before.keys() - now.keys())}


class Mdev(NamedTuple):
    """One mediated device."""

    uuid: str
    parent: str | None = None
    type_id: str | None = None  # "nvidia-222"
    type_name: str | None = None  # content of the type's file "name", if it has one
    driver: str | None = None
    group: GroupNumber | None = None
    numa_node: int | None = None  # of the parent
    vendor: str | None = None  # "10de", of the parent if that is a PCI function
    vfio_device: str | None = None  # "vfio3", as with PCI functions
    cdev: bool = False
    unreadable: str | None = None  # why its other facts are unknown
    leaving: bool = False  # its removal waits for a process; only its group still lists it
    inode: int | None = None  # inode of its directory: a different one means a new mdev with the same UUID

    @property
    def kind(self) -> Kind:
        """Return Kind.MDEV."""
        return Kind.MDEV

    @property
    def id(self) -> str:
        """Return the UUID, which is the id of the mdev as a Device."""
        return self.uuid


VfioDevice = PciFunction | Mdev
"""A device that VFIO can assign to a VM: it has a group and a driver, and may have its own node."""

HostDevice = VfioDevice | UsbDevice
"""The hardware of a Device. All kinds have: kind, id, group, driver, vendor, numa_node, unreadable."""

_PARSE_ID: Mapping[Kind, Callable[[str], str | None]] = {
    Kind.PCI: pci_address,
    Kind.MDEV: mdev_uuid,
    Kind.USB: usb_id,
}


def kind_of_id(device_id: str) -> Kind | None:
    """Return the kind of HostDevice whose ids have this form; None if there is none."""
    return next((kind for kind, parse in _PARSE_ID.items() if parse(device_id) is not None), None)


class MdevType(NamedTuple):
    """One type that an mdev parent offers."""

    type_id: str
    name: str | None = None
    available: int | None = None


class Changes(NamedTuple):
    """The difference from the previous Host: the keys that were added, replaced or removed."""

    functions: frozenset[PciAddress] = frozenset()
    groups: frozenset[GroupNumber] = frozenset()
    mdevs: frozenset[str] = frozenset()
    usb: frozenset[str] = frozenset()

    @property
    def devices(self) -> Iterator[str]:
        """Yield the ids of all devices that were added, replaced or removed."""
        return chain(self.functions, self.mdevs, self.usb)


@dataclass(frozen=True)  # without slots, which leave no room for a cached property
class Host:
    """The devices and the state of the whole host at one moment.

    ``generation`` counts the Hosts of one scanner, and ``changes`` is the difference from the previous one,
    so that readers need not compare the two. ``generation`` and ``changes`` do not describe the node, so
    ``==`` ignores both.
    """

    functions: Annotated[Mapping[PciAddress, PciFunction], LISTED] = field(default_factory=dict)
    groups: Annotated[Mapping[GroupNumber, Group], LISTED] = field(default_factory=dict)
    mdevs: Annotated[Mapping[str, Mdev], LISTED] = field(default_factory=dict)
    mdev_parents: Mapping[str, tuple[MdevType, ...]] = field(default_factory=dict)
    # by id; empty without a rule for USB devices
    usb: Annotated[Mapping[str, UsbDevice], LISTED] = field(default_factory=dict)
    nodes: frozenset[str] = frozenset()  # watched device nodes that exist: "/dev/vfio/vfio", "/dev/kvm", …
    # device nodes of rules, including matches of patterns
    dev_nodes: Annotated[Mapping[str, DevNode], LISTED] = field(default_factory=dict)
    # by path, for the kinds that rules name
    cdi: Annotated[Mapping[str, CdiFile], LISTED] = field(default_factory=dict)
    numa_nodes: frozenset[int] = frozenset()  # the NUMA nodes of the host
    iommu: bool = False  # an IOMMU is active: /sys/class/iommu has an entry
    vtd: bool = False  # the IOMMU is Intel's: an entry is called dmar0
    vfio_loaded: bool = False  # /sys/bus/pci/drivers/vfio-pci exists
    sriov_manage: bool = False  # NVIDIA's tool that creates VFs of its GPUs is installed
    egm: tuple[tuple[str, tuple[PciAddress, ...]], ...] = ()  # /dev/egm4, and all GPUs of its socket
    release: str | None = None  # the kernel's version, if the tree contains it
    iommu_missing: Missing | None = None  # why no IOMMU is active
    vfio_missing: Missing | None = None  # why vfio-pci is missing
    # functions with the firmware's framebuffer in their memory
    boot_framebuffers: tuple[tuple[PciAddress, str], ...] = ()
    generation: Annotated[int, UNSAVED] = field(default=0, compare=False)
    changes: Annotated[Changes | None, UNSAVED] = field(default=None, compare=False)

    @cached_property
    def tables(self) -> Mapping[Kind, Mapping[Any, HostDevice]]:
        """Return the HostDevices by kind and id; a new kind needs a row here, a field, and a field of
        Changes.
        """
        return {Kind.PCI: self.functions, Kind.MDEV: self.mdevs, Kind.USB: self.usb}

    @property
    def no_iommu(self) -> Missing | None:
        """Return why no IOMMU is active; None if one is."""
        return None if self.iommu else self.iommu_missing or NO_IOMMU

    @property
    def no_vfio(self) -> Missing | None:
        """Return why the driver vfio-pci is missing; None if it is loaded."""
        return None if self.vfio_loaded else self.vfio_missing or NO_VFIO

    def changes_since(self, before: Host) -> Changes:
        """Return the difference from ``before``; this is fast if ``before`` is the directly previous Host."""
        if self is before:
            return Changes()
        if self.changes is not None and self.generation == before.generation + 1:
            return self.changes
        tables = ((getattr(before, name), getattr(self, name)) for name in Changes._fields)
        return Changes(*(frozenset(differing(old, new)) for old, new in tables))

    def with_uses(self, uses: Mapping[PciAddress, HostUses | None], before: Host) -> Host:
        """Return the Host with these uses of functions; ``before`` is the directly previous Host.

        Returns the same object if all of these uses are unchanged.
        """
        changed = {
            address: self.functions[address]._replace(uses=found)
            for address, found in uses.items()
            if address in self.functions and self.functions[address].uses != found
        }
        if not changed:
            return self
        changes = self.changes_since(before)
        return replace(
            self,
            functions={**self.functions, **changed},
            generation=before.generation + 1,
            changes=changes._replace(functions=changes.functions | changed.keys()),
        )

    @cached_property
    def leaving(self) -> Mapping[str, Mdev]:
        """Return the mdevs that only their groups list: their removal waits until a process closes them.

        This is computed on first use for all groups, because most Hosts do not need it.
        """
        return {
            member: Mdev(member, group=group.number, leaving=True)
            for group in self.groups.values()
            for member in group.members
            if member not in self.mdevs and member not in self.functions and mdev_uuid(member) is not None
        }

    @cached_property
    def cdi_entries(self) -> Mapping[str, CdiEntry]:
        """Return the CDI devices by qualified name; computed on first use, because most nodes have no CDI
        rule.
        """
        return resolve_cdi_names(self.cdi)

    @cached_property
    def usb_names(self) -> Mapping[str, UsbDevice]:
        """Return USB devices except hubs by bus and ports; computed on first use, as most nodes have no USB
        rule.
        """
        return {each.name: each for each in self.usb.values() if not each.hub}

    def devices(self) -> Iterator[HostDevice]:
        """Yield all devices, except mdevs that are being removed."""
        return chain.from_iterable(table.values() for table in self.tables.values())

    def device(self, device_id: str) -> HostDevice | None:
        """Return the device with that address or UUID, also an mdev that is being removed; None if there is
        none.
        """
        for table in self.tables.values():
            if (present := table.get(device_id)) is not None:
                return present
        if not self.groups or mdev_uuid(device_id) is None:
            return None
        return self.leaving.get(device_id)

    def devices_of(self, ids: frozenset[str]) -> Iterator[HostDevice]:
        """Yield the devices with these ids; most ids may be those of other device plugins."""
        found = {each for table in self.tables.values() for each in ids & table.keys()}
        found.update(each for each in ids if len(each) == UUID_LENGTH)  # an mdev that is being removed
        yield from filter(None, map(self.device, found))

    def devices_in(self, number: GroupNumber | None) -> tuple[HostDevice, ...]:
        """Return the functions and mdevs of a group."""
        group = self.groups.get(number) if number is not None else None
        if group is None:
            return ()
        devices = map(self.device, group.members)
        return tuple([host_device for host_device in devices if host_device is not None])

    def members(self, number: GroupNumber | None) -> tuple[PciFunction, ...]:
        """Return the known PCI functions of a group; () for None."""
        group = self.groups.get(number) if number is not None else None
        if group is None:
            return ()
        functions = (self.functions.get(PciAddress(member)) for member in group.members)
        return tuple(function for function in functions if function is not None)
