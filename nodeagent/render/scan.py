# SPDX-License-Identifier: Apache-2.0
"""What ``nodeagent scan`` prints: devices by IOMMU group, then mdevs and types, and what becomes of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nodeagent.base.terminal import table
from nodeagent.model.host import Host, HostDevice, Mdev, MdevType, PciFunction, UsbDevice
from nodeagent.model.nodes import CdiFile
from nodeagent.policy import groups
from nodeagent.policy.explain.devices import DeviceRow, is_blocked, members_of

LONGEST_NAME = 26  # characters of a name that is not asked for in full
_FATE = "WHAT BECOMES OF IT"
_HEAD = ("ADDRESS", "GROUP", "DRIVER", "NAME", _FATE)
_WIDE = ("ADDRESS", "GROUP", "VIABLE", "ID", "CLASS", "DRIVER", "NUMA", "BY", "NAME", _FATE)
_MDEV_HEAD = ("MDEV", "TYPE", "NAME", "PARENT", _FATE)
_MDEV_WIDE = ("MDEV", "GROUP", "TYPE", "NAME", "PARENT", "DRIVER", "NUMA", "BY", _FATE)
_USB_HEAD = ("USB", "PORT", "DRIVER", "NAME", _FATE)
_USB_WIDE = ("USB", "PORT", "NODE", "DRIVER", "NUMA", "BY", "NAME", _FATE)
_TYPE_HEAD = ("PARENT", "TYPE", "NAME", "AVAILABLE")


def text(host: Host, shown: Sequence[DeviceRow], *, wide: bool = False) -> str:
    """The tables of what is ``shown``, then the facts of the whole host, and what is left out."""
    known = {row.id: row for row in shown}
    functions = [function for function in _by_group(host) if function.address in known]
    rows = [(_wide if wide else _row)(function, known[function.address], host) for function in functions]
    sections = [table(_WIDE if wide else _HEAD, rows), ""] if rows else []
    mdevs = [mdev for mdev in _mdevs(host) if mdev.uuid in known]
    if mdevs:
        mdev_rows = [(_wide_mdev if wide else _mdev_row)(mdev, known[mdev.uuid]) for mdev in mdevs]
        sections += [table(_MDEV_WIDE if wide else _MDEV_HEAD, mdev_rows), ""]
    usb = [device for device in host.usb.values() if device.id in known]
    if usb:
        usb_rows = [(_wide_usb if wide else _usb_row)(device, known[device.id]) for device in usb]
        sections += [table(_USB_WIDE if wide else _USB_HEAD, usb_rows), ""]
    types = [_type_row(parent, each) for parent, offered in _types(host, known).items() for each in offered]
    if types:
        sections += [table(_TYPE_HEAD, types), ""]
    return "\n".join([*(sections or ["no devices", ""]), *_facts(host, len(functions))])


def names(shown: Iterable[DeviceRow]) -> str:
    """Their ids, a line each."""
    return "\n".join(row.id for row in shown)


def _by_group(host: Host) -> list[PciFunction]:
    far = 1 << 62
    return sorted(
        host.functions.values(),
        key=lambda function: (far if function.group is None else function.group, function.address),
    )


def _mdevs(host: Host) -> list[Mdev]:
    """Those on their bus, then those that wait for their removal."""
    return [*host.mdevs.values(), *host.leaving.values()]


def _types(host: Host, known: Mapping[str, DeviceRow]) -> dict[str, tuple[MdevType, ...]]:
    """The types of all parents that are shown; those that a VF takes are there while it has none."""
    vfs: dict[str, tuple[MdevType, ...]] = {
        function.address: tuple(MdevType(number, name, 1) for number, name in function.vgpu_types)
        for function in host.functions.values()
        if groups.takes_vgpu(function) and groups.vgpu_of(function) is None
    }
    return {parent: types for parent, types in {**host.mdev_parents, **vfs}.items() if parent in known}


def _row(function: PciFunction, row: DeviceRow, _: Host) -> tuple[str, ...]:
    return (
        function.address,
        _shown(function.group),
        _shown(function.driver),
        _cut(row.name or f"{function.vendor or '?'}:{function.device or '?'}"),
        str(row),
    )


def _wide(function: PciFunction, row: DeviceRow, host: Host) -> tuple[str, ...]:
    return (
        function.address,
        _shown(function.group),
        _viable(function, host),
        f"{function.vendor or '?'}:{function.device or '?'}",
        (function.pci_class or "?")[:4],
        *_common(function, row),
        _shown(row.name),
        str(row),
    )


def _viable(function: PciFunction, host: Host) -> str:
    """Whether VFIO may have its group; "-" where nobody is to have it so: its driver gives parts of it."""
    members = host.members(function.group)
    if not groups.blockers(members):
        return "-" if function.group is None else "yes"
    return "no" if is_blocked(each.role for each in members_of(members, host)) else "-"


def _mdev_row(mdev: Mdev, row: DeviceRow) -> tuple[str, ...]:
    return (mdev.uuid, *map(_shown, (mdev.type_id, mdev.type_name, mdev.parent)), str(row))


def _wide_mdev(mdev: Mdev, row: DeviceRow) -> tuple[str, ...]:
    facts = (mdev.group, mdev.type_id, mdev.type_name, mdev.parent)
    return (mdev.uuid, *map(_shown, facts), *_common(mdev, row), str(row))


def _usb_row(device: UsbDevice, row: DeviceRow) -> tuple[str, ...]:
    return (device.id, device.name, _shown(device.driver), _cut(device.text or "-"), str(row))


def _wide_usb(device: UsbDevice, row: DeviceRow) -> tuple[str, ...]:
    return (device.id, device.name, device.node, *_common(device, row), _shown(device.text), str(row))


def _common(host_device: HostDevice, row: DeviceRow) -> tuple[str, ...]:
    return _shown(host_device.driver), _shown(host_device.numa_node), row.by or "-"


def _type_row(parent: str, mdev_type: MdevType) -> tuple[str, ...]:
    return (parent, mdev_type.type_id, _shown(mdev_type.name), _shown(mdev_type.available))


def _shown(value: object) -> str:
    return "-" if value is None else str(value)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}.."


def _facts(host: Host, shown: int) -> list[str]:
    left_out = len(host.functions) - shown
    untold = f" ({left_out} not shown)" if left_out else ""
    return [
        f"{len(host.functions)} functions{untold}, {len(host.groups)} IOMMU groups, {len(host.mdevs)} mdevs",
        f"IOMMU: {'active' if host.iommu else 'not active: no device can be given to a virtual machine'}",
        f"nodes: {', '.join(_node(path, host) for path in sorted(host.nodes)) or 'none'}",
        *(_cdi_file(file) for file in host.cdi.values()),
    ]


def _node(path: str, host: Host) -> str:
    """A node, and the function that is behind it."""
    known = host.dev_nodes.get(path)
    return path if known is None or known.function is None else f"{path} ({known.function})"


def _cdi_file(file: CdiFile) -> str:
    if file.fault:
        return f"CDI: {file.path} cannot be used: {file.fault}"
    return f"CDI: {file.path} has {len(file.devices)} of {file.kind}"
