# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan``: lists the devices by IOMMU group, then mdevs, USB devices, types and problems.

``policy/explain`` finds the resource of each device, or why it has none. ``-o json`` saves the whole host for
``--host`` of the other commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from nodeagent.base.errors import ConfigError
from nodeagent.base.terminal import table
from nodeagent.cli import args, daemon_client, output
from nodeagent.model import host_json, plain, problem
from nodeagent.model.host import Host, HostDevice, Mdev, MdevType, PciFunction, UsbDevice
from nodeagent.model.ids import pci_address
from nodeagent.model.nodes import CdiFile
from nodeagent.policy import groups
from nodeagent.policy.explain import devices, problems
from nodeagent.policy.explain.devices import DeviceRow, is_blocked, members_of
from nodeagent.policy.offer import kinds, turn

if TYPE_CHECKING:
    from nodeagent.agent.reporting.basis import Basis
    from nodeagent.model.problem import Problem

_SHOWN = (output.TEXT, output.WIDE, output.NAME)
_DIGITS = frozenset("0123456789abcdef")
LONGEST_NAME = 26  # characters of a name, except in the wide format
_FATE = "RESOURCE / REASON"
_HEAD = ("ADDRESS", "GROUP", "ID", "DRIVER", "NAME", _FATE)
_WIDE = ("ADDRESS", "GROUP", "VIABLE", "ID", "CLASS", "DRIVER", "NUMA", "BY", "NAME", _FATE)
_MDEV_HEAD = ("MDEV", "TYPE", "NAME", "PARENT", _FATE)
_MDEV_WIDE = ("MDEV", "GROUP", "TYPE", "NAME", "PARENT", "DRIVER", "NUMA", "BY", _FATE)
_USB_HEAD = ("USB", "PORT", "DRIVER", "NAME", _FATE)
_USB_WIDE = ("USB", "PORT", "NODE", "DRIVER", "NUMA", "BY", "NAME", _FATE)
_TYPE_HEAD = ("PARENT", "TYPE", "NAME", "AVAILABLE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the filters, and ``--host``."""
    parser.add_argument(
        "patterns", metavar="ADDRESS", nargs="*", help="only these devices; * and ? are wildcards"
    )
    parser.add_argument(
        "--class",
        metavar="CODE",
        dest="classes",
        action="append",
        default=[],
        help="only this class: 2 to 6 digits",
    )
    parser.add_argument("--offered", action="store_true", help="only devices that are offered to the kubelet")
    parser.add_argument("--bridges", action="store_true", help="show bridges, too")
    parser.add_argument("--host", metavar="FILE", help=f"use {args.SAVED}")
    args.add_common(parser, args.WIDE_FORMS)


def run(options: argparse.Namespace) -> int:
    """Show the devices that the options select. :raises ConfigError: if the options exclude each other."""
    _check(options)
    basis, first_line = daemon_client.read_named_basis(options)
    host = basis.snapshot.host
    found, noted = _judge(basis)
    if options.output not in _SHOWN:
        return output.print_answer(output.format_document(options.output, document(basis)), first_line)
    shown = tuple(_choose(found, host, options))
    if options.output == output.NAME:
        return output.print_answer(names(shown), first_line) if shown else output.FINE
    wide = options.output == output.WIDE
    lines = [text(host, shown, wide=wide), *([] if _is_narrowed(options) else output.problem_sections(noted))]
    return output.print_answer(output.fold_text("\n".join(lines), wide=wide), first_line)


def document(basis: Basis) -> dict[str, Any]:
    """The whole host, with the resource of each device or why it has none, and the problems."""
    found, noted = _judge(basis)
    beside = {"devices": list(map(plain.dump, found)), "findings": list(map(plain.dump, noted))}
    return host_json.dump(basis.snapshot.host) | beside


def _judge(basis: Basis) -> tuple[tuple[DeviceRow, ...], tuple[Problem, ...]]:
    decision = turn.decide_first(basis.snapshot, basis.matched)
    noted = (*problems.find_problems(decision), *problem.of_settings(basis.warnings))
    return tuple(devices.rows(decision)), noted


def _check(options: argparse.Namespace) -> None:
    if _is_narrowed(options) and options.output not in _SHOWN:
        raise ConfigError(
            f"-o {options.output} saves the whole host", "leave out addresses, --class and --offered"
        )
    for code in options.classes:
        if not 2 <= len(code) <= 6 or not _DIGITS.issuperset(code.lower()):
            raise ConfigError(
                f"--class {code}: no PCI class", "give 2, 4 or 6 hexadecimal digits, such as 0302"
            )


def _is_narrowed(options: argparse.Namespace) -> bool:
    """True if the options select only some of the devices."""
    return bool(options.patterns or options.classes or options.offered)


def _choose(found: tuple[DeviceRow, ...], host: Host, options: argparse.Namespace) -> Iterator[DeviceRow]:
    classes = tuple(code.lower() for code in options.classes)
    patterns = tuple(map(_complete, options.patterns))
    for row in found:
        device = host.device(row.id)
        function = device if isinstance(device, PciFunction) else None
        code = "" if function is None else function.pci_class or ""
        if classes and not code.startswith(classes):
            continue
        if patterns and not any(fnmatchcase(row.id, pattern) for pattern in patterns):
            continue
        if options.offered and not row.offered:
            continue
        named = classes or patterns or options.bridges
        if named or device is None or not kinds.find_kind(device).never(device):
            yield row


def _complete(pattern: str) -> str:
    """Return the pattern with domain 0000 if it has no domain; ``*`` and ``?`` are wildcards."""
    lower = pattern.lower()
    return pci_address(lower) or (f"0000:{lower}" if lower.count(":") == 1 else lower)


def names(shown: Iterable[DeviceRow]) -> str:
    """The device ids, one per line."""
    return "\n".join(row.id for row in shown)


def text(host: Host, shown: Sequence[DeviceRow], *, wide: bool = False) -> str:
    """The tables of the devices in ``shown``, then facts of the whole host."""
    known = {row.id: row for row in shown}
    functions = [
        _function_cells(each, known[each.id], host, wide) for each in _sort_by_group(host) if each.id in known
    ]
    mdevs = [_mdev_cells(each, known[each.uuid]) for each in _all_mdevs(host) if each.uuid in known]
    usb = [_usb_cells(each, known[each.id], wide) for each in host.usb.values() if each.id in known]
    types = [_type_cells(parent, each) for parent, some in _types(host, known).items() for each in some]
    tables = (
        (_WIDE if wide else _HEAD, functions),
        (_MDEV_WIDE if wide else _MDEV_HEAD, mdevs),
        (_USB_WIDE if wide else _USB_HEAD, usb),
        (_TYPE_HEAD, types),
    )
    sections = [table(head, ([row[name] for name in head] for row in rows)) for head, rows in tables if rows]
    return "\n\n".join([*(sections or ["no devices"]), "\n".join(_facts(host, len(functions)))])


def _sort_by_group(host: Host) -> list[PciFunction]:
    far = 1 << 62
    return sorted(
        host.functions.values(),
        key=lambda function: (far if function.group is None else function.group, function.address),
    )


def _all_mdevs(host: Host) -> list[Mdev]:
    """The mdevs on their bus, then those whose removal is pending."""
    return [*host.mdevs.values(), *host.leaving.values()]


def _types(host: Host, known: Mapping[str, DeviceRow]) -> dict[str, tuple[MdevType, ...]]:
    """The mdev types of all shown parents, and the vGPU types of VFs without a type."""
    vfs: dict[str, tuple[MdevType, ...]] = {
        function.address: tuple(MdevType(number, name, 1) for number, name in function.vgpu_types)
        for function in host.functions.values()
        if groups.is_vgpu_capable(function) and groups.find_vgpu_type(function) is None
    }
    return {parent: types for parent, types in {**host.mdev_parents, **vfs}.items() if parent in known}


def _function_cells(function: PciFunction, row: DeviceRow, host: Host, wide: bool) -> Mapping[str, str]:
    return {
        **_common_cells(function, row),
        "ADDRESS": function.address,
        "GROUP": _or_dash(function.group),
        "VIABLE": _viable(function, host),
        "ID": f"{function.vendor or '?'}:{function.device or '?'}",
        "CLASS": (function.pci_class or "?")[:4],
        "NAME": _or_dash(row.name) if wide else _cut(_or_dash(row.name)),
    }


def _viable(function: PciFunction, host: Host) -> str:
    """Whether VFIO can use the function's IOMMU group; "-" if the driver splits the function into vGPUs."""
    members = host.members(function.group)
    if not groups.find_blockers(members):
        return "-" if function.group is None else "yes"
    return "no" if is_blocked(each.role for each in members_of(members, host)) else "-"


def _mdev_cells(mdev: Mdev, row: DeviceRow) -> Mapping[str, str]:
    return {
        **_common_cells(mdev, row),
        "MDEV": mdev.uuid,
        "GROUP": _or_dash(mdev.group),
        "TYPE": _or_dash(mdev.type_id),
        "NAME": _or_dash(mdev.type_name),
        "PARENT": _or_dash(mdev.parent),
    }


def _usb_cells(device: UsbDevice, row: DeviceRow, wide: bool) -> Mapping[str, str]:
    name = _or_dash(device.text) if wide else _cut(device.text or "-")
    return {
        **_common_cells(device, row),
        "USB": device.id,
        "PORT": device.name,
        "NODE": device.node,
        "NAME": name,
    }


def _common_cells(host_device: HostDevice, row: DeviceRow) -> Mapping[str, str]:
    return {
        "DRIVER": _or_dash(host_device.driver),
        "NUMA": _or_dash(host_device.numa_node),
        "BY": row.matched_by or "-",
        _FATE: str(row),
    }


def _type_cells(parent: str, mdev_type: MdevType) -> Mapping[str, str]:
    return {
        "PARENT": parent,
        "TYPE": mdev_type.type_id,
        "NAME": _or_dash(mdev_type.name),
        "AVAILABLE": _or_dash(mdev_type.available),
    }


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


def _cut(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 2]}.."


def _facts(host: Host, shown: int) -> list[str]:
    left_out = len(host.functions) - shown
    hidden = f" ({left_out} not shown)" if left_out else ""
    return [
        f"{len(host.functions)} functions{hidden}, {len(host.groups)} IOMMU groups, {len(host.mdevs)} mdevs",
        f"IOMMU: {'active' if host.iommu else 'not active: no device can be assigned to a VM'}",
        f"nodes: {', '.join(_node(path, host) for path in sorted(host.nodes)) or 'none'}",
        *(_cdi_file(file) for file in host.cdi.values()),
    ]


def _node(path: str, host: Host) -> str:
    """A device node, and the PCI function behind it."""
    known = host.dev_nodes.get(path)
    return path if known is None or known.function is None else f"{path} ({known.function})"


def _cdi_file(file: CdiFile) -> str:
    if file.fault:
        return f"CDI: {file.path} cannot be used: {file.fault}"
    return f"CDI: {file.path} has {len(file.devices)} of {file.kind}"
