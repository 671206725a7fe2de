# SPDX-License-Identifier: Apache-2.0
"""``nodeagent scan``: which devices are shown, and in which form; not what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from nodeagent.base.errors import ConfigError
from nodeagent.cli import bases, output
from nodeagent.model import host_json, problem
from nodeagent.model.host import PciFunction, UsbDevice
from nodeagent.model.ids import pci_address
from nodeagent.policy.explain import devices, problems
from nodeagent.policy.explain.devices import DeviceRow
from nodeagent.policy.offer import turn
from nodeagent.render import documents, scan
from nodeagent.render import remarks as rendering

if TYPE_CHECKING:
    import argparse

    from nodeagent.model.host import Host

_SHOWN = (output.TEXT, output.WIDE, output.NAME)
_DIGITS = frozenset("0123456789abcdef")


def show(options: argparse.Namespace) -> int:
    """Show the devices that the options choose. :raises ConfigError: if they go together with nothing."""
    _check(options)
    basis, first_line = bases.named(options)
    host = basis.snapshot.host
    decision = turn.first(basis.snapshot, basis.matched)
    found = tuple(devices.rows(decision))
    remarked = (*problems.find_problems(decision), *problem.of_settings(basis.warnings))
    if options.output not in _SHOWN:
        document = host_json.dump(host) | documents.beside_host(found, remarked)
        return output.answer(output.formed(options.output, document), first_line)
    shown = tuple(_chosen(found, host, options))
    if options.output == output.NAME:
        return output.answer(scan.names(shown), first_line) if shown else output.FINE
    lines = [scan.text(host, shown, wide=options.output == output.WIDE)]
    lines += [] if _narrowed(options) else rendering.text(remarked)
    return output.answer(output.people("\n".join(lines), wide=options.output == output.WIDE), first_line)


def _check(options: argparse.Namespace) -> None:
    if _narrowed(options) and options.output not in _SHOWN:
        raise ConfigError(
            f"-o {options.output} saves the whole host", "leave out addresses, --class and --offered"
        )
    for code in options.classes:
        if not 2 <= len(code) <= 6 or not _DIGITS.issuperset(code.lower()):
            raise ConfigError(
                f"--class {code}: no PCI class", "give 2, 4 or 6 hexadecimal digits, such as 0302"
            )


def _narrowed(options: argparse.Namespace) -> bool:
    """True if not the whole host is asked for."""
    return bool(options.patterns or options.classes or options.offered)


def _chosen(found: tuple[DeviceRow, ...], host: Host, options: argparse.Namespace) -> Iterator[DeviceRow]:
    classes = tuple(code.lower() for code in options.classes)
    patterns = tuple(map(_whole, options.patterns))
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
        hub = isinstance(device, UsbDevice) and device.hub
        if named or not (hub or (function is not None and function.bridge)):
            yield row


def _whole(pattern: str) -> str:
    """An address without its domain is one of domain 0000; ``*`` and ``?`` stand for anything."""
    lower = pattern.lower()
    return pci_address(lower) or (f"0000:{lower}" if lower.count(":") == 1 else lower)
