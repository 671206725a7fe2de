# SPDX-License-Identifier: Apache-2.0
"""One unit of decision (an IOMMU group): the offers of its devices, with their resources and health. Pure.

A unit is an IOMMU group, or a single device without a group. The offers of a unit depend only on that unit,
so only changed units are decided again, and the offers of all others are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from nodeagent.model.allocation import Holder
from nodeagent.model.host import Group, Host, HostDevice, Loans, Mdev, MdevType, PciFunction, UsbDevice
from nodeagent.model.ids import DeviceId, GroupNumber, PciAddress, ResourceName, pci_order
from nodeagent.model.resource import Device, Isolation
from nodeagent.model.snapshot import Snapshot
from nodeagent.model.spec import GroupScope, MdevSpec, Spec, UsbRule
from nodeagent.policy import groups, selectors
from nodeagent.policy.offer import kinds, matches
from nodeagent.policy.offer.health import Unit, Use
from nodeagent.policy.offer.matches import Match

UnitId = GroupNumber | str
"""The key of a unit: a group, the id of a device without a group, or ``USB`` for all USB devices."""
USB: UnitId = "usb"

_Matched = tuple[HostDevice, Match]
NO_MATCHES: Mapping[str, Match] = {}
NO_LOANS: Loans = {}


class Offer(NamedTuple):
    """A Device of a resource, and its HostDevices with their matches (several with ``isolation: bundle``)."""

    matches: tuple[Match, ...]
    device: Device
    host_devices: tuple[str, ...]

    @property
    def match(self) -> Match:
        """The match of the first HostDevice; all HostDevices of an offer have the same resource and rule."""
        return self.matches[0]


def find_unit_id(host_device: HostDevice) -> UnitId:
    """The unit (IOMMU group) with which the health of a device is decided."""
    if isinstance(host_device, UsbDevice):
        return USB
    return host_device.id if host_device.group is None else host_device.group


def find_unit_ids(host: Host) -> dict[UnitId, None]:
    """All units of a host, in the order of the devices; groups without a known device come last."""
    return {find_unit_id(each): None for each in host.devices()} | dict.fromkeys(host.groups)


def build_offers(
    unit_id: UnitId, snapshot: Snapshot, matched: Mapping[str, Match] = NO_MATCHES
) -> tuple[Offer, ...]:
    """The offers of one unit, in address order; a device that no rule matches now keeps its former match."""
    unit = build_unit(unit_id, snapshot)
    if unit_id == USB:
        return _build_usb_offers(unit, snapshot)
    pairs: list[_Matched] = []
    for host_device in unit.devices:
        match = matches.find_match(host_device, unit.group, snapshot.spec, snapshot.names)
        match = match or matched.get(host_device.id)
        if match is not None:
            pairs.append((host_device, match))
    return _build_offers(pairs, unit, snapshot)


def update_health(unit_id: UnitId, snapshot: Snapshot, matched: Mapping[str, Match]) -> tuple[Offer, ...]:
    """The offers of a unit whose devices have not changed; only their health is decided again."""
    unit = build_unit(unit_id, snapshot)
    if unit_id == USB:  # allocated sets are kept, so their pods matter
        return _build_usb_offers(unit, snapshot)
    pairs = [(each, matched[each.id]) for each in unit.devices if each.id in matched]
    return _build_offers(pairs, unit, snapshot)


def _build_usb_offers(unit: Unit, snapshot: Snapshot) -> tuple[Offer, ...]:
    from nodeagent.policy.offer import usb_sets  # here: most nodes have no rule for USB devices

    unit = unit._replace(in_containers=usb_sets.find_in_containers(snapshot))
    devices = [each for each in unit.devices if isinstance(each, UsbDevice)]
    return tuple(
        _build_offer([(each, match) for each in members], unit, snapshot)
        for members, match in usb_sets.find_matches(devices, snapshot, unit.in_containers)
    )


def _build_offers(pairs: Sequence[_Matched], unit: Unit, snapshot: Snapshot) -> tuple[Offer, ...]:
    offers: list[Offer] = []
    bundles: dict[ResourceName, list[_Matched]] = {}
    for each in pairs:
        match = each[1]
        if match.rule.isolation is Isolation.BUNDLE:
            bundles.setdefault(match.resource, []).append(each)
        else:
            offers.append(_build_offer([each], unit, snapshot))
    return (*offers, *(_build_offer(bundle, unit, snapshot) for bundle in bundles.values()))


def build_unit(unit_id: UnitId, snapshot: Snapshot) -> Unit:
    """The unit, with all data on which the health of its devices depends."""
    host, allocations, reservations = snapshot.host, snapshot.allocations, snapshot.reservations
    group = None if isinstance(unit_id, str) else host.groups.get(unit_id)
    devices = _find_devices(unit_id, group, host)
    marked = allocations.table or reservations.pending or reservations.withdrawn or snapshot.unwanted
    marked = marked or snapshot.in_slices
    ids = _list_ids(group, devices) if marked else ()
    functions = tuple([each for each in devices if isinstance(each, PciFunction)])
    vfs = _find_vfs(functions, host)
    loans = snapshot.loans if unit_id == USB else NO_LOANS
    return Unit(
        group=group,
        devices=devices,
        functions=functions,
        holders=_find_holders((*_with_unplugged(ids, group, snapshot), *loans), snapshot),
        complete=allocations.complete,
        admitting=reservations.admitting.intersection(ids),
        withdrawn=reservations.withdrawn.intersection(ids),
        unwanted=snapshot.unwanted.intersection(ids),
        in_slices=snapshot.in_slices.intersection(ids),
        vfs=vfs,
        vf_holders=_find_holders((each.address for each in vfs), snapshot),
        mdevs=_count_mdevs(functions, host),
        nodes=host.nodes,
        no_iommu=host.no_iommu,
        no_vfio=None if host.vfio_loaded else host.vfio_missing,
        ruled=_find_ruled(functions, snapshot.spec) if snapshot.spec.passthrough else frozenset(),
        split=_find_split(functions, snapshot),
        boot_framebuffers=host.boot_framebuffers,
        firmware=groups.is_kept_by_firmware(group, host),
        loans=loans,
    )


def _find_vfs(functions: Iterable[PciFunction], host: Host) -> tuple[PciFunction, ...]:
    """The VFs of PFs that are on a VFIO driver: such a PF and its VFs cannot be in use at the same time."""
    addresses = (vf for each in functions if each.vfs and groups.is_vfio_bound(each) for vf in each.vfs)
    return tuple([host.functions[address] for address in addresses if address in host.functions])


def _count_mdevs(functions: Iterable[PciFunction], host: Host) -> Mapping[str, int]:
    """The number of mdevs on each function with a host driver: unbinding it would remove them."""
    splitting = [each.address for each in functions if _is_on_host_driver(each)] if host.mdevs else []
    counts = ((parent, sum(mdev.parent == parent for mdev in host.mdevs.values())) for parent in splitting)
    return {parent: count for parent, count in counts if count}


def _find_ruled(functions: Iterable[PciFunction], spec: Spec) -> frozenset[str]:
    """The functions that passthrough rules select, and the rest of a group that a rule binds as a whole."""
    members, ruled = list(functions), set[str]()
    for rule in spec.passthrough:
        selected = [
            each.address
            for each in members
            if any(selectors.is_match(selector, each, selectors.NO_NAMES) for selector in rule.selectors)
        ]
        if selected and rule.group is GroupScope.WHOLE:
            return frozenset(each.address for each in members)
        ruled.update(selected)
    return frozenset(ruled)


def _find_split(functions: Iterable[PciFunction], snapshot: Snapshot) -> frozenset[str]:
    """The PCI functions for vGPUs: parents of desired types, and functions with VFs on NVIDIA's driver."""
    parents, mdevs = snapshot.host.mdev_parents, snapshot.spec.mdevs
    return frozenset(
        each.address
        for each in functions
        if (mdevs.manage and any(_is_desired(offered, mdevs) for offered in parents.get(each.address, ())))
        or (each.vfs and each.driver == groups.VENDOR_DRIVER)
    )


