# SPDX-License-Identifier: Apache-2.0
"""Joins what a scan has read with the Host before it. Pure; called by ``scanner`` at the end of each scan.

A value that is equal to before stays the same object, on which all that follows a scan depends: a comparison
of two Hosts is one of identities. Facts that sysfs does not show are added here: verdicts on PCI errors, the
lowest counts of opens, host uses of functions, numbers of VFs, and VFs that their PF has left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from nodeagent.kernel.scan import pci, usb
from nodeagent.model.host import Changes, Host, PciFunction, Recovery
from nodeagent.model.ids import PciAddress, pci_order

if TYPE_CHECKING:
    from _typeshed import SupportsRichComparison

K = TypeVar("K")
V = TypeVar("V")

_NOTHING = object()


def assemble(
    found: Mapping[str, Mapping[str, Any]],
    frame: Host,
    previous: Host,
    recoveries: Mapping[PciAddress, Recovery],
    *,
    whole: bool,
) -> Host:
    """The Host of what was found, by table and key; None for what is not there any more.

    ``frame``: a Host with the plain facts; ``whole``: everything was read.
    """
    read: dict[str, Any] = {table: dict(values) for table, values in found.items()}
    add_unseen_facts(read["functions"], previous.functions, recoveries)
    pci.number_vfs(read["functions"], {} if whole else previous.functions)
    read["usb"] = usb.assign_ids(read["usb"], previous.usb, whole)
    tables: dict[str, Any] = {
        table: merge(getattr(previous, table), values, whole, pci_order if table == "functions" else None)
        for table, values in read.items()
    }
    return same_or_new(previous, replace(frame, **tables), None if whole else read)


def merge(
    old: Mapping[K, V],
    read: Mapping[K, V | None],
    whole: bool,
    order: Callable[[Any], SupportsRichComparison] | None,
) -> Mapping[K, V]:
    """``old`` with what was read: all that there is (``whole``), or only some keys.

    ``order`` gives the sort key of the table, which is in order always; None: its keys themselves.
    """
    present = {key: _keep(old, key, value) for key, value in read.items() if value is not None}
    if whole:
        return old if _same(old, present) else present
    absent = [key for key, value in read.items() if value is None and key in old]
    changed = {key: v for key, v in present.items() if v is not old.get(key, _NOTHING)}
    if not absent and not changed:
        return old
    merged = {**old, **changed}
    for key in absent:
        del merged[key]
    if all(key in old for key in changed):
        return merged
    keys: list[Any] = list(merged)
    return {key: merged[key] for key in sorted(keys, key=order)}


def keep_equal(old: Mapping[K, V], new: Mapping[K, V]) -> Mapping[K, V]:
    """``old`` itself if nothing differs, else the new table with the objects of the old one where equal."""
    return old if old == new else {key: _keep(old, key, value) for key, value in new.items()}


def _keep(old: Mapping[K, V], key: K, value: V) -> V:
    known = old.get(key)
    return known if known is not None and known == value else value


def _same(old: Mapping[K, V], new: Mapping[K, V]) -> bool:
    return len(old) == len(new) and all(old.get(key, _NOTHING) is value for key, value in new.items())


def add_unseen_facts(
    functions: dict[PciAddress, PciFunction | None],
    known: Mapping[PciAddress, PciFunction],
    recoveries: Mapping[PciAddress, Recovery],
) -> None:
    """Complete the functions with AER verdicts, and with facts of the Host before that still hold."""
    for address, function in functions.items():
        if function is None:
            continue
        if (before := known.get(address)) is not None:
            function = _with_counts(before, _with_uses(before, function))
        if address in recoveries:
            function = function._replace(recovery=recoveries[address])
        functions[address] = function


def _with_uses(before: PciFunction, function: PciFunction) -> PciFunction:
    """With what the host was seen to use of it, while it is as it was then."""
    same = (function.driver, function.inode) == (before.driver, before.inode)
    return function._replace(uses=before.uses) if same and before.uses and function.usable else function


def _with_counts(before: PciFunction, function: PciFunction) -> PciFunction:
    """With what was seen of its counts of opens before, as long as that holds.

    On a VFIO driver: the lowest count of this binding, and who was seen at the same one. Without a driver:
    the count that a host driver has left, since no process has it open, or the lowest under the VFIO driver.
    """
    if function.driver is None and before.inode == function.inode:
        left = before.idle if before.driver is None else function.enable
        lowest = before.idle if before.vfio else before.lowest
        return function._replace(idle=None if before.vfio else left, lowest=lowest)
    if function.vfio and _binding(before) == _binding(function):
        idle = min((each for each in (before.idle, function.enable) if each is not None), default=None)
        sight = before.sight if before.enable == function.enable else None
        if (idle, sight) != (function.idle, function.sight):
            return function._replace(idle=idle, sight=sight)
    return function


def _binding(function: PciFunction) -> tuple[object, ...]:
    """Differs when a driver has taken the function since, also if it is the same one again."""
    return function.inode, function.driver, function.vfio_inode


def same_or_new(previous: Host, host: Host, read: Mapping[str, Collection[Any]] | None) -> Host:
    """``previous`` itself if no part differs, else ``host`` with what leads to it from ``previous``.

    ``read`` has the keys that were read, by table, if that was not everything: nothing else can differ.
    """
    if all(_unchanged(previous, host, part.name) for part in fields(Host) if part.compare):
        return previous
    if read is None:
        changes = replace(host, changes=None).changes_since(previous)
    else:
        changes = Changes(**{name: _differing(previous, host, name, read) for name in Changes._fields})
    return replace(host, generation=previous.generation + 1, changes=changes)


def _differing(previous: Host, host: Host, table: str, read: Mapping[str, Collection[Any]]) -> frozenset[Any]:
    before, after = getattr(previous, table), getattr(host, table)
    return frozenset(key for key in read[table] if before.get(key) is not after.get(key))


def _unchanged(previous: Host, host: Host, name: str) -> bool:
    before: Any = getattr(previous, name)
    after: Any = getattr(host, name)
    if isinstance(before, Mapping):
        return before is after
    return bool(before == after)
