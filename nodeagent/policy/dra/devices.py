# SPDX-License-Identifier: Apache-2.0
"""The devices of this node as DRA names them: a name, the parts, and the attributes for selectors. Pure.

An offered Device becomes one device of a ResourceSlice: ``pci-0000-65-00-0``, ``mdev-<uuid>``, or
``board-0000-65-00-0`` for all matching functions of an IOMMU group. With ``isolation: bundle`` there is the
board only. With ``isolation: group``, a group with several offered Devices has a board in addition, so that
one claim can get all of them.

``slices`` publishes these devices, ``claims`` finds a device by the name in an allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, NamedTuple

from nodeagent.model.host import HostDevice, Mdev, PciFunction
from nodeagent.model.ids import GroupNumber, PciAddress, ResourceName, mdev_uuid, pci_address, pci_order
from nodeagent.model.nodes import IOMMUFD_NODE
from nodeagent.model.resource import Iommufd, Isolation, Reason, ReasonCode, Via
from nodeagent.model.snapshot import Snapshot
from nodeagent.policy import groups
from nodeagent.policy.offer import kinds, units
from nodeagent.policy.offer.turn import Decision
from nodeagent.policy.offer.units import Offer, UnitId

MAX_TEXT = 64  # bytes of a string attribute
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
NUMA_NODE = "resource.kubernetes.io/numaNode"
MDEV_UUID = "mdevUUID"  # without a domain, as KubeVirt reads it (pkg/dra/utils.go)
NO_GROUP = -1

Attributes = Mapping[str, Mapping[str, Any]]
"""Attributes by name, as in the API: ``{"kind": {"string": "pci"}}``."""


class DraDevice(NamedTuple):
    """A device of this node that is offered by DRA.

    ``parts`` are the ids of its HostDevices, the first one is the lead; ``device_id`` is the id of the lead's
    offer. ``shares_group``: other devices contain parts of the same IOMMU group, and a claim may have only
    one of these devices.
    """

    name: str
    resource: ResourceName
    device_id: str
    parts: tuple[str, ...]
    unit: UnitId
    isolation: Isolation = Isolation.GROUP
    iommufd: Iommufd = Iommufd.NEVER
    reason: Reason | None = None
    shares_group: bool = False

    @property
    def is_board(self) -> bool:
        """True if the device stands for all matching functions of its IOMMU group."""
        return self.name.startswith("board-")


def list_devices(decision: Decision) -> list[tuple[DraDevice, ...]]:
    """All devices by IOMMU group, in address order; a board is the last of its group."""
    found = (_find_unit_devices(unit, decision) for unit in decision.offers)
    return sorted(filter(None, found), key=lambda devices: pci_order(devices[0].device_id))


def find_device(name: str, decision: Decision) -> DraDevice | None:
    """The device with that name; None if it is not offered by DRA now."""
    host_device = decision.snapshot.host.device(find_lead_id(name))
    if host_device is None:
        return None
    devices = _find_unit_devices(units.find_unit_id(host_device), decision)
    return next((device for device in devices if device.name == name), None)


def _find_unit_devices(unit: UnitId, decision: Decision) -> tuple[DraDevice, ...]:
    """The devices of one unit: one for each offer, and the board if the offers share an IOMMU group."""
    offers = [each for each in decision.offers.get(unit, ()) if each.match.rule.via is Via.DRA]
    offers.sort(key=lambda each: pci_order(each.device.id))
    isolated = [each for each in offers if each.match.rule.isolation is not Isolation.NONE]
    sharing = isolated if len(isolated) > 1 else []
    devices = [_build_device(each, unit, shares_group=each in sharing) for each in offers]
    if sharing and all(each.match.rule.isolation is Isolation.GROUP for each in sharing):
        devices.append(_build_board(sharing, unit))
    return tuple(devices)


def device_name(device_id: str, *, board: bool = False) -> str:
    """The name for a function or an mdev, or for the board with that lead: a DNS label."""
    kind = "board" if board else "mdev" if mdev_uuid(device_id) else "pci"
    return f"{kind}-{device_id.replace(':', '-').replace('.', '-')}"


def build_attributes(
    parts: Iterable[str], resource: ResourceName, iommufd: Iommufd, snapshot: Snapshot, *, board: bool
) -> dict[str, dict[str, Any]]:
    """The attributes of a device: those of its first part, whose unknown values are "" or -1.

    Each device has the attributes without a domain up to ``iommufd``, because CEL stops the allocation of a
    pod at an attribute that a device lacks.
    """
    host = snapshot.host
    found = [each for each in map(host.device, parts) if each is not None]
    lead = found[0] if found else None
    function = _find_function(lead, snapshot)
    group = None if lead is None else lead.group
    cdev = isinstance(lead, (PciFunction, Mdev)) and lead.cdev and IOMMUFD_NODE in host.nodes
    text = "" if lead is None else kinds.find_kind(lead).text(lead, snapshot.names) or ""
    result: dict[str, dict[str, Any]] = {
        "kind": _string("board" if board else _kind_of(lead)),
        "resource": _string(resource[-MAX_TEXT:]),
        "vendor": _string("" if lead is None else lead.vendor or ""),
        "device": _string(function.device or "" if function else ""),
        "class": _string(function.pci_class or "" if function else ""),
        "productName": _string(text),
        "driver": _string("" if lead is None else lead.driver or ""),
        "iommuGroup": {"int": NO_GROUP if group is None else group},
        "groupSize": {"int": _count_members(group, snapshot)},
        "functions": {"int": max(len(found), 1)},
        "card": _string(function.physfn or function.address if function else ""),
        "iommufd": {"bool": iommufd is not Iommufd.NEVER and cdev},
    }
    numa = None if lead is None else units.find_announced_numa(lead.numa_node, host.numa_nodes)
    if numa is not None:  # never -1: the standard attribute is missing if the node is unknown
        result[NUMA_NODE] = {"int": numa}
    if function is not None and function.ports:
        result[PCIE_ROOT] = _string(function.ports[0])
    return result | (_pci_attributes(lead) if isinstance(lead, PciFunction) else _mdev_attributes(lead))


def _pci_attributes(function: PciFunction) -> dict[str, dict[str, Any]]:
    texts = {
        PCI_BUS_ID: function.address,
        "subvendor": function.subsystem_vendor,
        "subdevice": function.subsystem_device,
    }
    numbers = {"vfIndex": function.vf_number}
    vgpu = groups.find_vgpu_type(function)
    if vgpu is not None and vgpu.isdecimal():
        numbers["vgpuType"] = int(vgpu)
    return {name: _string(value) for name, value in texts.items() if value} | {
        name: {"int": value} for name, value in numbers.items() if value is not None
    }


def _mdev_attributes(mdev: HostDevice | None) -> dict[str, dict[str, Any]]:
    """The attributes of an mdev; it has no PCI address of its own, only its parent has one."""
    if not isinstance(mdev, Mdev):
        return {}
    texts = {MDEV_UUID: mdev.uuid, "mdevType": mdev.type_id, "mdevTypeName": mdev.type_name}
    return {name: _string(value) for name, value in texts.items() if value}


def _build_device(offer: Offer, unit: UnitId, *, shares_group: bool) -> DraDevice:
    rule, device = offer.match.rule, offer.device
    return DraDevice(
        device_name(device.id, board=rule.isolation is Isolation.BUNDLE),
        offer.match.resource,
        device.id,
        offer.host_devices,
        unit,
        rule.isolation,
        rule.iommufd,
        device.reason,
        shares_group,
    )


def _build_board(offers: list[Offer], unit: UnitId) -> DraDevice:
    """The board of a group with several offers; it has the resource and the options of its lead."""
    lead = _build_device(offers[0], unit, shares_group=True)
    reasons = [each.device.reason for each in offers if each.device.reason is not None]
    reasons.sort(key=lambda reason: reason.code is ReasonCode.GROUP_HELD)  # which a claim of the board causes
    return lead._replace(
        name=device_name(lead.device_id, board=True),
        parts=tuple(chain.from_iterable(each.host_devices for each in offers)),
        reason=next(iter(reasons), None),
    )


def find_lead_id(name: str) -> str:
    """The id of the function or mdev in the name of a device; "" if it is no such name."""
    kind, _, rest = name.partition("-")
    if kind == "mdev":
        return rest
    *domain, bus, device, function = rest.split("-") if rest.count("-") == 3 else ("", "", "", "")
    return pci_address(f"{'-'.join(domain)}:{bus}:{device}.{function}") or ""


def _find_function(device: HostDevice | None, snapshot: Snapshot) -> PciFunction | None:
    """The function, or the parent of the mdev if that is a function."""
    if isinstance(device, Mdev):
        return snapshot.host.functions.get(PciAddress(device.parent or ""))
    return device if isinstance(device, PciFunction) else None


def _kind_of(device: HostDevice | None) -> str:
    if not isinstance(device, PciFunction):
        return "mdev" if isinstance(device, Mdev) else "pci"
    if groups.find_vgpu_type(device) is not None:
        return "vgpu"
    return "pci" if device.physfn is None else "vf"


def _count_members(group: GroupNumber | None, snapshot: Snapshot) -> int:
    found = None if group is None else snapshot.host.groups.get(group)
    return 1 if found is None else max(len(found.members), 1)


def _string(text: str) -> dict[str, str]:
    """A string attribute, cut to its first bytes if it is too long."""
    return {"string": text.encode()[:MAX_TEXT].decode(errors="ignore")}