def _is_desired(mdev_type: MdevType, mdevs: MdevSpec) -> bool:
    """True if a configured list of vGPU types, for any node or card, names this type."""
    lists = (mdevs.types, *(node.types for node in mdevs.nodes), *(card.types for card in mdevs.cards))
    listed = any(selectors.is_type_match(each, mdev_type) for types in lists for each in types)
    return listed or any(each.type_id == mdev_type.type_id for each in mdevs.definitions)


def _is_on_host_driver(function: PciFunction) -> bool:
    return function.driver is not None and not groups.is_vfio_bound(function)


def find_dependents(host_device: HostDevice, host: Host) -> Iterator[UnitId]:
    """The units whose health depends on a device: the units of the device, its parent, and its PF on VFIO."""
    yield find_unit_id(host_device)
    if isinstance(host_device, Mdev):
        parent = host.functions.get(PciAddress(host_device.parent or ""))
        if parent is not None and _is_on_host_driver(parent):
            yield find_unit_id(parent)
    if isinstance(host_device, PciFunction) and host_device.physfn is not None:
        physical = host.functions.get(host_device.physfn)
        if physical is not None and groups.is_vfio_bound(physical):
            yield find_unit_id(physical)


def find_holders(unit_id: UnitId, snapshot: Snapshot) -> dict[str, Holder]:
    """The pods that use devices of a unit, by device id."""
    group = None if isinstance(unit_id, str) else snapshot.host.groups.get(unit_id)
    ids = find_ids(unit_id, snapshot.host) if group is None else _list_ids(group, ())
    return _find_holders(_with_unplugged(ids, group, snapshot), snapshot)


