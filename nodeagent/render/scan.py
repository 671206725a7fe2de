# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent scan`` prints: all devices by IOMMU group, all mdevs, and what becomes of each."""

from __future__ import annotations

from nodeagent.model.host import Host, HostDevice, Mdev, MdevType, PciFunction
from nodeagent.policy import groups
from nodeagent.policy.offer.turn import Decision
from nodeagent.render.table import table

_HEAD = ("ADDRESS", "GROUP", "VIABLE", "ID", "CLASS", "DRIVER", "NUMA", "WHAT BECOMES OF IT")
_MDEV_HEAD = ("MDEV", "GROUP", "TYPE", "NAME", "PARENT", "DRIVER", "NUMA", "WHAT BECOMES OF IT")
_TYPE_HEAD = ("PARENT", "TYPE", "NAME", "AVAILABLE")


def text(decision: Decision) -> str:
    """The table of functions, those of mdevs and their types, then the other facts of the host."""
    host = decision.snapshot.host
    rows = [_row(function, decision) for function in _by_group(host)]
    sections = [table(_HEAD, rows) if rows else "no PCI devices", ""]
    mdevs = [_mdev_row(mdev, decision) for mdev in _mdevs(host)]
    if mdevs:
        sections += [table(_MDEV_HEAD, mdevs), ""]
    types = [_type_row(parent, each) for parent, offered in _types(host).items() for each in offered]
    if types:
        sections += [table(_TYPE_HEAD, types), ""]
    return "\n".join([*sections, *_facts(host)])


def _by_group(host: Host) -> list[PciFunction]:
    far = 1 << 62
    return sorted(
        host.functions.values(),
        key=lambda function: (far if function.group is None else function.group, function.address),
    )


def _mdevs(host: Host) -> list[Mdev]:
    """Those on their bus, then those that wait for their removal."""
    return [*host.mdevs.values(), *host.leaving.values()]


def _types(host: Host) -> dict[str, tuple[MdevType, ...]]:
    """The types of all parents; those that a VF takes are there while it has none."""
    vfs: dict[str, tuple[MdevType, ...]] = {
        function.address: tuple(MdevType(number, name, 1) for number, name in function.vgpu_types)
        for function in host.functions.values()
        if groups.takes_vgpu(function) and groups.vgpu_of(function) is None
    }
    return {**host.mdev_parents, **vfs}


def _row(function: PciFunction, decision: Decision) -> tuple[str, ...]:
    members = decision.snapshot.host.members(function.group)
    viable = "-" if function.group is None else "no" if groups.blockers(members) else "yes"
    return (
        function.address,
        _shown(function.group),
        viable,
        f"{function.vendor or '?'}:{function.device or '?'}",
        (function.pci_class or "?")[:4],
        _shown(function.driver),
        _shown(function.numa_node),
        fate(function, decision),
    )


def _mdev_row(mdev: Mdev, decision: Decision) -> tuple[str, ...]:
    facts = (mdev.group, mdev.type_id, mdev.type_name, mdev.parent, mdev.driver, mdev.numa_node)
    return (mdev.uuid, *map(_shown, facts), fate(mdev, decision))


def _type_row(parent: str, mdev_type: MdevType) -> tuple[str, ...]:
    return (parent, mdev_type.type_id, _shown(mdev_type.name), _shown(mdev_type.available))


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def fate(host_device: HostDevice, decision: Decision) -> str:
    """The resource and health of a function or mdev, or that it is not offered."""
    offer = decision.offer_with(host_device.id)
    if offer is None:
        waits = isinstance(host_device, Mdev) and host_device.leaving
        return "going away, still in use" if waits else host_device.unreadable or "not offered"
    reason = offer.device.reason
    return offer.match.resource if reason is None else f"{offer.match.resource}: {reason.what}"


def _facts(host: Host) -> list[str]:
    return [
        f"{len(host.functions)} functions, {len(host.groups)} IOMMU groups, {len(host.mdevs)} mdevs",
        f"IOMMU: {'active' if host.iommu else 'not active: no device can be given to a virtual machine'}",
        f"nodes: {', '.join(sorted(host.nodes)) or 'none'}",
    ]
