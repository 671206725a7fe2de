# SPDX-License-Identifier: Apache-2.0
"""Snapshot: all inputs of decisions at one moment, as one frozen value.

The daemon, ``scan``, ``plan`` and ``explain`` decide from a Snapshot with the same functions. The parts of a
Snapshot are immutable, and a part that has not changed is the same object in the next Snapshot, so a
comparison of object identities finds the changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from nodeagent.model.allocation import Allocations, Holder, Reservations, ResourceDevice
from nodeagent.model.change import Ledger
from nodeagent.model.claim import Claim
from nodeagent.model.host import Host, Loans
from nodeagent.model.ids import GroupNumber, PciAddress
from nodeagent.model.nodes import DevNode, fits, is_node_path, of_groups
from nodeagent.model.spec import Spec

Names = Mapping[str, str]
"""Names that are not in sysfs: ``"10de"`` → vendor, ``"10de:1eb8"`` → device, ``"vgpu:1147"`` → type."""


class AllocatedDevice(NamedTuple):
    """The name of a USB device, device node or CDI device, and the pod that uses it, if the kubelet has
    reported one.
    """

    name: str
    holder: Holder | None


@dataclass(frozen=True)  # without slots, which leave no room for a cached property
class Snapshot:
    """All inputs of all decisions.

    ``open`` has the UUIDs of mdevs and the addresses of VFs that a process of the host has open or may have
    open. ``failures`` are the kernel's errors for changes that failed and will be retried. ``machine_id`` is
    "" if unknown. ``unplugged`` are the ids and IOMMU groups of devices that left the host while a pod used
    them. ``scanned_nodes`` are the device nodes that the scan looks for in addition to VFIO's device nodes;
    None means all device nodes that rules name. ``loans`` are the USB devices allocated to pods, with their
    bus device numbers at the allocation. ``recently_allocated`` are PCI functions of which a device node or
    USB device was just allocated. ``unwanted`` are ids that a waiting change removes or binds to another
    driver when they are no longer in use. ``claims`` are the prepared claims of DRA, by uid; ``allocations``
    contains their devices. ``in_slices`` are the ids of the Devices that ResourceSlices of this node contain.
    """

    host: Host = field(default_factory=Host)
    spec: Spec = field(default_factory=Spec)
    names: Names = field(default_factory=dict)
    allocations: Allocations = field(default_factory=Allocations)
    reservations: Reservations = field(default_factory=Reservations)
    open: frozenset[str] = frozenset()
    ledger: Ledger = field(default_factory=Ledger)
    failures: Mapping[str, str] = field(default_factory=dict)
    machine_id: str = ""
    unplugged: frozenset[tuple[str, GroupNumber]] = frozenset()
    scanned_nodes: frozenset[str] | None = None
    loans: Loans = field(default_factory=dict)
    recently_allocated: frozenset[str] = frozenset()
    unwanted: frozenset[str] = frozenset()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    in_slices: frozenset[str] = frozenset()

    @property
    def rule_nodes_scanned(self) -> bool:
        """Return True if the Host shows for every device node that a rule names whether it exists."""
        return self.scanned_nodes is None or self.scanned_nodes.issuperset(self.spec.node_paths)

    @cached_property
    def allocated_nodes_beyond_rules(self) -> tuple[str, ...]:
        """Return the allocated device nodes that are neither VFIO's nor named by a rule; computed on first
        use.
        """
        wanted = self.spec.node_paths
        return tuple(path for path in self.allocated_nodes if not any(fits(path, each) for each in wanted))

    @cached_property
    def allocated_nodes(self) -> tuple[str, ...]:
        """Return the allocated device nodes, under any resource name, except VFIO's device nodes."""
        found = sorted({path for _, paths in self._allocated() for path in paths})
        return tuple(path for path in found if is_node_path(path) and not of_groups(path))

    @cached_property
    def unknown_node(self) -> AllocatedDevice | None:
        """Return an allocated device node whose PCI function is unknown, for example because the device node
        does not exist; None if there is none.
        """
        nodes, usb = self.host.dev_nodes, {each.node for each in self.host.usb.values()}
        given = ((used, path) for used, paths in self._allocated() for path in paths)
        nothing_tells = (
            AllocatedDevice(path, used.holder)
            for used, path in given
            if is_node_path(path)
            and not of_groups(path)
            and path not in usb
            and _is_unplaced(nodes.get(path))
        )
        return next(nothing_tells, None)

    @cached_property
    def unidentified_device(self) -> ResourceDevice | None:
        """Return an allocated device id that is not on this host and whose device nodes are unknown; None if
        there is none.
        """
        found = (each for each in self.allocations.not_in_checkpoint() if self.host.device(each[1]) is None)
        return next(found, None)

    @cached_property
    def functions_in_use(self) -> Mapping[PciAddress, AllocatedDevice]:
        """Return the PCI functions whose USB device, device node or CDI device a pod uses, each with one of
        these devices.

        The kubelet stores the responses of all Allocate calls, of every plugin and regardless of current
        rules. Computed on first use.
        """
        usb = self.host.usb
        found: dict[PciAddress, AllocatedDevice] = {}
        for used, paths in self._allocated():
            found |= dict.fromkeys(chain.from_iterable(map(self._behind, paths)), used)
        lent = {loan.id: head for head, loans in self.loans.items() for loan in loans}
        for device in usb.values() if self.loans or self.allocations.holders else ():
            holder = self.holder(lent.get(device.id, device.id))
            if device.controller and (holder is not None or device.id in lent):
                found[device.controller] = AllocatedDevice(device.id, holder)
        return found

    def _behind(self, path: str) -> frozenset[PciAddress]:
        """Return the PCI functions of a device node."""
        return placed(self.host.dev_nodes.get(path)) or frozenset()

    def _allocated(self) -> Iterator[tuple[AllocatedDevice, tuple[str, ...]]]:
        """Yield the devices allocated to pods, with the device nodes of each."""
        allocations = self.allocations
        for head, loans in self.loans.items():
            yield from ((AllocatedDevice(loan.id, self.holder(head)), (loan.node,)) for loan in loans)
        for resource, ids in allocations.nodes.items():
            for device_id, paths in ids.items():
                holder = allocations.holder_of(resource, device_id)
                yield from ((AllocatedDevice(path, holder), (path,)) for path in paths)
        yield from ((used, self.nodes_of(used)) for used in self.allocated_cdi)

    @cached_property
    def allocated_cdi(self) -> tuple[AllocatedDevice, ...]:
        """Return the CDI devices allocated to pods."""
        found = (
            AllocatedDevice(name, self.allocations.holder_of(resource, device_id))
            for resource, ids in self.allocations.cdi.items()
            for device_id, names in ids.items()
            for name in names
        )
        return tuple(dict.fromkeys(found))

    def nodes_of(self, used: AllocatedDevice) -> tuple[str, ...]:
        """Return the device nodes that the current CDI file lists for an allocated CDI device."""
        entry = self.host.cdi_entries.get(used.name)
        return entry.device.paths if entry is not None else ()

    @cached_property
    def unknown_cdi_device(self) -> AllocatedDevice | None:
        """Return an allocated CDI device that no CDI file defines now, if a rule names its CDI kind; None if
        there is none.
        """
        kinds, known = self.spec.cdi_kinds, self.host.cdi_entries
        ours = (used for used in self.allocated_cdi if used.name.partition("=")[0] in kinds)
        return next((used for used in ours if used.name not in known), None)

    @property
    def allocated_nodes_scanned(self) -> bool:
        """Return True if the scan of the Host included all allocated device nodes."""
        return self.scanned_nodes is None or self.scanned_nodes.issuperset(self.allocated_nodes_beyond_rules)

    def holder(self, device_id: str) -> Holder | None:
        """Return the pod that uses a device; a pending allocation takes precedence over the kubelet's older
        answer.
        """
        return self.reservations.pending.get(device_id) or self.allocations.holder(device_id)

    def held(self) -> Iterator[tuple[str, Holder]]:
        """Yield all device ids in use with their pods, from the kubelet's answer and from later Allocate
        calls.
        """
        return chain(self.allocations.held(), self.reservations.pending.items())


def _is_unplaced(node: DevNode | None) -> bool:
    """Return True if the PCI functions of the device node are not known for certain."""
    return node is None or node.vacant or node.guessed


def placed(node: DevNode | None) -> frozenset[PciAddress] | None:
    """Return the PCI functions of a device node; None if it does not exist, or no device has its number."""
    return None if node is None or node.vacant else frozenset(node.functions)