def _with_unplugged(ids: tuple[str, ...], group: Group | None, snapshot: Snapshot) -> tuple[str, ...]:
    """The ids of the unit's devices and of unplugged devices, whose pods may still have the group open."""
    if group is None or not snapshot.unplugged:
        return ids
    return (*ids, *(each for each, number in snapshot.unplugged if number == group.number))


def _find_holders(ids: Iterable[str], snapshot: Snapshot) -> dict[str, Holder]:
    holders = ((each, snapshot.holder(each)) for each in ids)
    return {each: holder for each, holder in holders if holder is not None}


def find_ids(unit_id: UnitId, host: Host) -> tuple[str, ...]:
    """The ids of all devices of a unit, of devices of its group that could not be read, and of the group."""
    group = None if isinstance(unit_id, str) else host.groups.get(unit_id)
    return _list_ids(group, _find_devices(unit_id, group, host))


def _list_ids(group: Group | None, devices: Iterable[HostDevice]) -> tuple[str, ...]:
    if group is None:
        return tuple(each.id for each in devices)
    return (*group.members, groups.whole_group_id(group.number))


def _find_devices(unit_id: UnitId, group: Group | None, host: Host) -> tuple[HostDevice, ...]:
    """The devices of a unit; if its IOMMU group cannot be read, the devices with a link to the group."""
    if group is not None:
        return host.devices_in(group.number)
    if not isinstance(unit_id, str):
        return tuple(each for each in host.devices() if each.group == unit_id)
    if unit_id == USB:
        return tuple(host.usb.values())
    host_device = host.device(unit_id)
    if host_device is None or host_device.group is not None:  # it belongs to a group now
        return ()
    return (host_device,)


def _build_offer(pairs: Sequence[_Matched], unit: Unit, snapshot: Snapshot) -> Offer:
    ids = tuple(host_device.id for host_device, _ in pairs)
    first = pairs[0][0]
    reasons = (kinds.find_reason(host_device, unit, _build_use(match, ids)) for host_device, match in pairs)
    device = Device(
        id=DeviceId(first.id),
        reason=next((reason for reason in reasons if reason is not None), None),
        numa=find_numa(first, snapshot),
    )
    return Offer(tuple(match for _, match in pairs), device, ids)


def _build_use(match: Match, ids: tuple[str, ...]) -> Use:
    rule = match.rule
    force = rule.force if isinstance(rule, UsbRule) else ()
    return Use(
        rule.isolation, rule.iommufd, match.resource, ids, match.type_id, match.unnamed, force, rule.via
    )


def find_numa(host_device: HostDevice, snapshot: Snapshot) -> int | None:
    """The NUMA node to report to the kubelet; for an mdev that is being removed, the one reported before."""
    if isinstance(host_device, Mdev) and host_device.leaving:
        holder = snapshot.holder(host_device.uuid)
        return holder.numa if holder is not None else None
    return find_announced_numa(host_device.numa_node, snapshot.host.numa_nodes)


def find_announced_numa(node: int | None, present: frozenset[int]) -> int | None:
    """The NUMA node to report; None if the host does not have it, as a wrong one makes pods unschedulable."""
    return node if node is not None and node in present else None


def sort_devices(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices in the order in which they are listed to the kubelet: by address, each id once."""
    unique = {device.id: device for device in devices}
    return tuple(sorted(unique.values(), key=lambda device: pci_order(device.id)))
